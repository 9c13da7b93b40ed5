"""`tenantry lag`."""

from __future__ import annotations

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import print_json, print_table, say
from tenantry.cli.session import administer
from tenantry.subscriptions.lane_consumers import Lag
from tenantry.subscriptions.subscription_desk import SubscriptionDesk


def lag(
    *,
    tenant: str | None = None,
    service: str | None = None,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Show how far services are behind with each tenant's events, those that are most behind first.

    Parameters
    ----------
    tenant
        Only with this tenant's.
    service
        Only this service.
    json
        Print one JSON document.
    """
    found = administer(options, lambda administration: SubscriptionDesk(administration).lag(service, tenant))
    if json:
        return print_json(found)
    if not found:
        return say("No service handles these events yet; `tenantry up` and `tenantry serve worker` run workers.")
    columns = (
        "service",
        "tenant",
        "channel",
        "part",
        "pending",
        "in flight",
        "redelivered",
        "done up to",
        "newest",
        "",
    )
    print_table(columns, [_row(each) for each in found])


def _row(lag: Lag) -> tuple[str, ...]:
    figures = (lag.pending, lag.in_flight, lag.redelivered, lag.ack_floor, lag.last_sequence)
    remark = lag.problem or ("no worker has had it yet" if lag.pending is None else "")
    return (
        lag.service,
        lag.tenant_id,
        lag.channel,
        str(lag.part),
        *("-" if figure is None else f"{figure:,}" for figure in figures),
        remark,
    )
