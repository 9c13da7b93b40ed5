"""Plans and quantities, as people write them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantry.cli.limits import format_limits, parse_limits
from tenantry.errors import TenantInvalid
from tenantry.tenants.plans import SHIPPED, Limits, read_limits, read_overrides
from tenantry.tenants.quantities import format_duration, format_size, parse_duration, parse_size

PRO = next(plan.limits for plan in SHIPPED if plan.name == "pro")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("24h", 86_400), ("7d", 604_800), ("2w", 1_209_600), (30, 30), ("30", 30)],
)
def test_durations_are_read(text: str | int, seconds: int) -> None:
    assert parse_duration("retention", text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 512 << 20), ("10GB", 10**10), ("1 kib", 1024), ("7b", 7), (1024, 1024), ("-1", -1), (-1, -1)],
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_size("storage", text) == size


@pytest.mark.parametrize(
    "text", ["", "7", "soon", "7 days", "-1d", "0s", "1.5h", 0, -3, True, None, 1.5, [], "9" * 40 + "d"]
)
def test_what_is_no_duration_is_refused(text: object) -> None:
    if text == "7":
        assert parse_duration("retention", text) == 7
        return
    with pytest.raises(TenantInvalid, match=r"expected retention to be a positive duration .*, got: "):
        parse_duration("retention", text)


@pytest.mark.parametrize("text", ["", "big", "0", 0, -2, "-2MiB", "1PB", True, None, 1.5])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(TenantInvalid, match="expected storage to be a size"):
        parse_size("storage", text)


@given(st.integers(1, 3 * 10**9))
def test_durations_survive_being_written_and_read(seconds: int) -> None:
    assert parse_duration("retention", format_duration(seconds)) == seconds


@given(st.integers(1, 2**50))
def test_sizes_survive_being_written_and_read(size: int) -> None:
    assert parse_size("storage", format_size(size)) == size


@pytest.mark.parametrize("plan", SHIPPED, ids=lambda plan: plan.name)
def test_shipped_plans_are_valid_and_survive_being_stored(plan: object) -> None:
    limits = plan.limits  # type: ignore[attr-defined]
    stored = msgspec.json.decode(msgspec.json.encode(limits))
    assert read_limits(stored) == limits
    assert msgspec.convert(stored, Limits) == limits


def test_an_override_replaces_one_value_and_retention_is_merged_by_channel() -> None:
    given_limits = {"storage": "1GiB", "retention": {"events": "1d"}}
    merged = read_limits(given_limits, PRO)
    assert (merged.storage, merged.weight) == (1 << 30, PRO.weight)
    assert merged.retention == PRO.retention | {"events": 86_400}
    assert merged.retention_of("events") == 86_400
    assert merged.retention_of("properties") == PRO.retention_of("properties")
    assert merged.retention_of("other") == PRO.retention["*"]
    assert read_overrides(given_limits) == {"storage": 1 << 30, "retention": {"events": 86_400}}


def test_one_retention_is_for_all_channels_that_are_not_named() -> None:
    assert read_limits({"retention": "2h"}, PRO).retention == {"*": 7200, "properties": 86_400}
    assert read_overrides({"retention": "2h"}) == {"retention": {"*": 7200}}


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"speed": 1}, "speed"),
        ({"weight": 0}, "weight"),
        ({"weight": "heavy"}, "weight"),
        ({"weight": 1.5}, "weight"),
        ({"replicas": 6}, "replicas"),
        ({"discard": "middle"}, "discard"),
        ({"messages": 0}, "messages"),
        ({"payload": -1}, "payload"),
        ({"retention": {"events": "x"}}, "retention.events"),
        ({"retention": []}, "retention"),
        ({"retention": {"a b": "1d"}}, "retention"),
        ({"retention": {"\x00": "1d"}}, "retention"),
        ({"retention": "101w" + "0" * 9}, "retention"),
        ({"storage": 10**30}, "storage"),
        ({"messages": 10**30}, "messages"),
        ({"payload": "1GiB"}, "payload"),
        ({"duplicate_window": "999999999999999w"}, "duplicate_window"),
        ({"connections": True}, "connections"),
        ({"dedicated": "perhaps"}, "dedicated"),
        ({"dedicated": 1}, "dedicated"),
        ({"dedicated": None}, "dedicated"),
        ({"table_retention": 0}, "table_retention"),
        ({"table_retention": -2}, "table_retention"),
        ({"table_retention": "forever"}, "table_retention"),
        ({"table_retention": True}, "table_retention"),
    ],
)
def test_a_limit_that_is_wrong_is_named(limits: dict[str, object], field: str) -> None:
    with pytest.raises(TenantInvalid) as refused:
        read_limits(limits, PRO)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("text", "said"),
    [(True, True), (False, False), ("true", True), ("false", False), (" Yes ", True), ("NO", False)],
)
def test_whether_pipelines_are_dedicated_is_read_as_people_say_it(text: object, said: bool) -> None:
    assert read_overrides({"dedicated": text}) == {"dedicated": said}


@pytest.mark.parametrize(("text", "seconds"), [("30d", 2_592_000), (60, 60), (-1, -1), ("-1", -1)])
def test_rows_are_kept_for_a_time_or_for_good(text: object, seconds: int) -> None:
    assert read_overrides({"table_retention": text}) == {"table_retention": seconds}


def test_only_enterprise_has_queries_of_its_own_and_all_keep_their_rows() -> None:
    assert {plan.name: plan.limits.dedicated for plan in SHIPPED} == {"free": False, "pro": False, "enterprise": True}
    assert {plan.limits.table_retention for plan in SHIPPED} == {-1}


def test_a_plan_that_was_stored_before_there_were_pipelines_is_still_read() -> None:
    stored = msgspec.to_builtins(PRO)
    del stored["dedicated"], stored["table_retention"]
    limits = msgspec.convert(stored, Limits)
    assert (limits.dedicated, limits.table_retention) == (False, -1)
    assert limits == read_limits(stored) == PRO


def test_limits_are_shown_as_people_write_them() -> None:
    shown = format_limits(read_limits({"dedicated": "yes", "table_retention": "30d"}, PRO))
    assert (shown["dedicated"], shown["table_retention"]) == ("yes", "30d")
    assert (format_limits(PRO)["dedicated"], format_limits(PRO)["table_retention"]) == ("no", "unlimited")
    assert read_overrides(parse_limits(["dedicated=no", "table_retention=unlimited"])) == {
        "dedicated": False,
        "table_retention": -1,
    }
