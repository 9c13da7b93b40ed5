"""Events of tenants, from their lanes to tables and documents."""

from __future__ import annotations

import json
from typing import Any

from tenantry.pipelines.query import KeptQuery
from tests.pipelines.running import Running, event
from tests.pipelines.shop import app, fold

TIERS = {"acme": "stream", "globex": "account", "pooly": "pooled", "poolz": "pooled"}


def order(number: int, **data: Any) -> bytes:
    return event(number, customer=f"c{number % 5}", amount=number + 1, **data)


async def test_events_of_every_tier_come_once_into_tables_and_documents(running: Running) -> None:
    for tenant, tier in TIERS.items():
        await running.tenant(tenant, tier)
        await running.publish(tenant, map(order, range(50)))
    async with running.pipelines(app):
        for tenant in TIERS:
            await running.publish(tenant, map(order, range(50, 100)))
        for pipeline in ("warehouse", "orders", "customers"):
            for tenant in TIERS:
                await running.until_at(pipeline, tenant, await last_sequence(running, tenant))
    for tenant in TIERS:
        rows = running.rows(tenant)
        assert [json.loads(row["data"])["number"] for row in rows] == list(range(100))
        assert {row["tenant"] for row in rows} == {tenant}
        assert [row["amount"] for row in running.rows(tenant, "orders")] == [float(n + 1) for n in range(100)]
        expected = fold([json.loads(order(number))["data"] for number in range(100)])
        assert await running.documents(tenant, "customers") == expected


async def last_sequence(running: Running, tenant: str) -> int:
    lane = await running.administration.lanes.resolve(tenant, "events")
    async with running.administration.backbone.jetstream(lane.broker) as jetstream:
        return await jetstream.last_sequence(lane.stream, lane.subjects)


async def test_a_flood_fills_no_batch_unless_its_tenant_has_a_query_to_itself(running: Running) -> None:
    running.settings = running.settings.model_copy(update={"pipeline_batch": 50})
    await running.tenant("acme", "stream")
    await running.tenant("alone", "stream", dedicated=True)
    for tenant in ("acme", "alone"):
        await running.publish(tenant, map(order, range(60)))
    async with running.pipelines() as engine:
        for tenant, query, expected in (("acme", "shared", [20, 20, 20]), ("alone", "alone", [50, 10])):
            await running.until_at("warehouse", tenant, 60)
            kept = engine.pipelines["warehouse"].queries[query]

            async def is_reported(kept: KeptQuery = kept) -> bool:
                return bool(sum(each["numInputRows"] for each in kept.recent_progress) == 60)

            await running.until(is_reported, "Spark should say what its batches had")
            assert [each["numInputRows"] for each in kept.recent_progress if each["numInputRows"]] == expected


async def test_what_a_row_of_the_warehouse_says(running: Running) -> None:
    await running.tenant("acme")
    await running.publish("acme", [event(7, amount=1.5, name="Zoë")])
    async with running.pipelines():
        await running.until_at("warehouse", "acme", 1)
    (row,) = running.rows("acme")
    assert row["tenant"] == "acme"
    assert row["channel"] == "events"
    assert row["type"] == "order.created"
    assert row["id"] == "event-7"
    assert row["source"] == "/shop"
    assert row["subject"] == "order-7"
    assert row["time"].isoformat() == "2026-11-15T10:00:00.123456+00:00"
    assert json.loads(row["data"]) == {"number": 7, "amount": 1.5, "name": "Zoë"}
    assert row["trace"].startswith("00-0af7651916cd43dd8448eb211c80319c")
    assert row["sequence"] == 1


async def test_what_is_no_event_goes_to_the_dead_letters_and_the_rest_goes_on(running: Running) -> None:
    await running.tenant("acme")
    broken = [b"not json", json.dumps({"specversion": "1.0", "id": "x"}).encode(), b"\xff\xfe", b'{"a": "\\u0000"}']
    broken += [order(0)[:-1] + b',"more":}', order(0).replace(b'"amount"', b'"customer"')]
    await running.publish("acme", [order(0), *broken, order(1)])
    async with running.pipelines(app):
        await running.until_at("warehouse", "acme", 8)
        await running.until_at("customers", "acme", 8)
    assert [row["sequence"] for row in running.rows("acme")] == [1, 8]
    letters = await running.ask("select * from tenantry.dead_letters order by sequence")
    assert [bytes(letter["payload"]) for letter in letters] == broken
    assert [letter["sequence"] for letter in letters] == [2, 3, 4, 5, 6, 7]
    assert letters[0]["reason"] == "expected a JSON object"
    assert {letter["reason"] for letter in letters[4:]} == {
        "expected JSON, with no key twice in an object and not nested too deeply"
    }
    assert await running.documents("acme", "customers") == fold(
        [{"customer": "c0", "amount": 1}, {"customer": "c1", "amount": 2}]
    )


