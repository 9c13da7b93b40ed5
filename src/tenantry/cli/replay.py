"""`tenantry replay`."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter, validators

from tenantry.cli.job_waiting import do_job
from tenantry.cli.moments import read_time
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.session import actor
from tenantry.errors import TenantInvalid
from tenantry.pipelines.job_desk import JobDesk
from tenantry.subscriptions.job_desk import SubscriptionJobDesk


def replay(
    *,
    tenant: str,
    pipeline: str | None = None,
    service: str | None = None,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    from_sequence: Annotated[int | None, Parameter(validator=validators.Number(gte=1))] = None,
    to: str | None = None,
    rewind: bool = False,
    channel: str | None = None,
    detach: bool = False,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Give a service a tenant's events again, or fill the tenant's tables again from them.

    A service handles them beside those that come in; with --rewind it goes back itself and handles everything from
    there, in order. Rows of tables are put in place of those that are there, and none is there twice after. Ctrl-C
    cancels it; what is done stays.

    Parameters
    ----------
    tenant
        The tenant.
    pipeline
        The pipeline: warehouse, or one of the application's that keeps no state and the column sequence.
    service
        The service, instead of a pipeline.
    from_
        Begin with what came in at this time, like 2026-11-01 or 2026-11-01T12:00:00+01:00; UTC unless it says.
    from_sequence
        Begin with this sequence instead.
    to
        End before what came in at this time. Without it, where the pipeline or the service is when it begins.
    rewind
        Move the service itself back, instead of handling events beside those that come in.
    channel
        Only this channel of a pipeline; all, if left out.
    detach
        Do not wait for it.
    json
        Print one JSON document.
    """
    if (pipeline is None) == (service is None):
        raise TenantInvalid("service", "expected one of --service and --pipeline")
    if (from_ is None) == (from_sequence is None):
        raise TenantInvalid("from", "expected one of --from and --from-sequence")
    begin = None if from_ is None else read_time("from", from_)
    end = None if to is None else read_time("to", to)
    if pipeline is not None:
        if rewind:
            raise TenantInvalid("rewind", "expected --rewind with --service: a pipeline is filled again from the side")
        request: dict[str, Any] = {
            "from": begin.isoformat() if begin else None,
            "from_sequence": from_sequence,
            "to": end.isoformat() if end else None,
            "channel": channel,
        }
        return do_job(
            options,
            JobDesk,
            lambda desk: desk.ask("replay", pipeline, tenant, actor(), request),
            detach=detach,
            json=json,
        )
    assert service is not None
    if channel is not None:
        raise TenantInvalid("channel", "expected --channel with --pipeline: a service has one channel")
    do_job(
        options,
        SubscriptionJobDesk,
        lambda desk: desk.ask(
            "rewind" if rewind else "replay",
            service,
            tenant,
            actor(),
            from_=begin,
            from_sequence=from_sequence,
            to=end,
        ),
        detach=detach,
        json=json,
    )
