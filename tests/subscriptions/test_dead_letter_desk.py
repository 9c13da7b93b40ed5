"""Dead letters as people find them and act on them; what workers do with them is tested where they do it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tenantry.errors import TenantConflict, TenantInvalid, TenantNotFound
from tenantry.nats.connections import connect
from tenantry.subscriptions.dead_letter_desk import DeadLetterDesk
from tenantry.subscriptions.found_letter import DeadLetterFilter, Place
from tenantry.subscriptions.job_desk import SubscriptionJobDesk
from tenantry.subscriptions.roll import hint_subject
from tenantry.tenants.administration import Administration
from tests.subscriptions.letters import Letters

EVERYTHING = DeadLetterFilter()
NOW = datetime.now(UTC)


@pytest.fixture
def desk(administration: Administration) -> DeadLetterDesk:
    return DeadLetterDesk(administration)


@pytest.fixture
def jobs(administration: Administration) -> SubscriptionJobDesk:
    return SubscriptionJobDesk(administration)


async def found(desk: DeadLetterDesk, **filter: Any) -> list[UUID]:
    return [each.id for each in await desk.page(DeadLetterFilter(**filter), 100)]


def chain(letters: Letters, tenant: str = "acme", key: str = "order-1", count: int = 3, **columns: Any) -> list[UUID]:
    """A key that is held back: the one that failed, and those after it."""
    states = ["parked"] + ["held"] * (count - 1)
    return [letters.bury(tenant, key=key, state=state, **columns) for state in states]


# Finding


async def test_each_filter_finds_its_own(desk: DeadLetterDesk, letters: Letters) -> None:
    plain = letters.bury("acme", died_at=NOW - timedelta(days=2))
    odd = letters.bury(
        "globex",
        "mails",
        type="order.paid",
        state="stopped",
        key="k",
        event_id="one",
        reason="KeyError: 'Total 100%'",
        died_at=NOW - timedelta(hours=1),
    )
    filters: list[dict[str, Any]] = [
        {"tenant": "globex"},
        {"owner": "globex"},
        {"service": "mails"},
        {"type": "order.paid"},
        {"state": "stopped"},
        {"key": "k"},
        {"event": "one"},
        {"reason": "total 100%"},
        {"since": NOW - timedelta(days=1)},
        {"ids": (odd, uuid4())},
    ]
    for filter in filters:
        assert await found(desk, **filter) == [odd], filter
    assert await found(desk, until=NOW - timedelta(days=1)) == [plain]
    assert await found(desk) == [odd, plain]
    assert await found(desk, tenant="acme", service="mails") == []
    assert await found(desk, ids=()) == []


async def test_pages_go_on_where_they_ended_even_if_what_they_ended_with_is_gone(
    desk: DeadLetterDesk, letters: Letters
) -> None:
    moment = NOW - timedelta(hours=1)
    ids = sorted(letters.bury("acme", died_at=moment) for _ in range(4))
    first = await desk.page(EVERYTHING, 2)
    assert [each.id for each in first] == [ids[3], ids[2]]
    place = Place.read(str(Place(first[-1].died_at, first[-1].id)))
    letters.execute("delete from tenantry.dead_letters where id = %s", [ids[2]])
    letters.bury("acme", died_at=NOW)
    assert [each.id for each in await desk.page(EVERYTHING, 10, place)] == [ids[1], ids[0]]
    for text in ("", "1", f"x-{ids[0]}", f"{10**30}-{ids[0]}"):
        with pytest.raises(TenantInvalid, match="expected after to be the `next` of a page"):
            Place.read(text)


async def test_a_dead_letter_is_shown_whole_by_the_beginning_of_its_id(desk: DeadLetterDesk, letters: Letters) -> None:
    one = UUID("aaaaaaaa-0000-4000-8000-000000000001")
    letters.bury("acme", id=one, traceback="line 3", trace="00-abc-def-01", deliveries=5)
    letters.bury("globex", id=UUID("aaaaaaab-0000-4000-8000-000000000001"), payload=b"\xff\x00")
    whole = await desk.get("AAAAAAAA-0")
    assert (whole.id, whole.traceback, whole.trace, whole.deliveries) == (one, "line 3", "00-abc-def-01", 5)
    assert whole.describe()["payload"] == {"data": {"total": 7}}
    assert whole.headers == {"Nats-Msg-Id": ["acme/event-1"]}
    assert (await desk.get("aaaaaaab")).describe()["payload_base64"] == "/wA="
    with pytest.raises(TenantConflict, match="several dead letters begin with aaaaaaa"):
        await desk.get("aaaaaaa")
    for id in ("b", "", "zzz", "%", "a" * 33):
        with pytest.raises(TenantNotFound, match="there is no dead letter"):
            await desk.get(id)


async def test_for_a_tenant_there_are_no_others(desk: DeadLetterDesk, letters: Letters) -> None:
    foreign = letters.bury("globex")
    # An account that others provision may be called like a tenant.
    namesake = letters.bury("acme", owner_id=None)
    own = letters.bury("acme")
    assert await found(desk, owner="acme") == [own]
    assert await found(desk, owner="acme", ids=(foreign, namesake)) == []
    for other in (foreign, namesake):
        with pytest.raises(TenantNotFound):
            await desk.get(str(other), "acme")
    assert (await desk.preview("redrive", DeadLetterFilter(owner="acme"))).count == 1
    outcome = await desk.discard(DeadLetterFilter(owner="acme", tenant="globex"), "test")
    assert (outcome.discarded, outcome.jobs) == (0, [])
    assert (await desk.discard(DeadLetterFilter(owner="acme"), "test")).discarded == 1
    assert letters.left() == [foreign, namesake]


# Redriving


async def test_a_preview_counts_and_changes_nothing(desk: DeadLetterDesk, letters: Letters) -> None:
    for _ in range(3):
        letters.bury("acme", reason="KeyError: 'total'")
    letters.bury("globex", "mails")
    letters.bury("globex", "pipelines")
    preview = await desk.preview("redrive", EVERYTHING)
    assert (preview.count, preview.added, preview.under_way, preview.left_out) == (4, 0, 0, 1)
    assert [(each.service, each.tenant_id, each.reason, each.count) for each in preview.groups] == [
        ("invoices", "acme", "KeyError: 'total'", 3),
        ("mails", "globex", "ValueError: no", 1),
    ]
    assert (await desk.preview("discard", EVERYTHING)).count == 5
    assert letters.execute("select 1 from tenantry.subscription_jobs") == []
    assert letters.with_job(None) == []


async def test_what_dies_after_the_preview_can_be_left_out(desk: DeadLetterDesk, letters: Letters) -> None:
    seen = letters.bury("acme")
    preview = await desk.preview("discard", EVERYTHING)
    unseen = letters.bury("acme")
    assert (await desk.discard(DeadLetterFilter(until=preview.as_of), "test")).discarded == 1
    assert letters.left() == [unseen] != [seen]


async def test_a_redrive_is_a_job_for_each_service_on_record_and_told_to_workers(
    desk: DeadLetterDesk, letters: Letters, administration: Administration
) -> None:
    invoices = [letters.bury("acme"), letters.bury("acme")]
    mails = [letters.bury("acme", "mails"), letters.bury("globex", "mails")]
    async with connect(administration.lanes.platform, "worker") as worker:
        hints = await worker.subscribe(hint_subject(administration.lanes.app))
        await worker.flush()
        outcome = await desk.redrive(DeadLetterFilter(reason="no"), "cli:ada")
        await hints.next_msg(timeout=10)
    first, second = outcome.jobs
    assert (first.service, first.tenant_id, first.total, first.state) == ("invoices", "acme", 2, "running")
    assert (second.service, second.tenant_id, second.total) == ("mails", None, 2)
    assert first.request == {"reason": "no"}
    assert letters.with_job(first.id) == invoices
    assert letters.with_job(second.id) == mails
    (entry,) = await administration.audit.newest(1)
    assert (entry.actor, entry.act, entry.tenant_id) == ("cli:ada", "dead_letter.redrive", None)
    assert entry.after is not None
    assert (entry.after["count"], entry.after["jobs"]) == (4, [str(first.id), str(second.id)])


async def test_what_somebody_is_at_is_not_taken_again(desk: DeadLetterDesk, letters: Letters) -> None:
    old = letters.bury("acme")
    (first,) = (await desk.redrive(EVERYTHING, "test")).jobs
    new = letters.bury("acme")
    preview = await desk.preview("redrive", EVERYTHING)
    assert (preview.count, preview.under_way) == (1, 1)
    (second,) = (await desk.redrive(EVERYTHING, "test")).jobs
    assert (letters.with_job(first.id), letters.with_job(second.id)) == ([old], [new])
    assert (await desk.redrive(EVERYTHING, "test")).jobs == []
    assert (await desk.discard(EVERYTHING, "test")).discarded == 0


async def test_of_two_who_ask_at_once_each_letter_goes_to_one(desk: DeadLetterDesk, letters: Letters) -> None:
    ids = [letters.bury("acme") for _ in range(20)]
    outcomes = await asyncio.gather(*(desk.redrive(EVERYTHING, "test") for _ in range(4)))
    jobs = [job for outcome in outcomes for job in outcome.jobs]
    assert sum(job.total or 0 for job in jobs) == len(ids)
    assert sorted(id for job in jobs for id in letters.with_job(job.id)) == sorted(ids)
    assert len(letters.execute("select 1 from tenantry.subscription_jobs")) == len(jobs)


async def test_of_a_key_that_is_held_back_all_before_it_are_redriven_first(
    desk: DeadLetterDesk, letters: Letters
) -> None:
    parked, first, second = chain(letters)
    others = [
        *chain(letters, key="order-2"),
        *chain(letters, tenant="globex"),
        *chain(letters, service="mails"),
        *chain(letters, part=1),
    ]
    dead = letters.bury("acme", key="order-1")
    preview = await desk.preview("redrive", DeadLetterFilter(ids=(first,)))
    assert (preview.count, preview.added) == (2, 1)
    (job,) = (await desk.redrive(DeadLetterFilter(ids=(first,)), "test")).jobs
    assert (job.total, letters.with_job(job.id)) == (2, [parked, first])
    waiting = letters.execute("select id from tenantry.dead_letters where job is null order by sequence")
    assert [each["id"] for each in waiting] == [second, *others, dead]


async def test_while_somebody_is_at_a_key_nothing_after_it_is_redriven(desk: DeadLetterDesk, letters: Letters) -> None:
    parked, first, second = chain(letters)
    await desk.redrive(DeadLetterFilter(ids=(first,)), "test")
    preview = await desk.preview("redrive", DeadLetterFilter(ids=(second,)))
    assert (preview.count, preview.under_way) == (0, 1)
    assert (await desk.redrive(EVERYTHING, "test")).jobs == []
    # It may fail, and this one would have been handled before it.
    letters.handle(parked)
    letters.fail(first, "again")
    assert (await desk.preview("redrive", DeadLetterFilter(ids=(second,)))).count == 2
    (next,) = (await desk.redrive(DeadLetterFilter(ids=(second,)), "test")).jobs
    assert letters.with_job(next.id) == [first, second]
    assert (await desk.discard(EVERYTHING, "test")).jobs == []


async def test_a_filter_that_names_only_held_ones_takes_the_one_that_holds_them(
    desk: DeadLetterDesk, letters: Letters
) -> None:
    ids = chain(letters, key="a", count=2) + chain(letters, key="b", count=2, tenant="globex")
    preview = await desk.preview("redrive", DeadLetterFilter(state="held"))
    assert (preview.count, preview.added) == (4, 2)
    (job,) = (await desk.redrive(DeadLetterFilter(state="held"), "test")).jobs
    assert letters.with_job(job.id) == ids


async def test_dead_letters_of_pipelines_are_not_redriven(desk: DeadLetterDesk, letters: Letters) -> None:
    letters.bury("acme", "pipelines")
    for ask in (
        desk.preview("redrive", DeadLetterFilter(service="pipelines")),
        desk.redrive(DeadLetterFilter(service="pipelines"), "test"),
    ):
        with pytest.raises(TenantConflict, match="tenantry replay --pipeline"):
            await ask
    assert (await desk.redrive(EVERYTHING, "test")).jobs == []
    assert (await desk.discard(DeadLetterFilter(service="pipelines"), "test")).discarded == 1


# Discarding


async def test_what_nothing_waits_for_is_discarded_at_once_and_the_rest_by_workers(
    desk: DeadLetterDesk, letters: Letters, administration: Administration
) -> None:
    letters.bury("acme")
    parked, held, later = chain(letters)
    stopped = letters.bury("globex", state="stopped")
    outcome = await desk.discard(DeadLetterFilter(ids=(held, stopped)), "cli:ada")
    (job,) = outcome.jobs
    assert (outcome.discarded, job.kind, job.total, job.tenant_id) == (0, "discard", 2, None)
    # None that nobody named: to be rid of one, none before it has to go.
    assert letters.with_job(job.id) == [held, stopped]
    outcome = await desk.discard(DeadLetterFilter(tenant="acme"), "cli:ada")
    assert (outcome.discarded, [job.total for job in outcome.jobs]) == (1, [2])
    assert letters.left() == [parked, held, later, stopped]
    (entry,) = await administration.audit.newest(1)
    assert entry.after is not None
    assert (entry.act, entry.tenant_id, entry.after["count"]) == ("dead_letter.discard", "acme", 3)


async def test_nothing_to_do_is_nothing_to_record(
    desk: DeadLetterDesk, letters: Letters, administration: Administration
) -> None:
    before = await administration.audit.newest(1)
    assert (await desk.redrive(EVERYTHING, "test")).jobs == []
    assert (await desk.discard(EVERYTHING, "test")).discarded == 0
    assert await administration.audit.newest(1) == before


# Jobs


async def test_who_cancels_a_redrive_leaves_what_is_not_done_as_it_was(
    desk: DeadLetterDesk, jobs: SubscriptionJobDesk, letters: Letters, administration: Administration
) -> None:
    done, failed, waiting = letters.bury("acme"), letters.bury("acme"), letters.bury("acme")
    (job,) = (await desk.redrive(EVERYTHING, "test")).jobs
    assert job.is_waiting
    letters.handle(done)
    letters.fail(failed, "again")
    ended = await jobs.cancel(str(job.id)[:8], "cli:ada")
    assert (ended.state, ended.done, ended.failed, ended.total, ended.has_ended) == ("cancelled", 1, 1, 3, True)
    assert letters.with_job(job.id) == []
    assert letters.left() == [failed, waiting]
    (entry,) = await administration.audit.newest(1)
    assert (entry.actor, entry.act, entry.tenant_id) == ("cli:ada", "subscription.cancel", "acme")
    with pytest.raises(TenantConflict, match="has ended already: it is cancelled"):
        await jobs.cancel(str(job.id), "test")
    with pytest.raises(TenantNotFound, match="there is no job 'zzz'"):
        await jobs.cancel("zzz", "test")


async def test_a_replay_is_asked_for_once_and_asked_to_end(
    jobs: SubscriptionJobDesk, letters: Letters, administration: Administration
) -> None:
    moment = datetime(2026, 11, 1, 12)  # noqa: DTZ001
    job = await jobs.ask("replay", "invoices", "acme", "cli:ada", from_=moment)
    assert (job.kind, job.service, job.tenant_id, job.state) == ("replay", "invoices", "acme", "running")
    assert job.request == {"from": "2026-11-01T12:00:00.000000+00:00", "from_sequence": None, "to": None}
    (entry,) = await administration.audit.newest(1)
    assert (entry.actor, entry.act, entry.tenant_id) == ("cli:ada", "subscription.replay", "acme")
    with pytest.raises(TenantConflict, match=f"is under way.*cancel {str(job.id)[:8]}"):
        await jobs.ask("rewind", "invoices", "acme", "test", from_sequence=1)
    other = await jobs.ask("rewind", "invoices", "globex", "test", from_sequence=1)
    assert [each.id for each in await jobs.newest(10)] == [other.id, job.id]
    assert [each.id for each in await jobs.newest(10, tenant="acme")] == [job.id]
    with pytest.raises(TenantNotFound):
        await jobs.get(str(other.id), "acme")
    assert (await jobs.cancel(str(job.id), "test")).state == "cancelling"


async def test_a_replay_that_cannot_be_is_refused_with_the_reason(jobs: SubscriptionJobDesk, letters: Letters) -> None:
    letters.serve("orders", channel="orders")
    for service, tenant, reason in (
        ("nothing", "acme", "no worker has served 'nothing' yet"),
        ("invoices", "nobody", "no tenant 'nobody'"),
        ("orders", "acme", "has no channel 'orders', which orders handles"),
    ):
        with pytest.raises(TenantNotFound, match=reason):
            await jobs.ask("replay", service, tenant, "test", from_sequence=1)
    with pytest.raises(TenantInvalid, match="at a time or at a sequence"):
        await jobs.ask("replay", "invoices", "acme", "test")
    with pytest.raises(TenantInvalid, match="expected the end to be after the beginning"):
        await jobs.ask("replay", "invoices", "acme", "test", from_=NOW, to=NOW)
    with pytest.raises(TenantInvalid, match="expected a rewind to have no end"):
        await jobs.ask("rewind", "invoices", "acme", "test", from_sequence=1, to=NOW)
    assert await jobs.newest(10) == []


async def test_jobs_and_dead_letters_of_a_tenant_go_with_it(
    desk: DeadLetterDesk, jobs: SubscriptionJobDesk, letters: Letters, administration: Administration
) -> None:
    letters.bury("acme")
    await desk.redrive(EVERYTHING, "test")
    await administration.delete("acme", "test")
    assert (await jobs.newest(10), letters.left()) == ([], [])