async def test_a_lane_whose_events_make_a_projection_raise_is_parked_and_resumed(running: Running) -> None:
    for tenant in ("acme", "globex"):
        await running.tenant(tenant)
    async with running.pipelines(app):
        await running.publish("acme", [order(0), order(1, poison=True), order(2)])
        parked = await running.until_parked("customers", "acme")
        assert parked["parked_sequence"] == 2
        assert parked["parked_reason"] == "ValueError: cannot take event-1"
        assert "cannot take" in parked["parked_traceback"]
        assert parked["sequence"] == 1
        await running.publish("globex", map(order, range(3)))
        await running.until_at("customers", "globex", 3)
        await running.publish("acme", [order(3)])
        await running.until_at("warehouse", "acme", 4)
        assert await running.documents("acme", "customers") == fold([{"customer": "c0", "amount": 1}])
    fixed = forgiving()
    async with running.pipelines(fixed):
        await running.ask(resume_statement(), "customers", "acme")
        await running.until_at("customers", "acme", 4)
        await running.publish("acme", [order(4)])
        await running.until_at("customers", "acme", 5)
    expected = fold([json.loads(order(number))["data"] for number in range(5)])
    assert await running.documents("acme", "customers") == expected


async def test_a_lane_whose_events_make_a_pipeline_fail_is_parked_alone(running: Running) -> None:
    tenants = ["acme", "globex", "initech", "pooly", "poolz"]
    for tenant in tenants:
        await running.tenant(tenant, TIERS.get(tenant, "stream"))
        await running.publish(tenant, map(order, range(10)))
    # 100 / 0 is an error of Spark's own.
    await running.publish("globex", [event(10, customer="c0", amount=0), order(11)])
    await running.publish("poolz", [order(10), event(11, customer="c0", amount=0), order(12)])
    async with running.pipelines(app):
        for tenant, good in (("globex", 10), ("poolz", 11)):
            parked = await running.until_parked("orders", tenant)
            assert "DIVIDE_BY_ZERO" in parked["parked_reason"]
            assert len(running.rows(tenant, "orders")) == good
        for tenant in ("acme", "initech", "pooly"):
            await running.publish(tenant, [order(20)])
            await running.until_at("orders", tenant, await last_sequence(running, tenant))
            assert len(running.rows(tenant, "orders")) == 11
        for tenant in ("globex", "poolz"):
            # The fix: what cannot be divided is skipped by hand.
            await running.ask(
                """update tenantry.pipeline_lanes set sequence = parked_sequence
                   where pipeline = 'orders' and tenant_id = %s""",
                tenant,
            )
            await running.ask(resume_statement(), "orders", tenant)
            await running.until_at("orders", tenant, await last_sequence(running, tenant))
            await running.publish(tenant, [order(21)])
            await running.until_at("orders", tenant, await last_sequence(running, tenant))
    assert [row["amount"] for row in running.rows("globex", "orders")] == [*map(float, range(1, 11)), 12.0, 22.0]
    assert [row["amount"] for row in running.rows("poolz", "orders")] == [*map(float, range(1, 12)), 13.0, 22.0]


def resume_statement() -> str:
    return """update tenantry.pipeline_lanes
              set parked_at = null, parked_sequence = null, parked_reason = null, parked_traceback = null,
                  epoch = epoch + 1
              where pipeline = %s and tenant_id = %s"""


def forgiving() -> Any:
    from tenantry import Event, Tenantry

    fixed = Tenantry("shop")

    @fixed.projection("customers", types=["order.*"], key="data.customer", initial={"orders": 0, "total": 0})
    def customers(state: dict[str, Any], event: Event) -> dict[str, Any]:
        state["orders"] += 1
        state["total"] += event.data["amount"]
        return state

    return fixed


