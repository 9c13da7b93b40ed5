"""How far a query has read: `{stream: next sequence}`, as Spark keeps it in the checkpoint and shows in its progress.

As with Kafka, an offset is the sequence to be read next, so a batch is start to end without the end. Keys that begin
with a dot, which no stream can have, say how the batch that ends here is read, so that reading it again is the same:

    .created   the newest creation time among the streams; one that is newer has been made anew under its old name
    .from      where streams begin that are new in this batch
    .tasks     where each task but the first begins, as [stream, sequence]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Offset:
    next: dict[str, int] = field(default_factory=dict)
    created: int = 0
    begins: dict[str, int] = field(default_factory=dict)
    tasks: list[tuple[str, int]] = field(default_factory=list)

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Offset:
        return cls(
            next={key: sequence for key, sequence in document.items() if not key.startswith(".")},
            created=document.get(".created", 0),
            begins=document.get(".from", {}),
            tasks=[(key, sequence) for key, sequence in document.get(".tasks", ())],
        )

    def document(self) -> dict[str, Any]:
        """Always in one order: Spark compares offsets as text."""
        document: dict[str, Any] = dict(sorted(self.next.items()))
        if self.created:
            document[".created"] = self.created
        if self.begins:
            document[".from"] = dict(sorted(self.begins.items()))
        if self.tasks:
            document[".tasks"] = [list(place) for place in self.tasks]
        return document

    def ranges_since(self, start: Offset) -> dict[str, tuple[int, int]]:
        """What lies between, as first and last sequence by stream, in the order of their names."""
        ranges = {}
        for key, end in sorted(self.next.items()):
            first = self.begins.get(key, start.next.get(key, end))
            if first < end:
                ranges[key] = first, end - 1
        return ranges
