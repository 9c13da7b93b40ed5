"""The claims of a tenant's account: its limits, its door into the platform's account, and who is locked out.

Users of the tenant live in this account. A user of the platform's account with permissions for one prefix would not be
kept apart: it could name a neighbour's subject as the reply of a request, and the server would publish there for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tenantry.nats.claims import UNLIMITED_JETSTREAM, AccountLimits
from tenantry.tenants.credentials import Credential, consumer_subjects
from tenantry.tenants.lanes import Lane, Lanes
from tenantry.tenants.quantities import UNLIMITED
from tenantry.tenants.tenant import Status, Tenant

OWN_CONNECTIONS: Final = 4
"""Room for connections of ours in a tenant's account."""
FOR_GOOD: Final = 4_102_444_800
"""Claims issued up to this second, in the year 2100, no longer hold. A key is used for one credential only."""
MOVE_API: Final = "$TENANTRY.API"
MOVE_DELIVERY: Final = "$TENANTRY.MOVE"

Import = dict[str, Any]


def platform_exports(app: str) -> list[dict[str, Any]]:
    """What the platform's account offers. Which of it a tenant may use, only the tenant's imports say."""

    def service(subject: str, response_type: str = "Singleton") -> dict[str, Any]:
        return {"name": subject, "subject": subject, "type": "service", "response_type": response_type}

    def stream(subject: str) -> dict[str, Any]:
        return {"name": f"{subject} live", "subject": subject, "type": "stream"}

    return [
        service(f"{app}.tenants.>"),
        stream(f"{app}.tenants.>"),
        service("$JS.API.DIRECT.GET.>", "Stream"),
        service("$JS.API.CONSUMER.MSG.NEXT.>", "Stream"),
        service("$JS.ACK.>"),
        service("$JS.API.CONSUMER.CREATE.>"),
        service("$JS.API.CONSUMER.DELETE.>"),
        service("$JS.FC.>"),
        stream(f"{MOVE_DELIVERY}.>"),
    ]


class Door:
    """Writes the claims of tenants' accounts."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def limits(self, tenant: Tenant, lanes: Sequence[Lane], *, unbounded: bool = False) -> AccountLimits:
        """What the server holds the account to; `unbounded` leaves it to the streams how much they store."""
        limits = tenant.limits
        if unbounded:
            return msgspec.structs.replace(
                UNLIMITED_JETSTREAM,
                conn=limits.connections + OWN_CONNECTIONS,
                leaf=limits.leaf_nodes,
                payload=limits.payload,
            )
        inside = [lane for lane in lanes if self.is_inside(lane)]
        if not inside:
            return AccountLimits(conn=limits.connections, leaf=limits.leaf_nodes, payload=limits.payload)
        copies = len(inside) * self._lanes.replicas(tenant)
        return AccountLimits(
            conn=limits.connections + OWN_CONNECTIONS,
            leaf=limits.leaf_nodes,
            payload=limits.payload,
            disk_storage=limits.storage * copies if limits.storage != UNLIMITED else UNLIMITED,
            disk_max_stream_bytes=limits.storage if limits.storage != UNLIMITED else 0,
            streams=len(inside),
            consumer=limits.consumers,
            max_ack_pending=limits.in_flight,
            max_bytes_required=limits.storage != UNLIMITED,
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

    def copy_imports(self, origins: Sequence[Lane]) -> list[Import]:
        """What streams in the account need while they copy those in the platform's account."""
        imports = [each for origin in origins for each in self._copy_imports(origin)]
        # Two lanes may come from one shared stream.
        return list({(each["subject"], each["type"]): each for each in imports}.values())

    def _copy_imports(self, origin: Lane) -> list[Import]:
        delivery = f"{MOVE_DELIVERY}.{origin.tenant}.{origin.channel}.>"
        asked = [f"CONSUMER.{act}.{origin.stream}{rest}" for act in ("CREATE", "DELETE") for rest in ("", ".>")]
        return [
            *(self._service(f"$JS.API.{each}") | {"local_subject": f"{MOVE_API}.{each}"} for each in asked),
            self._service(f"$JS.FC.{origin.stream}.>"),
            self._stream(delivery),
        ]

    def revoked(self, tenant: Tenant, credentials: Sequence[Credential]) -> dict[str, int]:
        """Who is locked out. Users of ours never are: somebody has to look after the data, and in the end erase it."""
        now = datetime.now(UTC)
        valid = [each for each in credentials if not (each.expires_at and each.expires_at < now)]
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