async def test_a_function_that_takes_the_tenant_from_the_payload_reaches_nobody_else(running: Running) -> None:
    from pyspark.sql import DataFrame

    from tenantry import Tenantry

    application = Tenantry("careless")

    @application.pipeline(table="claims", types=["order.*"])
    def claims(events: DataFrame) -> DataFrame:
        return events.selectExpr("cast(data:tenant as string) as tenant", "sequence", "id")

    for tenant in ("acme", "evil"):
        await running.tenant(tenant)
    await running.publish("acme", [event(1, tenant="acme")])
    await running.publish("evil", [event(2, tenant="evil"), event(3, tenant="acme")])
    async with running.pipelines(application):
        parked = await running.until_parked("claims", "evil")
        await running.until_at("claims", "acme", 1)
    assert parked["parked_sequence"] == 2
    assert (
        "expected the rows of pipeline claims to be of tenants whose events it got, got: acme"
        in parked["parked_reason"]
    )
    assert [row["id"] for row in running.rows("acme", "claims")] == ["event-1"]
    assert [row["id"] for row in running.rows("evil", "claims")] == ["event-2"]


async def test_an_event_of_an_impossible_time_stops_nobody(running: Running) -> None:
    for tenant in ("acme", "globex"):
        await running.tenant(tenant)
    impossible = (
        "9999-12-31T23:59:59-14:00",
        "0001-01-01T00:00:00+14:00",
        "0000-01-01T00:00:00Z",
        "12345-01-01T00:00:00Z",
    )
    await running.publish("acme", [json.dumps(json.loads(order(0)) | {"time": time}).encode() for time in impossible])
    await running.publish("globex", [order(0)])
    async with running.pipelines():
        await running.until_at("warehouse", "globex", 1)
        await running.until_at("warehouse", "acme", len(impossible))
    letters = await running.ask("select reason from tenantry.dead_letters where tenant_id = 'acme'")
    assert len(letters) == len(impossible)
    assert all("expected time to be a date and time" in letter["reason"] for letter in letters)


async def test_a_channel_that_is_removed_and_added_again_begins_anew(running: Running) -> None:
    from tenantry.tenants.spec import TenantSpec

    await running.tenant("acme")
    await running.administration.put(TenantSpec(id="acme", channels={"clicks": None}), "test")
    await running.publish("acme", map(order, range(3)), "clicks")
    async with running.pipelines():
        await running.until_at("warehouse", "acme", 3, "clicks")
        await running.administration.put(TenantSpec(id="acme", without_channels=("clicks",)), "test")

        async def is_gone() -> bool:
            tenant = await running.administration.registry.get("acme")
            return all(channel.name != "clicks" for channel in tenant.channels)

        await running.until(is_gone, "the channel should be erased")
        await running.administration.put(TenantSpec(id="acme", channels={"clicks": None}), "test")
        await running.publish("acme", map(order, range(10, 12)), "clicks")

        async def are_there() -> bool:
            return {json.loads(row["data"])["number"] for row in running.rows("acme", "clicks")} >= {10, 11}

        await running.until(are_there, "the events of the new channel should arrive")


async def test_a_channel_that_is_called_like_a_table_of_the_application_is_parked(running: Running) -> None:
    from tenantry.tenants.spec import TenantSpec

    for tenant in ("acme", "globex"):
        await running.tenant(tenant)
    await running.administration.put(TenantSpec(id="globex", channels={"orders": None}), "test")
    await running.publish("globex", [order(0)], "orders")
    await running.publish("acme", [order(0)])
    async with running.pipelines(app):
        parked = await running.until_parked("warehouse", "globex", "orders")
        await running.until_at("warehouse", "acme", 1)
    assert "the application has a table 'orders'" in parked["parked_reason"]


async def test_a_tenant_whose_table_is_broken_holds_up_nobody(running: Running) -> None:
    for tenant in ("acme", "globex"):
        await running.tenant(tenant)
    log = running.folder / "lake" / "tenant=globex" / "events" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("this is no log\n")
    await running.publish("globex", [order(0)])
    async with running.pipelines():
        await running.publish("acme", [order(0)])
        await running.until_at("warehouse", "acme", 1)
        (log / "00000000000000000000.json").unlink()
        await running.until_at("warehouse", "globex", 1)
    assert len(running.rows("globex")) == 1
