"""JetStream as a test handles it: make, fill, purge and delete streams."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Self

import nats_bulk
from nats_bulk import Connection, Message

Row = tuple[str, int, bytes]


class Jet:
    def __init__(self, url: str, timeout: float = 5.0) -> None:
        self.url = url
        self.connection = Connection(url, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()

    def ask(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = json.loads(self.connection.request(f"$JS.API.{verb}", json.dumps(body or {}).encode()))
        assert "error" not in answer, answer["error"]
        return dict(answer)

    def make(self, *names: str, **config: Any) -> None:
        """A stream takes the subjects below its own name."""
        questions = [
            (
                f"$JS.API.STREAM.CREATE.{name}",
                json.dumps({"name": name, "subjects": [f"{name}.>"], "allow_direct": True} | config).encode(),
            )
            for name in names
        ]
        for answer in self.connection.request_many(questions):
            assert "error" not in json.loads(answer), answer

    def publish(
        self, stream: str, *payloads: bytes, type: str = "event", headers: dict[str, str] | None = None
    ) -> None:
        result = nats_bulk.publish(
            self.connection, [Message(f"{stream}.{type}", payload, headers=headers) for payload in payloads]
        )
        result.raise_for_errors()

    def fill(self, stream: str, count: int, size: int = 0) -> None:
        """Numbered messages, the first of which says 1."""
        self.publish(stream, *(b"%d" % number + b" " * size for number in range(1, count + 1)))

    def purge(self, stream: str, **what: Any) -> None:
        self.ask(f"STREAM.PURGE.{stream}", what)

    def drop(self, stream: str, sequence: int) -> None:
        self.ask(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})

    def delete(self, stream: str) -> None:
        self.ask(f"STREAM.DELETE.{stream}")

    def state(self, stream: str) -> dict[str, Any]:
        return dict(self.ask(f"STREAM.INFO.{stream}")["state"])

    def content(self, stream: str) -> list[tuple[int, str, bytes]]:
        """All that it has now: sequence, subject, payload."""
        last = self.state(stream)["last_seq"]
        return [
            message
            for batch in nats_bulk.read_range(self.connection, stream, 1, last)
            for message in zip(batch.sequences, batch.subjects, batch.payloads, strict=True)
        ]
