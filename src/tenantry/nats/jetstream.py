"""JetStream's API, as JSON: what it has for us to know about streams and consumers is compared field by field.

The server drops all waiting requests once ten thousand wait; no more than `AT_ONCE` of ours do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec
import nats.errors

from tenantry.errors import BrokerUnreachable, JetStreamRefused

AT_ONCE: Final = 64
ANSWER_SECONDS: Final = 10.0

NAME_IN_USE: Final = 10058
NOT_FOUND: Final = frozenset({10014, 10037, 10059})
"""A consumer, a message or a stream that is not there."""

_ADVICE: Final = {
    10047: "; it promises no more than its disk holds: raise max_file_store there, or lower the limit storage",
    10074: "; set nats_replicas to the number of servers",
}

Config = dict[str, Any]


class Reply(Protocol):
    @property
    def data(self) -> bytes: ...

    @property
    def headers(self) -> dict[str, str] | None: ...


class Connection(Protocol):
    """The official client, or a feed."""

    async def request(self, subject: str, payload: bytes = b"", timeout: float = ANSWER_SECONDS) -> Any:  # noqa: ASYNC109
        """A Reply."""


class JetStream:
    """The API of one account, through a connection of one of its users."""

    def __init__(self, client: Connection) -> None:
        self._client: Any = client
        self._room = asyncio.Semaphore(AT_ONCE)

    async def create_stream(self, config: Config) -> Config:
        """Create it, or find that it is there just so; JetStreamRefused if it is there and different."""
        return await self._ask(f"STREAM.CREATE.{config['name']}", config)

    async def update_stream(self, config: Config) -> Config:
        return await self._ask(f"STREAM.UPDATE.{config['name']}", config)

    async def stream(self, name: str) -> Config | None:
        """Configuration and state."""
        return await self._find(f"STREAM.INFO.{name}")

    async def streams(self) -> AsyncIterator[Config]:
        """Configuration and state of all streams of the account."""
        seen = 0
        while True:
            page = await self._ask("STREAM.LIST", {"offset": seen})
            for stream in page.get("streams") or ():
                yield stream
            seen += len(page.get("streams") or ())
            if seen >= page["total"] or not page.get("streams"):
                return

    async def delete_stream(self, name: str) -> bool:
        """Whether it was there."""
        return await self._find(f"STREAM.DELETE.{name}") is not None

    async def purge(self, stream: str, subject: str) -> int:
        """Delete what was published to the subject; how many messages that were."""
        answer = await self._find(f"STREAM.PURGE.{stream}", {"filter": subject})
        return int(answer["purged"]) if answer else 0

    async def last_sequence(self, stream: str, subject: str) -> int:
        """The sequence of the newest message with this subject, which may have wildcards; 0 if there is none."""
        answer = await self._find(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        return int(answer["message"]["seq"]) if answer else 0

    async def sequence_at(self, stream: str, moment: datetime) -> int:
        """The sequence of the first message that was stored then or later; 0 if there is none."""
        question = {"batch": 1, "start_time": moment.isoformat()}
        answer = await self._request(f"DIRECT.GET.{stream}", msgspec.json.encode(question))
        return int((answer.headers or {}).get("Nats-Sequence", 0))

    async def create_consumer(self, stream: str, config: Config, action: str = "") -> Config:
        """`action` is `create` or `update`; else it is created, or changed if it is there."""
        subject = f"CONSUMER.CREATE.{stream}.{config['durable_name']}"
        return await self._ask(subject, {"stream_name": stream, "config": config, "action": action})

    async def reset_consumer(self, stream: str, name: str, sequence: int | None = None) -> Config:
        """Let it begin again, with this sequence, else with the first that has not been acknowledged."""
        return await self._ask(f"CONSUMER.RESET.{stream}.{name}", {"seq": sequence} if sequence else None)

    async def consumer(self, stream: str, name: str) -> Config | None:
        return await self._find(f"CONSUMER.INFO.{stream}.{name}")

    async def consumers(self, stream: str) -> AsyncIterator[Config]:
        seen = 0
        while True:
            page = await self._find(f"CONSUMER.LIST.{stream}", {"offset": seen})
            if page is None:
                return
            for consumer in page.get("consumers") or ():
                yield consumer
            seen += len(page.get("consumers") or ())
            if seen >= page["total"] or not page.get("consumers"):
                return

    async def delete_consumer(self, stream: str, name: str) -> bool:
        return await self._find(f"CONSUMER.DELETE.{stream}.{name}") is not None

    async def _find(self, subject: str, body: Config | None = None) -> Config | None:
        try:
            return await self._ask(subject, body)
        except JetStreamRefused as refused:
            if refused.err_code in NOT_FOUND:
                return None
            raise

    async def _ask(self, subject: str, body: Config | None = None) -> Config:
        answer = await self._request(subject, b"" if body is None else msgspec.json.encode(body))
        document: Config = msgspec.json.decode(answer.data)
        if error := document.get("error"):
            number = error.get("err_code", 0)
            reason = error.get("description", "no reason given") + _ADVICE.get(number, "")
            raise JetStreamRefused(subject, error.get("code", 0), number, reason)
        return document

    async def _request(self, subject: str, payload: bytes) -> Reply:
        async with self._room:
            try:
                reply: Reply = await self._client.request(f"$JS.API.{subject}", payload, timeout=ANSWER_SECONDS)
                return reply
            except (nats.errors.Error, TimeoutError, OSError) as problem:
                raise BrokerUnreachable(
                    f"JetStream did not answer {subject}: {str(problem) or type(problem).__name__}; is it turned on?"
                ) from problem
