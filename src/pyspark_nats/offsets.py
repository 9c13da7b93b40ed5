"""How far a query has read: `{stream: next sequence}`, as Spark keeps it in the checkpoint and shows in its progress.

As with Kafka, an offset is the sequence to be read next, so a batch is start to end without the end. Keys that begin
with a dot, which no stream can have, say how the batch that ends here is read, so that reading it again is the same:

    .created   when each stream was made; another time means another stream, under the old one's name
    .from      where streams begin that do not go on where they were: new ones, above all
    .tasks     where each task but the first begins, as [stream, sequence]
    .behind    how far the streams reached that had more to read
    .initial   nothing was read yet; Spark does not keep such an offset, so the batch that follows says where it began
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Offset:
    next: dict[str, int] = field(default_factory=dict)
    created: dict[str, int] = field(default_factory=dict)
    begins: dict[str, int] = field(default_factory=dict)
    tasks: list[tuple[str, int]] = field(default_factory=list)
    behind: dict[str, int] = field(default_factory=dict)
    initial: bool = False

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Offset:
        return cls(
            next={key: sequence for key, sequence in document.items() if not key.startswith(".")},
            created=dict(document.get(".created", {})),
            begins=dict(document.get(".from", {})),
            tasks=[(key, sequence) for key, sequence in document.get(".tasks", ())],
            behind=dict(document.get(".behind", {})),
            initial=document.get(".initial", False),
        )

    def document(self) -> dict[str, Any]:
        """Always in one order: Spark compares offsets as text."""
        notes = {
            ".created": dict(sorted(self.created.items())),
            ".from": dict(sorted(self.begins.items())),
            ".tasks": [list(place) for place in self.tasks],
            ".behind": dict(sorted(self.behind.items())),
            ".initial": self.initial,
        }
        return dict(sorted(self.next.items())) | {name: note for name, note in notes.items() if note}

    def forget(self, key: str) -> None:
        for part in (self.next, self.created, self.behind):
            part.pop(key, None)

    def is_another(self, key: str, created: int) -> bool:
        """Whether a stream that was made then is not the one that was read under this name."""
        return self.created.get(key, created) != created

    def ranges_since(self, start: Offset) -> dict[str, tuple[int, int]]:
        """What lies between, as first and last sequence by stream, in the order of their names."""
        ranges = {}
        for key, end in sorted(self.next.items()):
            first = self.begins.get(key, start.next.get(key, end))
            if first < end:
                ranges[key] = first, end - 1
        return ranges
