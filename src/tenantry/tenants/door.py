"""The claims of a tenant's account: its limits, its door into the platform's account, and who is locked out.

Users of the tenant live in this account. A user of the platform's account with permissions for one prefix would not be
kept apart: it could name a neighbour's subject as the reply of a request, and the server would publish there for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from tenantry.nats.claims import UNLIMITED_JETSTREAM, AccountLimits
from tenantry.tenants.credentials import Credential, consumer_subjects
from tenantry.tenants.lanes import NANOSECONDS, Lane, Lanes
from tenantry.tenants.quantities import UNLIMITED
from tenantry.tenants.tenant import Status, Tenant

OWN_CONNECTIONS: Final = 16
"""Room for connections of ours in a tenant's account."""
FOR_GOOD: Final = 4_102_444_800
"""Claims issued up to this second, in the year 2100, no longer hold. A key is used for one credential only."""
COPIES: Final = "$TENANTRY.COPY"
ANSWER_SECONDS: Final = 5
PUBLISH_SECONDS: Final = 30
FETCH_SECONDS: Final = 90
"""So long the server keeps a note of a request over a door that is not answered, or, for a fetch, not to its end."""

Import = dict[str, Any]


def platform_exports(app: str) -> list[dict[str, Any]]:
    """What the platform's account offers. Which of it a tenant may use, only the tenant's imports say."""

    def service(subject: str, response_type: str = "Singleton", within: int = ANSWER_SECONDS) -> dict[str, Any]:
        return {
            "name": subject,
            "subject": subject,
            "type": "service",
            "response_type": response_type,
            "response_threshold": within * NANOSECONDS,
        }

    def stream(subject: str) -> dict[str, Any]:
        return {"name": f"{subject} live", "subject": subject, "type": "stream"}

    return [
        service(f"{app}.tenants.>", within=PUBLISH_SECONDS),
        stream(f"{app}.tenants.>"),
        service("$JS.API.DIRECT.GET.>", "Stream"),
        service("$JS.API.CONSUMER.MSG.NEXT.>", "Stream", within=FETCH_SECONDS),
        service("$JS.ACK.>"),
        service("$JS.API.CONSUMER.CREATE.>"),
        service("$JS.API.CONSUMER.DELETE.>"),
        service("$JS.FC.>"),
        stream(f"{COPIES}.>"),
    ]


class Door:
    """Writes the claims of tenants' accounts."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def limits(self, tenant: Tenant, lanes: Sequence[Lane], *, unbounded: bool = False) -> AccountLimits:
        """What the server holds the account to; `unbounded` leaves it to the streams how much they store."""
        limits = tenant.limits
        inside = [lane for lane in lanes if self.is_inside(lane)]
        if unbounded or inside:
            bounds = UNLIMITED_JETSTREAM if unbounded else self._jetstream_limits(tenant, len(inside))
            own_connections = OWN_CONNECTIONS
        else:
            bounds, own_connections = AccountLimits(), 0
        return msgspec.structs.replace(
            bounds,
            conn=limits.connections + own_connections,
            # A leaf node could reach through the door: there is none while a lane is elsewhere.
            leaf=limits.leaf_nodes if len(inside) == len(lanes) else 0,
            payload=limits.payload,
        )

    def _jetstream_limits(self, tenant: Tenant, streams: int) -> AccountLimits:
        limits = tenant.limits
        is_bounded = limits.storage != UNLIMITED
        copies = streams * self._lanes.replicas(tenant)
        return AccountLimits(
            disk_storage=limits.storage * copies if is_bounded else UNLIMITED,
            disk_max_stream_bytes=limits.storage if is_bounded else 0,
            streams=streams,
            consumer=limits.consumers,
            max_ack_pending=limits.in_flight,
            max_bytes_required=is_bounded,
        )

    def imports(self, lanes: Sequence[Lane], credentials: Sequence[Credential]) -> list[Import]:
        """What leads out of the account: for each lane that is elsewhere, its own subjects."""
        outside = [lane for lane in lanes if not self.is_inside(lane)]
        imports: list[Import] = []
        for lane in outside:
            imports.append(self._stream(lane.subjects))
            if not lane.is_shared:
                imports.append(self._service(lane.subjects))
            imports += [self._service(subject) for subject in lane.direct_get()]
            granted = {each.consumer for each in credentials if each.consumer and each.grants_consumer_of(lane.channel)}
            for consumer in sorted(granted):
                imports += [self._service(subject) for subject in consumer_subjects(lane, consumer)]
        return imports

    def copy_imports(self, origins: Sequence[Lane], token: str) -> list[Import]:
        """What streams in the account need while they copy those in the platform's account.

        A tenant's user cannot publish there, but could name it as the reply of a request: so the subjects hold a token
        that nobody can guess, and none of them is complete without what the server puts behind it.
        """
        imports = [each for origin in origins for each in self._copy_imports(origin, token)]
        # Two lanes may come from one shared stream.
        return list({(each["subject"], each["type"]): each for each in imports}.values())

    def _copy_imports(self, origin: Lane, token: str) -> list[Import]:
        asked = [f"CONSUMER.{act}.{origin.stream}.>" for act in ("CREATE", "DELETE")]
        return [
            *(self._service(f"$JS.API.{each}") | {"local_subject": f"{copy_api(token)}.{each}"} for each in asked),
            self._service(f"$JS.FC.{origin.stream}.>"),
            self._stream(f"{copy_delivery(origin, token)}.>"),
        ]

    def revoked(self, tenant: Tenant, credentials: Sequence[Credential]) -> dict[str, int]:
        """Who is locked out. Users of ours never are: somebody has to look after the data, and in the end erase it."""
        # The server's clock may be behind ours.
        valid = [each for each in credentials if not each.is_expired(datetime.now(UTC) - timedelta(days=1))]
        return {
            each.user_key: FOR_GOOD for each in valid if each.revoked_at is not None or tenant.status != Status.ACTIVE
        }

    def is_inside(self, lane: Lane) -> bool:
        """Whether the stream is in the tenant's own account."""
        return lane.account != self._lanes.platform_account

    def _service(self, subject: str) -> Import:
        return self._import(subject, "service")

    def _stream(self, subject: str) -> Import:
        return self._import(subject, "stream")

    def _import(self, subject: str, kind: str) -> Import:
        return {"name": f"{subject} {kind}", "subject": subject, "account": self._lanes.platform_account, "type": kind}


def copy_api(token: str) -> str:
    """What JetStream's API is called in an account that copies from the platform's."""
    return f"{COPIES}.{token}.API"


def copy_delivery(origin: Lane, token: str) -> str:
    """Where the events that are copied are delivered."""
    return f"{COPIES}.{token}.{origin.tenant}.{origin.channel}"
