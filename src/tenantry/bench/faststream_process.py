"""FastStream with a handler that does nothing, in a process of its own, as the counterpart of a worker.

    python -m tenantry.bench.faststream_process one|lists SERVICE EVENTS < streams

Each line of its input is a stream and the subjects in there. It is to be as fast as FastStream can be:

- A durable pull consumer for each stream, all on one connection, which asks for 100 messages at a time. From 20 to 500
  made no difference that could be told from noise.
- `one` calls the handler for each event, and for those that were fetched together side by side: its counterpart to
  `parallel`. `max_workers` was slower. `lists` is `batch=True`: one call for all that were fetched together, which
  saves most of what FastStream does for a message.
- Nothing is logged, and arguments are not looked up by their types (`apply_types`): both take time.
- Bodies are decoded by msgspec, like ours, and not by `json`.
- Each message is acknowledged after its handler, as is FastStream's default.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, Final

import msgspec
from faststream.nats import JStream, NatsBroker, PullSub

from tenantry.bench.draining import Drain

AT_ONCE: Final = 100
FETCH_SECONDS: Final = 5.0

_decode = msgspec.json.Decoder().decode


async def drain(kind: str, service: str, events: int, streams: list[list[str]]) -> None:
    counting = Drain(events)

    async def handle(_: dict[str, Any]) -> None:
        counting.count()

    async def handle_list(events: list[dict[str, Any]]) -> None:
        for _ in events:
            counting.count()

    broker = NatsBroker(
        os.environ["NATS_URL"], user_credentials=os.environ["NATS_CREDS"], logger=None, apply_types=False
    )
    in_lists = kind == "lists"
    for stream, subjects in streams:
        broker.subscriber(
            subjects,
            # It is there: the platform has made it.
            stream=JStream(stream, declare=False),
            durable=service,
            pull_sub=PullSub(batch_size=AT_ONCE, timeout=FETCH_SECONDS, batch=in_lists),
            decoder=_decode_list if in_lists else _decode_one,
        )(handle_list if in_lists else handle)
    async with broker:
        await broker.start()
        print(msgspec.json.encode(await counting.until_done()).decode(), flush=True)
        # What is acknowledged is on its way; and acknowledgements of a list follow its handler.
        await asyncio.sleep(0.1)


async def _decode_one(message: Any) -> Any:
    return _decode(message.body)


async def _decode_list(message: Any) -> Any:
    return [_decode(body) for body in message.body]


if __name__ == "__main__":
    kind, service, events = sys.argv[1:]
    asyncio.run(drain(kind, service, int(events), [line.split() for line in sys.stdin]))
