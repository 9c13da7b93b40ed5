"""Looks up the hosts of push endpoints on threads of its own: a slow name server holds up nobody else's work."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult

LOOKUPS: Final = 64

_FLAGS: Final = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class PushResolver(AbstractResolver):
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="push-lookup")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        infos = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
        )
        return [
            ResolveResult(hostname=host, host=str(address[0]), port=port, family=family, proto=protocol, flags=_FLAGS)
            for family, _, protocol, _, address in infos
        ]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
