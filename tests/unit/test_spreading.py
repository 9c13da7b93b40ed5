"""Who has whom, by rendezvous hashing."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tenantry.subscriptions.spreading import Member, Partition, Spread

names = st.text("abcdefghij0123456789-", min_size=1, max_size=12)


def members(ids: set[str]) -> list[Member]:
    return [Member(id=id, services=frozenset({"orders"})) for id in ids]


def owners(workers: list[Member], tenants: set[str]) -> dict[str, str | None]:
    spread = Spread(workers)
    return {tenant: spread.owner(Partition("orders", tenant, 0), "pro") for tenant in tenants}


@given(st.sets(names, min_size=1, max_size=8), names, st.sets(names, min_size=1, max_size=40))
def test_whoever_comes_takes_and_whoever_goes_leaves_behind_only_what_is_its_own(
    workers: set[str], another: str, tenants: set[str]
) -> None:
    before, after = owners(members(workers), tenants), owners(members(workers | {another}), tenants)
    for tenant in tenants:
        assert after[tenant] in (before[tenant], another)
    if another not in workers:
        assert owners(members(workers | {another} - {another}), tenants) == before


def test_tenants_are_spread_evenly() -> None:
    workers = members({f"worker-{number}" for number in range(4)})
    counts = Counter(owners(workers, {f"tenant-{number}" for number in range(2000)}).values())
    assert all(400 < count < 600 for count in counts.values())


def test_all_services_of_a_tenant_go_to_the_same_worker() -> None:
    workers = [Member(id=f"worker-{number}", services=frozenset({"a", "b"})) for number in range(5)]
    spread = Spread(workers)
    for number in range(50):
        tenant = f"tenant-{number}"
        assert spread.owner(Partition("a", tenant, 0), "pro") == spread.owner(Partition("b", tenant, 0), "pro")


def test_whoever_is_there_for_a_tenant_comes_before_its_plan_and_that_before_all() -> None:
    anyone = Member(id="anyone", services=frozenset({"orders"}))
    for_plan = Member(id="for-plan", services=frozenset({"orders"}), plans=frozenset({"pro"}))
    for_acme = Member(id="for-acme", services=frozenset({"orders"}), tenants=frozenset({"acme"}))
    elsewhere = Member(id="elsewhere", services=frozenset({"mails"}))
    acme, globex = Partition("orders", "acme", 0), Partition("orders", "globex", 0)
    everybody = [anyone, for_plan, for_acme, elsewhere]
    assert Spread(everybody).owner(acme, "pro") == "for-acme"
    assert Spread(everybody).owner(globex, "pro") == "for-plan"
    assert Spread(everybody).owner(globex, "free") == "anyone"
    assert Spread([for_acme, elsewhere]).owner(globex, "pro") is None
    assert Spread([elsewhere]).owner(acme, "pro") is None


def test_whoever_leaves_takes_nothing_more() -> None:
    leaving = Member(id="leaving", services=frozenset({"orders"}), is_leaving=True)
    staying = Member(id="staying", services=frozenset({"orders"}))
    assert set(owners([leaving, staying], {f"t{number}" for number in range(20)}).values()) == {"staying"}
