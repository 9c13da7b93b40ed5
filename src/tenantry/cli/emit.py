"""`tenantry emit`: one event, or many from a file, through the outbox."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tenantry.cli.emit_lines import count_lines, emit_lines, read_data, read_lines
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.outbox_session import use_outbox
from tenantry.cli.output import note, print_json, progress
from tenantry.config import Settings
from tenantry.errors import EventInvalid
from tenantry.outbox import Emission, emit_many


def emit(
    tenant: str = "",
    type: str = "",
    data: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    channel: str = "events",
    id: str | None = None,
    source: str | None = None,
    subject: str | None = None,
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Emit an event, or many in one transaction, through the outbox. The relay carries them to the tenants' lanes.

    Parameters
    ----------
    tenant
        Whose event it is.
    type
        What happened, like order.created.
    data
        The event's data, as JSON.
    channel
        The tenant's channel.
    id
        The event's id; a new one, if left out.
    source
        Where it comes from; the name of the database, if left out.
    subject
        What it is about.
    file
        Many events, JSON a line; - is standard input. With TENANT and TYPE a line is an event's data. Without, it is an
        object with tenant, type, data and, if wanted, channel, id, source, subject, time, dataschema, traceparent,
        tracestate, extensions. All of them are emitted, or none.
    json
        Print one JSON document.
    """
    event = Emission(tenant, type, channel=channel, id=id, source=source, subject=subject)
    if file:
        if data is not None or id is not None or bool(tenant) != bool(type):
            raise EventInvalid("file", "expected --file with TENANT and TYPE or without both, and no DATA or --id")
        if not tenant and event != Emission("", ""):
            raise EventInvalid("file", "expected each line of --file to say its own channel, source and subject")
        ids = asyncio.run(_emit_many(options.load().settings, file, event if tenant else None))
        note(f"{len(ids):,} events were emitted.")
    else:
        if not (tenant and type):
            raise EventInvalid(
                "type", "expected TENANT and TYPE, like: tenantry emit acme order.created '{\"order\": 7}'; or --file"
            )
        event.data = None if data is None else read_data(data, "DATA")
        ids = [asyncio.run(_emit(options.load().settings, event))]
    if json:
        return print_json({"ids": ids} if file else {"id": ids[0]})
    for each in ids:
        print(each)


async def _emit(settings: Settings, event: Emission) -> str:
    async with use_outbox(settings) as connection:
        (id,) = await emit_many(connection, [event])
        return id


async def _emit_many(settings: Settings, file: Path, like: Emission | None) -> list[str]:
    async with use_outbox(settings) as connection:
        with progress() as bars:
            task = bars.add_task("emit", total=count_lines(file))
            async with connection.transaction():
                return await emit_lines(connection, read_lines(file, like), lambda events: bars.advance(task, events))
