"""`tenantry pause` and `resume`."""

from __future__ import annotations

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import print_json, say
from tenantry.cli.session import actor, administer
from tenantry.subscriptions.subscription_desk import SubscriptionDesk


def pause(*, service: str, tenant: str, json: bool = False, options: Options = DEFAULT) -> None:
    """Stop a service from handling a tenant's events, until it is resumed. They wait in the tenant's stream meanwhile.

    Parameters
    ----------
    service
        The service.
    tenant
        The tenant; all others go on.
    json
        Print one JSON document.
    """
    is_new = administer(
        options, lambda administration: SubscriptionDesk(administration).pause(service, tenant, actor())
    )
    if json:
        return print_json({"service": service, "tenant": tenant, "paused": True, "changed": is_new})
    say(f"{service} is paused for {tenant}" if is_new else f"{service} was paused for {tenant} already")


def resume(*, service: str, tenant: str, json: bool = False, options: Options = DEFAULT) -> None:
    """Let a service go on with a tenant's events where it was paused.

    Parameters
    ----------
    service
        The service.
    tenant
        The tenant.
    json
        Print one JSON document.
    """
    was_paused = administer(
        options, lambda administration: SubscriptionDesk(administration).resume(service, tenant, actor())
    )
    if json:
        return print_json({"service": service, "tenant": tenant, "paused": False, "changed": was_paused})
    say(f"{service} goes on for {tenant}" if was_paused else f"{service} was not paused for {tenant}")
