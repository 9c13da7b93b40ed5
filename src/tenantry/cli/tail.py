"""`tenantry tail`: events as they are published."""

from __future__ import annotations

import asyncio
import base64
import signal
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter, validators
from rich.text import Text

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import console, note, print_json
from tenantry.cli.session import use_administration
from tenantry.config import Settings
from tenantry.errors import EventInvalid, TenantInvalid
from tenantry.event import EVERY_TYPE, Subject, decode, require_type_pattern
from tenantry.nats.following import Start
from tenantry.tenants.quantities import parse_duration
from tenantry.tenants.roster import Roster
from tenantry.tenants.tail import Published, Tail, Wanted

Positive = Annotated[int | None, Parameter(validator=validators.Number(gte=1))]

SHORTEST_DATA = 20


def tail(
    *tenants: str,
    channel: str | None = None,
    type: str = EVERY_TYPE,
    since: str | None = None,
    from_sequence: Positive = None,
    last: Positive = None,
    count: Positive = None,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Show events as they are published, until Ctrl-C. Tenants that are created meanwhile are followed, too.

    Parameters
    ----------
    tenants
        Only these tenants' events; everybody's, if left out.
    channel
        Only events of this channel.
    type
        Only events of this type, with wildcards: order.* is any one word more, order.> any number of them.
    since
        Begin with what was published so long ago, like 5m or 24h. Without it only what is new is shown.
    from_sequence
        Begin with this sequence of the stream; for one tenant.
    last
        Begin with the last so many of each stream; what pooled tenants share is one stream.
    count
        End after so many events.
    json
        Print a JSON document a line: sequence, tenant, channel, subject, time, event.
    """
    if sum(each is not None for each in (since, from_sequence, last)) > 1:
        raise TenantInvalid("since", "expected one of --since, --from-sequence and --last, got more than one")
    if from_sequence and len(tenants) != 1:
        raise TenantInvalid("from_sequence", "expected one TENANT with --from-sequence, for each stream counts its own")
    start = Start(from_sequence) if from_sequence else None
    if since:
        start = Start(time=datetime.now(UTC) - timedelta(seconds=parse_duration("since", since)))
    wanted = Wanted(frozenset(tenants), channel, require_type_pattern(type), start, last)
    # A signal is how this ends, and so is a reader that has seen enough.
    with suppress(KeyboardInterrupt, asyncio.CancelledError, BrokenPipeError):
        asyncio.run(_tail(options.load().settings, wanted, count, json=json))


async def _tail(settings: Settings, wanted: Wanted, count: int | None, *, json: bool) -> None:
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    async with use_administration(settings) as administration:
        for tenant in wanted.tenants:
            await _require(administration.registry.get(tenant), wanted.channel)
        async with Tail.open(Roster(administration.registry, administration.lanes), wanted) as events:
            note(f"Following {events.streams:,} {'stream' if events.streams == 1 else 'streams'}; Ctrl-C ends it.")
            shown = 0
            async for event in events:
                _print_json(event) if json else _print(event)
                shown += 1
                if shown == count:
                    return


async def _require(found: Any, channel: str | None) -> None:
    tenant = await found
    if channel and tenant.channel(channel) is None:
        names = ", ".join(each.name for each in tenant.channels)
        raise TenantInvalid("channel", f"tenant {tenant.id} has no channel {channel!r}, only {names}")


def _print_json(event: Published) -> None:
    stored = event.stored
    document: dict[str, Any] = {
        "sequence": stored.sequence,
        "tenant": event.tenant,
        "channel": event.channel,
        "subject": stored.subject,
        "time": stored.time,
    }
    try:
        document["event"] = msgspec.json.decode(stored.payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Tenants with a stream of their own publish what they like.
        document |= {"event": None, "payload_base64": base64.b64encode(stored.payload).decode()}
    print_json(document)


def _print(event: Published) -> None:
    stored = event.stored
    try:
        envelope = decode(stored.payload)
        id, data = envelope.id, bytes(envelope.data) or (envelope.data_base64 or "").encode()
    except EventInvalid:
        id, data = "-", stored.payload
    time = stored.time.astimezone().strftime("%H:%M:%S.%f")[:-3]
    head = f"{time}  {event.tenant}  {event.channel}  {Subject.parse(stored.subject).type}  {id}"
    line = f"{head}  {_one_line(data)}"
    if not console.is_terminal:
        return print(line, flush=True)
    text = Text(line)
    text.stylize("dim", 0, len(time))
    text.truncate(max(console.width, len(head) + SHORTEST_DATA), overflow="ellipsis")
    console.print(text, soft_wrap=True)


def _one_line(data: bytes) -> str:
    text = data.decode(errors="replace")
    return "".join(letter if letter.isprintable() else " " for letter in text)
