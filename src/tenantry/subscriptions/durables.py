"""The durable consumer of a service on a lane: made when it is first needed, and verified if it was there."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from tenantry.application import Subscriber
from tenantry.errors import JetStreamRefused, SubscriptionConflict
from tenantry.event import EVERY_TYPE
from tenantry.nats.jetstream import Config, JetStream
from tenantry.tenants.lanes import NANOSECONDS, Lane

SERVICE_MARK: Final = "tenantry.service"

_EXISTS: Final = frozenset({10013, 10148})
_FIXED: Final = {"ack_policy": "explicit", "deliver_subject": None, "replay_policy": "instant"}
_BEGINNING: Final = ("deliver_policy", "opt_start_seq", "opt_start_time")
_CHANGEABLE: Final = ("ack_wait", "max_ack_pending", "filters", "num_replicas", "max_deliver")


def durable_name(lane: Lane, subscriber: Subscriber, part: int) -> str:
    return lane.consumer_name(f"{subscriber.name}~{part}" if subscriber.parts > 1 else subscriber.name)


def durable_config(
    lane: Lane, subscriber: Subscriber, part: int, *, in_flight: int, replicas: int, since: datetime
) -> Config:
    """`since` is when the service came to be."""
    name = durable_name(lane, subscriber, part)
    config: Config = {
        "name": name,
        "durable_name": name,
        "ack_policy": "explicit",
        "ack_wait": round(subscriber.ack_wait * NANOSECONDS),
        "max_ack_pending": in_flight,
        # How often is for the worker to decide, which keeps what it gives up.
        "max_deliver": -1,
        "deliver_policy": "all",
        "replay_policy": "instant",
        "num_replicas": replicas,
        "filter_subjects": filters(lane, subscriber.types),
        "metadata": {SERVICE_MARK: subscriber.name},
    }
    if subscriber.start == "now":
        config |= {"deliver_policy": "by_start_time", "opt_start_time": since.isoformat()}
    return config


def filters(lane: Lane, types: tuple[str, ...]) -> list[str]:
    """The subjects that are wanted. JetStream takes none that overlap: then it is all, and workers pass over some."""
    wanted = list(dict.fromkeys(types))
    needed = [each for each in wanted if not any(_covers(other, each) for other in wanted if other != each)]
    if any(_overlap(one, other) for number, one in enumerate(needed) for other in needed[:number]):
        needed = [EVERY_TYPE]
    return [f"{lane.prefix}.{each}" for each in needed]


async def ensure_durable(jetstream: JetStream, stream: str, config: Config) -> tuple[Config, bool]:
    """Its state, and whether it was made just now. SubscriptionConflict if it is there and is not one for this."""
    found = await jetstream.consumer(stream, config["name"])
    if found is None:
        if (successor := await jetstream.consumer(stream, _successor(config["name"]))) is not None:
            return await _succeed(jetstream, stream, config | _beginning(successor["config"])), False
        try:
            return await jetstream.create_consumer(stream, config, action="create"), True
        except JetStreamRefused as refused:
            if refused.err_code not in _EXISTS:
                raise
            found = await jetstream.consumer(stream, config["name"])
            if found is None:
                raise
    is_ours = (found["config"].get("metadata") or {}).get(SERVICE_MARK) == config["metadata"][SERVICE_MARK]
    _require_fit(stream, found["config"], config, fields=tuple(_FIXED) if is_ours else (*_FIXED, *_CHANGEABLE))
    if is_ours and any(_value(found["config"], field) != _value(config, field) for field in _CHANGEABLE):
        # Where it began is not for us to change, and the server would refuse.
        started = {field: value for field, value in config.items() if field not in _BEGINNING}
        found = await jetstream.create_consumer(stream, started | _beginning(found["config"]), action="update")
    return found, False


async def renew_durable(jetstream: JetStream, stream: str, state: Config) -> Config:
    """Another one in its place, which goes on where it was: whoever still asks the old one for more gets nothing.

    Where it goes on is kept by a successor until it is done; a crash in between loses nothing.
    """
    config = {field: value for field, value in state["config"].items() if field not in _BEGINNING}
    config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": int(state["ack_floor"]["stream_seq"]) + 1}
    name = _successor(config["name"])
    await jetstream.create_consumer(stream, config | {"name": name, "durable_name": name})
    await jetstream.delete_consumer(stream, config["name"])
    return await _succeed(jetstream, stream, config)


async def _succeed(jetstream: JetStream, stream: str, config: Config) -> Config:
    made = await jetstream.create_consumer(stream, config)
    await jetstream.delete_consumer(stream, _successor(config["name"]))
    return made


def _successor(name: str) -> str:
    return f"{name}~anew"


def _beginning(config: Config) -> Config:
    """Where a consumer began."""
    return {field: config[field] for field in _BEGINNING if field in config}


def _require_fit(stream: str, found: Config, wanted: Config, fields: tuple[str, ...]) -> None:
    for field in fields:
        has, needs = _value(found, field), _value({**_FIXED, **wanted}, field)
        if has != needs:
            raise SubscriptionConflict(
                f"somebody else made the consumer {wanted['name']} on stream {stream}, and it does not fit: "
                f"expected its {field} to be {needs!r}, got: {has!r}; change it, delete it, or name the subscriber "
                "otherwise"
            )


def _value(config: Config, field: str) -> Any:
    if field == "filters":
        return sorted(config.get("filter_subjects") or [config.get("filter_subject", "")])
    value = config.get(field)
    return None if value == "" else (1 if field == "num_replicas" and not value else value)


def _covers(one: str, other: str) -> bool:
    """Whether all that matches the other type matches the one."""
    words, others = one.split("."), other.split(".")
    for number, word in enumerate(words):
        if word == ">":
            return len(others) > number
        if number >= len(others) or others[number] == ">" or (word != "*" and word != others[number]):
            return False
    return len(words) == len(others)


def _overlap(one: str, other: str) -> bool:
    """Whether something could match both."""
    words, others = one.split("."), other.split(".")
    for word, counterpart in zip(words, others, strict=False):
        if ">" in (word, counterpart):
            return True
        if "*" not in (word, counterpart) and word != counterpart:
            return False
    return len(words) == len(others)
