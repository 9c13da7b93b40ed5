"""Tenants and limits, as the API shows them."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tenantry.tenants.tenant import Status, Tenant, Tier


class LimitsDocument(BaseModel):
    """What a tenant may use. Durations are in seconds, sizes in bytes; -1 is no limit."""

    model_config = ConfigDict(extra="allow")

    retention: dict[str, int] = Field(description="how long events are kept, by channel; `*` is for all others")
    storage: int = Field(description="bytes that each channel may store")
    messages: int = Field(description="events that each channel may store")
    payload: int = Field(description="bytes of the largest event")
    publish_rate: int = Field(description="events a second, on average")
    publish_burst: int = Field(description="events at once")
    in_flight: int = Field(description="events handed out and not yet acknowledged, per subscription")
    batch: int = Field(description="events that are published together")
    weight: int = Field(description="the share of a tenant where several wait")
    connections: int = Field(description="connections to NATS with the tenant's credentials")
    consumers: int = Field(description="durable consumers, over all channels")
    leaf_nodes: int = Field(description="leaf nodes that the tenant may connect")
    replicas: int = Field(description="copies of each stream, if the cluster can hold so many")
    consumer_replicas: int = Field(description="copies of each consumer's state")
    discard: str = Field(description="what gives way when a channel is full: the `old`est event, or the `new` one")
    duplicate_window: int = Field(description="seconds within which an event with the same id is stored once")
    dedicated: bool = Field(description="whether its pipelines run in queries of their own")
    table_retention: int = Field(description="seconds for which rows of its tables are kept; -1: for good")


class PlacementDocument(BaseModel):
    """Where a tenant's data may lie."""

    model_config = ConfigDict(extra="forbid")

    cluster: str = Field("", description="the NATS cluster that holds its streams")
    tags: list[str] = Field([], description="tags that a NATS server must have to hold its streams")
    lake: str = Field("", description="where its tables are kept")


class ChannelDocument(BaseModel):
    """A kind of data with a retention of its own."""

    retention: int = Field(description="seconds for which events are kept")


class TenantDocument(BaseModel):
    """A tenant: what is wanted of it, and whether the servers have it."""

    id: str
    name: str
    plan: str
    tier: Tier
    status: Status
    ready: bool = Field(description="whether the servers have all that is wanted")
    problem: str = Field(description="why they do not, if they do not; it is tried again by itself")
    channels: dict[str, ChannelDocument]
    placement: PlacementDocument
    overrides: dict[str, JsonValue] = Field(description="limits that differ from the plan's")
    limits: LimitsDocument = Field(description="the limits in force")
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, tenant: Tenant) -> TenantDocument:
        return cls.model_validate(tenant.describe())
