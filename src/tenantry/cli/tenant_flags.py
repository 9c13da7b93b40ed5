"""What `tenant create` and `tenant set` take, and the spec that it amounts to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from tenantry.cli.limits import parse_limits, without_limits
from tenantry.errors import TenantInvalid
from tenantry.tenants.quantities import parse_duration
from tenantry.tenants.spec import TenantSpec
from tenantry.tenants.tenant import Placement, Tenant, Tier


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TenantFlags:
    """What is left out stays as it is, or gets its default in a new tenant."""

    name: Annotated[str | None, Parameter(help="What people call it; the id, at first.")] = None
    plan: Annotated[str | None, Parameter(help="The plan that says its limits; pro, at first.")] = None
    tier: Annotated[
        Tier | None, Parameter(help="How it is kept apart; stream, at first. `tenant move` changes it later.")
    ] = None
    channel: Annotated[
        tuple[str, ...],
        Parameter(
            help="A channel to have, NAME or NAME=RETENTION, like orders=30d; events and properties, at first. "
            "Can be repeated."
        ),
    ] = ()
    limit: Annotated[
        tuple[str, ...],
        Parameter(
            help="A limit that differs from the plan's, NAME=VALUE, like storage=10GiB, publish_rate=500, retention=7d "
            "or, for one channel, retention.events=30d. Can be repeated."
        ),
    ] = ()
    cluster: Annotated[str | None, Parameter(help="The NATS cluster that holds its streams; '' takes it back.")] = None
    tag: Annotated[
        tuple[str, ...],
        Parameter(help="A tag that a NATS server must have to hold its streams. Can be repeated; '' takes all back."),
    ] = ()
    # `--lake` is the setting: where all tables are.
    lake: Annotated[
        str | None, Parameter(name="--tenant-lake", help="Where its tables are kept; '' takes it back.")
    ] = None

    @property
    def are_given(self) -> bool:
        return any(getattr(self, field.name) not in (None, ()) for field in fields(self))

    def spec(
        self, id: str, before: Tenant | None, *, no_channel: tuple[str, ...] = (), unset_limit: tuple[str, ...] = ()
    ) -> TenantSpec:
        """What is asked for; single values of something larger are put beside those that are there."""
        return TenantSpec(
            id=id,
            name=self.name,
            plan=self.plan,
            tier=self.tier,
            overrides=without_limits(parse_limits(self.limit), unset_limit) or None,
            placement=self._placement(before),
            channels=parse_channels(self.channel) or None,
            without_channels=no_channel,
        )

    def _placement(self, before: Tenant | None) -> dict[str, Any] | None:
        given = {
            "cluster": self.cluster,
            "lake": self.lake,
            "tags": tuple(filter(None, self.tag)) if self.tag else None,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        if not changes:
            return None
        placement: dict[str, Any] = msgspec.to_builtins(before.placement if before else Placement())
        return placement | changes


NOTHING = TenantFlags()


def parse_channels(given: Iterable[str]) -> dict[str, int | None]:
    """What `--channel` flags ask for: a retention, or none for the plan's."""
    channels: dict[str, int | None] = {}
    for text in given:
        name, separator, retention = (part.strip() for part in text.partition("="))
        if not name or (separator and not retention):
            raise TenantInvalid(
                "channel", f"expected --channel NAME or NAME=RETENTION, like orders or orders=30d, got: {text!r}"
            )
        channels[name] = parse_duration(f"--channel {name}", retention) if retention else None
    return channels
