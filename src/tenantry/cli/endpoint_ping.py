"""`tenantry endpoint test`: whether deliveries arrive, found out with one that says nothing else."""

from __future__ import annotations

import sys

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import print_json, say
from tenantry.cli.session import administer
from tenantry.errors import PushError
from tenantry.subscriptions.push_delivery import Delivered, Deliverer
from tenantry.subscriptions.push_endpoints import PushEndpoints
from tenantry.tenants.administration import Administration


def ping(id: str, name: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Deliver a signed event of the type tenantry.ping now, once. Exit status 1 if it does not arrive.

    Parameters
    ----------
    id
        The tenant.
    name
        The endpoint.
    json
        Print one JSON document.
    """
    settings = options.load().settings

    async def act(administration: Administration) -> Delivered:
        endpoint = await PushEndpoints.from_settings(settings, administration).get(id, name)
        async with Deliverer.from_settings(settings, administration.keyring) as deliverer:
            return await deliverer.ping(endpoint)

    try:
        delivered = administer(options, act)
    except PushError as problem:
        if not json:
            raise
        print_json({"outcome": "failed", "status": problem.status, "reason": str(problem)})
        sys.exit(1)
    if json:
        return print_json({"outcome": "delivered", "status": delivered.status, "seconds": delivered.seconds})
    say(f"delivered: {delivered.status} after {delivered.seconds * 1000:,.0f} ms")
