"""Looks up the hosts of push endpoints, on threads of its own.

A tenant's name server may be as slow as it likes: it holds up few threads at once, and nobody else's work.
"""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult

LOOKUPS: Final = 64
LOOKUPS_OF_TENANT: Final = 4

TENANT: Final[ContextVar[str]] = ContextVar("push_tenant", default="")
"""For whom the connection is that a host is looked up for; the connector has no way to tell."""

_FLAGS: Final = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class PushResolver(AbstractResolver):
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="push-lookup")
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(LOOKUPS_OF_TENANT))

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        slots = self._slots[TENANT.get()]
        await slots.acquire()
        lookup = asyncio.get_running_loop().run_in_executor(self._threads, _look_up, host, port, family)
        # Who asked may have given up long before the thread is free again.
        lookup.add_done_callback(lambda _: slots.release())
        return await asyncio.shield(lookup)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    return [
        ResolveResult(hostname=host, host=str(address[0]), port=port, family=found, proto=protocol, flags=_FLAGS)
        for found, _, protocol, _, address in socket.getaddrinfo(
            host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG
        )
    ]
