"""`tenantry replay`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from cyclopts import Parameter, validators

from tenantry.cli.job_waiting import do_job
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.session import actor
from tenantry.errors import TenantInvalid


def replay(
    *,
    tenant: str,
    pipeline: str,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    from_sequence: Annotated[int | None, Parameter(validator=validators.Number(gte=1))] = None,
    to: str | None = None,
    channel: str | None = None,
    detach: bool = False,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Fill a tenant's tables again from its events, in place of the rows that are there; none is there twice after.

    It takes at most half of the time, and the pipelines go on beside it. Ctrl-C cancels it; what is done stays.

    Parameters
    ----------
    tenant
        The tenant.
    pipeline
        The pipeline: warehouse, or one of the application's that keeps no state and the column sequence.
    from_
        Begin with what came in at this time, like 2026-11-01 or 2026-11-01T12:00:00+01:00; UTC unless it says.
    from_sequence
        Begin with this sequence instead.
    to
        End before what came in at this time. Without it, where the pipeline is when it begins.
    channel
        Only this channel; all, if left out.
    detach
        Do not wait for it.
    json
        Print one JSON document.
    """
    if (from_ is None) == (from_sequence is None):
        raise TenantInvalid("from", "expected one of --from and --from-sequence")
    request: dict[str, Any] = {
        "from": _moment("from", from_),
        "from_sequence": from_sequence,
        "to": _moment("to", to),
        "channel": channel,
    }
    do_job(options, lambda desk: desk.ask("replay", pipeline, tenant, actor(), request), detach=detach, json=json)


def _moment(field: str, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).isoformat()
    except ValueError:
        raise TenantInvalid(
            field, f"expected --{field} to be a date or a time, like 2026-11-01T12:00:00Z, got: {text!r}"
        ) from None
