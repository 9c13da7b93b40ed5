"""Streams that are ours: created, changed, and told apart from those that are not."""

from __future__ import annotations

from typing import Any, Final

from tenantry.errors import JetStreamRefused, TenantConflict
from tenantry.nats.jetstream import NAME_IN_USE, Config, JetStream
from tenantry.tenants.lanes import CHANNEL_MARK, POOL_MARK, TENANT_MARK

MARKS: Final = (TENANT_MARK, CHANNEL_MARK, POOL_MARK)
_SERVER_DEFAULTS: Final[Config] = {
    "max_msgs": -1,
    "max_bytes": -1,
    "max_msgs_per_subject": -1,
    "mirror_direct": False,
    "placement": None,
    "mirror": None,
}


async def ensure_stream(jetstream: JetStream, config: Config) -> None:
    """Create the stream, or bring one that is ours to this configuration. One that is not ours is not touched."""
    try:
        await jetstream.create_stream(config)
        return
    except JetStreamRefused as refused:
        if refused.err_code != NAME_IN_USE:
            raise
    found = await jetstream.stream(config["name"])
    if found is None:
        # Somebody deleted it in between.
        await jetstream.create_stream(config)
        return
    require_ours(config, found["config"])
    if differences(config, found["config"]):
        await jetstream.update_stream(config)


def require_ours(wanted: Config, found: Config) -> None:
    if marks(found) != marks(wanted):
        raise TenantConflict(
            f"there is a stream {wanted['name']} already, and it is not Tenantry's for this lane; "
            "rename or delete it, and this goes on by itself"
        )


def marks(config: Config) -> dict[str, str]:
    """What says whose stream this is; empty if it is not Tenantry's."""
    metadata = config.get("metadata") or {}
    return {name: metadata[name] for name in MARKS if name in metadata}


def differences(wanted: Config, found: Config) -> dict[str, tuple[Any, Any]]:
    """Fields that we have a say in and that are not as we want them: found and wanted."""
    fields = wanted.keys() | _SERVER_DEFAULTS.keys()
    pairs = {field: (_value(found, field), _value(wanted, field)) for field in fields if field != "metadata"}
    return {field: pair for field, pair in sorted(pairs.items()) if pair[0] != pair[1]}


def _value(config: Config, field: str) -> Any:
    value = config.get(field, _SERVER_DEFAULTS.get(field))
    return sorted(value) if field == "subjects" and value else value
