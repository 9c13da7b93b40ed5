"""Does what is asked of a worker for the tenants that it holds: pauses, dead letters to be handled again, replays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tenantry.subscriptions.database import AWAY, DATABASE_AWAY
from tenantry.subscriptions.dead_letters import DeadLetters
from tenantry.subscriptions.holding import Holding
from tenantry.subscriptions.replaying import Replays
from tenantry.subscriptions.services import Services
from tenantry.subscriptions.spreading import Partition

LETTERS_AT_ONCE: Final = 20
"""Of each partition."""


class Attendant:
    def __init__(
        self,
        holdings: Mapping[Partition, Holding],
        services: Services,
        letters: DeadLetters,
        replays: Replays,
    ) -> None:
        self._holdings = holdings
        self._services = services
        self._letters = letters
        self._replays = replays
        self._paused: set[tuple[str, str]] = set()

    def is_paused(self, partition: Partition) -> bool:
        return (partition.service, partition.tenant) in self._paused

    async def attend(self) -> None:
        try:
            await self._pause()
            if self._holdings:
                await self._redrive()
                await self._replays.attend()
        except DATABASE_AWAY as problem:
            AWAY.emit(error=problem)

    async def _pause(self) -> None:
        self._paused = await self._services.paused()
        for partition, holding in self._holdings.items():
            if self.is_paused(partition) != holding.is_paused:
                holding.is_paused = self.is_paused(partition)
                holding.change_flow()

    async def _redrive(self) -> None:
        for letter in await self._letters.asked_for(list(self._holdings), LETTERS_AT_ONCE):
            if (holding := self._holdings.get(letter.partition)) is not None:
                holding.redriving.add([letter])
