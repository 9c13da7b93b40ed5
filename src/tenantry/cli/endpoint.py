"""`tenantry endpoint create`, `list`, `show`, `set`, `rotate`, `secret`, `enable`, `disable` and `delete`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from cyclopts import Parameter

from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.output import format_time, note, print_json, print_table, say
from tenantry.cli.session import actor, administer
from tenantry.subscriptions.push_endpoint import Order, PushEndpoint, PushSpec
from tenantry.subscriptions.push_endpoints import PushEndpoints
from tenantry.subscriptions.push_secrets import PushSecrets
from tenantry.tenants.administration import Administration
from tenantry.tenants.quantities import parse_duration

Result = TypeVar("Result")
WithSecret = tuple[PushEndpoint, str]

Types = Annotated[
    tuple[str, ...], Parameter(name="--type", help="Events of this type, like 'order.*'; all, if left out. Repeatable.")
]


def create(
    id: str,
    name: str,
    url: str,
    /,
    *,
    channel: str = "events",
    types: Types = (),
    order: Order | None = None,
    max_in_flight: int | None = None,
    timeout: int | None = None,
    retries: int | None = None,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Deliver a tenant's events to a URL. The secret of its signatures is printed alone: SECRET=$(tenantry endpoint …).

    Parameters
    ----------
    id
        The tenant.
    name
        What to call the endpoint.
    url
        Where to deliver to, with https://.
    channel
        The channel whose events are delivered.
    order
        fifo: one after another, in order; parallel: as they come.
    max_in_flight
        Deliveries under way at once; 10, if left out.
    timeout
        Seconds for one attempt; 15, if left out.
    retries
        Attempts after the first; 12, if left out.
    json
        Print one JSON document.
    """
    spec = _spec(url, types, order, max_in_flight, timeout, retries)

    async def act(endpoints: PushEndpoints, administration: Administration) -> WithSecret:
        made = await endpoints.create(id, name, spec, actor(), channel=channel)
        return made, PushSecrets(administration.keyring).current(made)

    _show_secret(_act(options, act), json=json)


