"""The parameters that several routes have."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Query
from pydantic import StrictInt, StrictStr

from tenantry import application, event

TENANT_PATTERN: Final = f"^{event.TENANT_PATTERN}$"
NAME_PATTERN: Final = f"^{event.CHANNEL_PATTERN}$"
SERVICE_PATTERN: Final = f"^{application.NAME_PATTERN}$"
LARGEST_NUMBER: Final = (1 << 63) - 1

TenantId = Annotated[str, Path(pattern=TENANT_PATTERN, description="the tenant", examples=["acme"])]
PlanName = Annotated[str, Path(pattern=NAME_PATTERN, description="the plan", examples=["pro"])]
ChannelName = Annotated[str, Path(pattern=NAME_PATTERN, description="the channel", examples=["events"])]
ServiceName = Annotated[str, Path(pattern=SERVICE_PATTERN, description="the service", examples=["invoices"])]
TenantFilter = Annotated[
    str | None,
    Query(pattern=TENANT_PATTERN, description="whose; a key or token of one tenant need not say", examples=["acme"]),
]
Duration = StrictStr | StrictInt
"""Seconds, or a text like `7d`. What is neither is told so, not taken for a number."""
Limit = Annotated[int, Query(ge=1, le=500, description="how many, at most")]
