"""Plans: named limits, of which a tenant may override single values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from tenantry.errors import TenantInvalid
from tenantry.event import is_name
from tenantry.tenants.quantities import UNLIMITED, parse_duration, parse_size

ANY_CHANNEL: Final = "*"
DAY: Final = 86_400
GIB: Final = 1 << 30
MOST_MESSAGES: Final = 10**15
LARGEST_PAYLOAD: Final = 64 << 20
"""More than that no NATS server takes."""

Discard = Literal["old", "new"]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tenant may use. Durations are in seconds, sizes in bytes; -1 is no limit where it is allowed."""

    retention: dict[str, int]
    """How long events are kept, by channel; `*` is for channels that are not named."""
    storage: int
    """Bytes that each channel may store."""
    messages: int = UNLIMITED
    """Events that each channel may store."""
    payload: int = 1 << 20
    """Bytes of the largest event."""
    publish_rate: int
    """Events a second, on average."""
    publish_burst: int
    """Events at once."""
    in_flight: int = 500
    """Events handed out and not yet acknowledged, per subscription."""
    batch: int = 500
    """Events that are published together."""
    weight: int = 1
    """The share of a tenant where several wait."""
    connections: int
    """Connections to NATS with the tenant's credentials."""
    consumers: int
    """Durable consumers, over all channels."""
    leaf_nodes: int = 0
    """Leaf nodes that the tenant may connect."""
    replicas: int = 1
    """Copies of each stream, if the cluster can hold so many."""
    consumer_replicas: int = 1
    """Copies of each consumer's state. More than one counts against the cluster's budget of replicated assets."""
    discard: Discard = "old"
    """What gives way when a channel is full: the oldest event, or the new one."""
    duplicate_window: int = 120
    """Seconds within which an event with the same id is stored once."""
    dedicated: bool = False
    """Whether its pipelines run in queries of their own."""
    table_retention: int = UNLIMITED
    """Seconds for which rows of its tables are kept; -1: for good."""

    def retention_of(self, channel: str) -> int:
        return self.retention.get(channel, self.retention[ANY_CHANNEL])


class Plan(msgspec.Struct, frozen=True):
    name: str
    limits: Limits


SHIPPED: Final = (
    Plan(
        "free",
        Limits(
            retention={ANY_CHANNEL: DAY},
            storage=256 << 20,
            payload=256 << 10,
            publish_rate=50,
            publish_burst=500,
            in_flight=100,
            batch=100,
            weight=1,
            connections=10,
            consumers=5,
        ),
    ),
    Plan(
        "pro",
        Limits(
            retention={ANY_CHANNEL: 7 * DAY, "properties": DAY},
            storage=10 * GIB,
            publish_rate=1_000,
            publish_burst=10_000,
            weight=4,
            connections=100,
            consumers=20,
            leaf_nodes=1,
            replicas=3,
        ),
    ),
    Plan(
        "enterprise",
        Limits(
            retention={ANY_CHANNEL: 30 * DAY, "properties": 7 * DAY},
            storage=100 * GIB,
            publish_rate=10_000,
            publish_burst=100_000,
            in_flight=5_000,
            batch=1_000,
            weight=16,
            connections=1_000,
            consumers=100,
            leaf_nodes=10,
            replicas=3,
            dedicated=True,
        ),
    ),
)
DEFAULT_PLAN: Final = "pro"

_SIZES: Final = ("storage", "payload")
_ANSWERS: Final = {"true": True, "yes": True, "false": False, "no": False}
_POSITIVE: Final = ("publish_rate", "publish_burst", "in_flight", "batch", "weight", "connections", "consumers")
_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(_POSITIVE, (1, 10**9)),
    "weight": (1, 1000),
    "batch": (1, 100_000),
    "leaf_nodes": (0, 10_000),
    "replicas": (1, 5),
    "consumer_replicas": (1, 5),
}


def read_limits(given: Mapping[str, Any], under: Limits | None = None) -> Limits:
    """Limits from what a person wrote, over those of a plan; TenantInvalid names the value that is wrong."""
    values = read_overrides(given)
    if under is not None:
        if "retention" in values:
            values["retention"] = under.retention | values["retention"]
        return msgspec.structs.replace(under, **values)
    try:
        limits = Limits(**values)
    except TypeError as problem:
        raise TenantInvalid("limits", f"a plan is not complete: {problem}") from None
    if ANY_CHANNEL not in limits.retention:
        raise TenantInvalid("retention", f"expected retention to have a value for {ANY_CHANNEL!r}, all other channels")
    return limits


def read_overrides(given: Mapping[str, Any]) -> dict[str, Any]:
    """Single limits from what a person wrote, in the form in which they are kept."""
    for field in given:
        if field not in Limits.__struct_fields__:
            known = ", ".join(Limits.__struct_fields__)
            raise TenantInvalid(field, f"expected a limit, one of {known}, got: {field!r}")
    return {field: _READERS.get(field, _read_number)(field, value) for field, value in given.items()}


def _read_retention(field: str, value: object) -> dict[str, int]:
    if not isinstance(value, Mapping):
        return {ANY_CHANNEL: parse_duration(field, value)}
    for channel in value:
        if channel != ANY_CHANNEL and not is_name("channel", str(channel)):
            raise TenantInvalid(field, f"expected {field} to be by channel, or {ANY_CHANNEL!r}, got: {str(channel)!r}")
    return {str(channel): parse_duration(f"{field}.{channel}", each) for channel, each in value.items()}


def _read_discard(field: str, value: object) -> str:
    if value not in ("old", "new"):
        raise TenantInvalid(field, f"expected {field} to be old or new, got: {value!r}")
    return str(value)


def _read_messages(field: str, value: object) -> int:
    number = _whole(field, value)
    if not 0 < number <= MOST_MESSAGES and number != UNLIMITED:
        raise TenantInvalid(
            field, f"expected {field} to be from 1 to {MOST_MESSAGES:,}, or -1 for no limit, got: {str(value)[:40]}"
        )
    return number


def _read_dedicated(field: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    said = _ANSWERS.get(value.strip().lower()) if isinstance(value, str) else None
    if said is None:
        raise TenantInvalid(field, f"expected {field} to be true or false, got: {value!r}")
    return said


def _read_table_retention(field: str, value: object) -> int:
    if not isinstance(value, bool) and value in (UNLIMITED, str(UNLIMITED)):
        return UNLIMITED
    try:
        return parse_duration(field, value)
    except TenantInvalid as problem:
        raise TenantInvalid(field, f"{problem}; -1 keeps them for good") from None


def _read_payload(field: str, value: object) -> int:
    size = parse_size(field, value)
    if size == UNLIMITED or size > LARGEST_PAYLOAD:
        raise TenantInvalid(field, f"expected {field} to be a size up to 64MiB, got: {value!r}")
    return size


def _read_number(field: str, value: object) -> int:
    number = _whole(field, value)
    least, most = _RANGES[field]
    if not least <= number <= most:
        raise TenantInvalid(field, f"expected {field} to be from {least} to {most}, got: {number}")
    return number


def _whole(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TenantInvalid(field, f"expected {field} to be a whole number, got: {value!r}")
    try:
        return int(value)
    except ValueError:
        raise TenantInvalid(field, f"expected {field} to be a whole number, got: {value!r}") from None


_READERS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "retention": _read_retention,
    "storage": parse_size,
    "payload": _read_payload,
    "messages": _read_messages,
    "discard": _read_discard,
    "duplicate_window": parse_duration,
    "dedicated": _read_dedicated,
    "table_retention": _read_table_retention,
}
