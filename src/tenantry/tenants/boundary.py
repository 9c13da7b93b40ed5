"""The boundary names the tenant: the lane that an event came through says whose it is, whatever the event says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tenantry.errors import SubjectInvalid
from tenantry.event import Event, Extension, Subject
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
CLAIMS: Final = (TENANT_EXTENSION, "tenant")
"""Extensions by which an event may say whose it is."""


def claim_for(lane: Lane, event: Event, subject: str) -> Event:
    """The event, as the lane's tenant's. `subject` is where it was stored; in another tenant's place it is refused."""
    stored = Subject.parse(subject)
    if (stored.tenant, stored.channel) != (lane.tenant, lane.channel):
        raise SubjectInvalid(f"expected a subject of {lane.prefix}, got: {subject[:120]!r}")
    override_claims(lane.tenant, event.extensions)
    extensions = {name: value for name, value in event.extensions.items() if name not in CLAIMS}
    return msgspec.structs.replace(event, extensions=extensions | {TENANT_EXTENSION: lane.tenant})


def override_claims(tenant: str, extensions: Mapping[str, Extension]) -> None:
    """Tell if an event says that it is another tenant's."""
    for name in CLAIMS:
        claimed = extensions.get(name, tenant)
        if claimed != tenant:
            OVERRIDDEN.emit(tenant=tenant, claimed=str(claimed)[:64])
