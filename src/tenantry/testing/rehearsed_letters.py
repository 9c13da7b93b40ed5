"""Dead letters of a rehearsal, in memory."""

from __future__ import annotations

from uuid import UUID, uuid4

import msgspec

from tenantry.nats.feed import Handed
from tenantry.subscriptions.dead_letters import Blocked, DeadLetter, DeadLetters, Death
from tenantry.subscriptions.parcel import Parcel
from tenantry.subscriptions.spreading import Partition
from tenantry.testing.outcome import Letter


class RehearsedLetters(DeadLetters):
    """Where a worker has the database."""

    def __init__(self) -> None:
        self.letters: dict[tuple[Partition, int], tuple[Letter, Handed]] = {}
        self._asked: dict[UUID, tuple[Partition, int]] = {}

    async def bury(
        self,
        partition: Partition,
        channel: str,
        parcel: Parcel,
        death: Death,
        job: UUID | None = None,  # noqa: ARG002
    ) -> None:
        letter = Letter(
            tenant=partition.tenant,
            service=partition.service,
            channel=channel,
            sequence=parcel.sequence,
            payload=parcel.message.payload,
            reason=death.reason,
            traceback=death.traceback,
            attempts=parcel.attempt,
            state=death.state,
            event_id=death.event_id,
            type=death.type,
            key=death.key,
        )
        self.letters[partition, parcel.sequence] = letter, parcel.message

    async def blocked(self, partitions: list[Partition]) -> dict[Partition, Blocked]:  # noqa: ARG002
        return {}

    async def asked_for(self, partitions: list[Partition], limit: int) -> list[DeadLetter]:
        """All that there are: to ask is to redrive them."""
        found: list[DeadLetter] = []
        for (partition, sequence), (letter, message) in sorted(self.letters.items()):
            if partition in partitions and len(found) < limit:
                id = uuid4()
                self._asked[id] = partition, sequence
                again = message._replace(deliveries=letter.attempts + 1)
                found.append(DeadLetter(id, id, "redrive", partition, letter.state, letter.key, again))
        return found

    async def settle(self, letter: DeadLetter) -> int:
        del self.letters[self._asked.pop(letter.id)]
        return sum(
            partition == letter.partition and other.key == letter.key
            for (partition, _), (other, _) in self.letters.items()
        )

    async def failed_again(self, letter: DeadLetter, death: Death) -> None:
        place = self._asked.pop(letter.id)
        before, message = self.letters[place]
        failed = {"reason": death.reason, "traceback": death.traceback, "attempts": letter.message.deliveries}
        self.letters[place] = msgspec.structs.replace(before, **failed), message

    def find(self, partition: Partition, sequence: int) -> Letter | None:
        found = self.letters.get((partition, sequence))
        return found[0] if found else None
