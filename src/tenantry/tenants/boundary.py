"""The boundary names the tenant: the lane that an event came through says whose it is, whatever the event says."""

from __future__ import annotations

from typing import Final

import msgspec

from tenantry.errors import SubjectInvalid
from tenantry.event import Event, Subject
from tenantry.telemetry import signal
from tenantry.tenants.lanes import Lane

OVERRIDDEN = signal(
    "tenants.claim_overridden",
    "An event named another tenant than the one it came from.",
    "tenant",
    "claimed",
    level="warning",
)

TENANT_EXTENSION: Final = "tenantid"
_CLAIMS: Final = (TENANT_EXTENSION, "tenant")


def claim_for(lane: Lane, event: Event, subject: str) -> Event:
    """The event, as the lane's tenant's. `subject` is where it was stored; in another tenant's place it is refused."""
    stored = Subject.parse(subject)
    if (stored.tenant, stored.channel) != (lane.tenant, lane.channel):
        raise SubjectInvalid(f"expected a subject of {lane.prefix}, got: {subject[:120]!r}")
    for name in _CLAIMS:
        claimed = event.extensions.get(name, lane.tenant)
        if claimed != lane.tenant:
            OVERRIDDEN.emit(tenant=lane.tenant, claimed=str(claimed)[:64])
    extensions = {name: value for name, value in event.extensions.items() if name not in _CLAIMS}
    return msgspec.structs.replace(event, extensions=extensions | {TENANT_EXTENSION: lane.tenant})
