"""The relay's connections to NATS: one for the platform's account, and one for each account with lanes of its own."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Final

from tenantry.outbox.carrier import Carrier
from tenantry.tenants.lanes import Lane
from tenantry.tenants.roster import Account

IDLE_SECONDS: Final = 60.0


class Carriers:
    def __init__(self, platform: Account, executor: Executor, make: type[Carrier]) -> None:
        self._executor = executor
        self._make = make
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        self._carriers: dict[str, Carrier] = {}
        self.platform = self.of(platform)

    def of(self, place: Lane | Account) -> Carrier:
        carrier = self._carriers.get(place.account)
        if carrier is None:
            carrier = self._carriers[place.account] = self._make(place.broker, place.account, self._executor, self.ring)
        return carrier

    @property
    def in_air(self) -> int:
        """Events that are on their way."""
        return sum(carrier.in_air for carrier in self._carriers.values())

    def collect(self) -> None:
        for carrier in self._carriers.values():
            carrier.collect()

    def wait(self, until: float) -> None:
        """For an answer, for the bell, or until it is time."""
        waiting = select.poll()
        waiting.register(self._bell, select.POLLIN)
        for carrier in self._carriers.values():
            if (number := carrier.fileno()) is not None:
                waiting.register(number, select.POLLIN)
        waiting.poll(max(0.0, until - time.monotonic()) * 1000)
        with suppress(BlockingIOError):
            self._bell.recv(4096)

    def ring(self) -> None:
        """End the wait, from any thread."""
        with suppress(OSError):
            self._ringer.send(b"!")

    def drop_idle(self, used: Iterable[str]) -> None:
        old = time.monotonic() - IDLE_SECONDS
        kept = {*used, self.platform.account}
        for account in [each for each, carrier in self._carriers.items() if carrier.used_at < old]:
            if account not in kept:
                self._carriers.pop(account).close()

    def close(self) -> None:
        for carrier in self._carriers.values():
            carrier.close()
        self._bell.close()
        self._ringer.close()