def list_endpoints(id: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """List the endpoints that a tenant's events are delivered to.

    Parameters
    ----------
    id
        The tenant.
    json
        Print one JSON document.
    """
    found = _act(options, lambda endpoints, _: endpoints.of(id))
    if json:
        return print_json([each.describe() for each in found])
    if not found:
        return say(f"{id} has no endpoints yet; `tenantry endpoint create {id} NAME URL` makes one.")
    rows = [(each.name, each.channel, ", ".join(each.types), each.order, each.state, each.url) for each in found]
    print_table(("endpoint", "channel", "types", "order", "state", "url"), rows)


def show(id: str, name: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Show an endpoint, and why it is disabled if it is.

    Parameters
    ----------
    id
        The tenant.
    name
        The endpoint.
    json
        Print one JSON document.
    """
    _show(_act(options, lambda endpoints, _: endpoints.get(id, name)), json=json)


def set_(
    id: str,
    name: str,
    /,
    *,
    url: str | None = None,
    types: Types = (),
    order: Order | None = None,
    max_in_flight: int | None = None,
    timeout: int | None = None,
    retries: int | None = None,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Change an endpoint; what is left out stays as it is.

    Parameters
    ----------
    id
        The tenant.
    name
        The endpoint.
    url
        Where to deliver to, with https://.
    order
        fifo: one after another, in order; parallel: as they come.
    max_in_flight
        Deliveries under way at once.
    timeout
        Seconds for one attempt.
    retries
        Attempts after the first.
    json
        Print one JSON document.
    """
    spec = _spec(url, types, order, max_in_flight, timeout, retries)
    _show(_act(options, lambda endpoints, _: endpoints.change(id, name, spec, actor())), json=json)


def rotate(id: str, name: str, /, *, overlap: str = "24h", json: bool = False, options: Options = DEFAULT) -> None:
    """Sign with a new secret, which is printed alone; for a while the former one signs beside it.

    Parameters
    ----------
    id
        The tenant.
    name
        The endpoint.
    overlap
        How long the former secret signs, too, like 1h; 0: no longer.
    json
        Print one JSON document.
    """
    seconds = 0 if overlap == "0" else parse_duration("--overlap", overlap)

    async def act(endpoints: PushEndpoints, administration: Administration) -> WithSecret:
        rotated = await endpoints.rotate(id, name, actor(), overlap=seconds)
        return rotated, PushSecrets(administration.keyring).current(rotated)

    _show_secret(_act(options, act), json=json)


def secret(id: str, name: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Print the secret that a receiver verifies signatures with. The audit log records it.

    Parameters
    ----------
    id
        The tenant.
    name
        The endpoint.
    json
        Print one JSON document.
    """

    async def act(endpoints: PushEndpoints, administration: Administration) -> WithSecret:
        found = await endpoints.reveal(id, name, actor())
        return found, PushSecrets(administration.keyring).current(found)

    _show_secret(_act(options, act), json=json)


def enable(id: str, name: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Deliver to a disabled endpoint again.

    Parameters
    ----------
    id
        The tenant.
    name
        The endpoint.
    json
        Print one JSON document.
    """
    _show_state(_act(options, lambda endpoints, _: endpoints.enable(id, name, actor())), json=json)


def disable(id: str, name: str, /, *, reason: str = "", json: bool = False, options: Options = DEFAULT) -> None:
    """Deliver nothing to an endpoint until it is enabled again.

    Parameters
    ----------
    id
        The tenant.
    name
        The endpoint.
    reason
        Why, for people.
    json
        Print one JSON document.
    """
    _show_state(_act(options, lambda endpoints, _: endpoints.disable(id, name, actor(), reason)), json=json)


def delete(id: str, name: str, /, *, json: bool = False, options: Options = DEFAULT) -> None:
    """Delete an endpoint, and its secret with it.

    Parameters
    ----------
    id
        The tenant.
    name
        The endpoint.
    json
        Print one JSON document.
    """
    _act(options, lambda endpoints, _: endpoints.delete(id, name, actor()))
    if json:
        return print_json({"tenant_id": id, "name": name, "outcome": "deleted"})
    say(f"endpoint {name} of {id} is deleted")


def _act(options: Options, act: Callable[[PushEndpoints, Administration], Awaitable[Result]]) -> Result:
    settings = options.load().settings
    return administer(
        options, lambda administration: act(PushEndpoints.from_settings(settings, administration), administration)
    )


def _spec(
    url: str | None,
    types: tuple[str, ...],
    order: Order | None,
    max_in_flight: int | None,
    timeout: int | None,
    retries: int | None,
) -> PushSpec:
    return PushSpec(
        url=url,
        types=types or None,
        order=order,
        max_in_flight=max_in_flight,
        timeout_seconds=timeout,
        retries=retries,
    )


def _show(endpoint: PushEndpoint, *, json: bool) -> None:
    if json:
        return print_json(endpoint.describe())
    until = endpoint.previous_secret_until
    print_table(
        ("endpoint", endpoint.name),
        [
            ("tenant", endpoint.tenant_id),
            ("url", endpoint.url),
            ("state", f"{endpoint.state}{': ' + endpoint.state_reason if endpoint.state_reason else ''}"),
            ("channel", endpoint.channel),
            ("types", ", ".join(endpoint.types)),
            ("order", endpoint.order),
            ("in flight", f"{endpoint.max_in_flight} at most"),
            ("timeout", f"{endpoint.timeout_seconds} s"),
            ("retries", str(endpoint.retries)),
            ("secret", f"version {endpoint.secret_version}{f', former until {format_time(until)}' if until else ''}"),
            ("created", format_time(endpoint.created_at)),
            ("changed", format_time(endpoint.updated_at)),
        ],
    )


def _show_state(endpoint: PushEndpoint, *, json: bool) -> None:
    if json:
        return print_json(endpoint.describe())
    say(f"endpoint {endpoint.name} of {endpoint.tenant_id} is {endpoint.state}")


def _show_secret(outcome: WithSecret, *, json: bool) -> None:
    endpoint, text = outcome
    if json:
        return print_json(endpoint.describe() | {"secret": text})
    print(text, flush=True)
    until = endpoint.previous_secret_until
    note(
        f"the secret of endpoint {endpoint.name} of {endpoint.tenant_id} is above"
        + (f"; the former one signs, too, until {format_time(until)}" if until else "")
    )
