"""Pipelines that keep state between batches."""

from __future__ import annotations

import json

from pyspark.sql import DataFrame

from tenantry import Tenantry
from tests.pipelines.running import Running, event

app = Tenantry("shop")


@app.pipeline(table="first_orders", types=["order.*"], stateful=True)
def first_orders(events: DataFrame) -> DataFrame:
    """The first order of each customer, whichever batch it is in."""
    chosen = events.selectExpr(
        "tenant", "sequence", "cast(data:customer as string) as customer", "100 / cast(data:amount as int) as part"
    )
    return chosen.dropDuplicates(["tenant", "customer"])


def order(number: int, customer: str, amount: int = 5) -> bytes:
    return event(number, customer=customer, amount=amount)


async def test_state_is_kept_from_batch_to_batch_and_through_a_restart(running: Running) -> None:
    for tenant, tier in (("acme", "stream"), ("pooly", "pooled")):
        await running.tenant(tenant, tier)
        await running.publish(tenant, [order(0, "ann"), order(1, "bob"), order(2, "ann")])
    async with running.pipelines(app):
        await running.until_at("first_orders", "acme", 3)
        await running.until_at("first_orders", "pooly", 3)
        await running.publish("acme", [order(3, "bob"), order(4, "cid")])
        await running.until_at("first_orders", "acme", 5)
    await running.publish("acme", [order(5, "cid"), order(6, "dan")])
    async with running.pipelines(app):
        await running.until_at("first_orders", "acme", 7)
    assert [row["customer"] for row in running.rows("acme", "first_orders")] == ["ann", "bob", "cid", "dan"]
    assert [row["customer"] for row in running.rows("pooly", "first_orders")] == ["ann", "bob"]


async def test_a_lane_that_makes_it_fail_is_parked_and_the_query_goes_on_without_it(running: Running) -> None:
    for tenant in ("acme", "globex"):
        await running.tenant(tenant)
        await running.publish(tenant, [order(0, "ann")])
    async with running.pipelines(app):
        await running.until_at("first_orders", "acme", 1)
        await running.until_at("first_orders", "globex", 1)
        await running.publish("globex", [order(1, "bob"), order(2, "cid", amount=0), order(3, "dan")])
        parked = await running.until_parked("first_orders", "globex")
        assert parked["parked_sequence"] == 3
        assert "DIVIDE_BY_ZERO" in parked["parked_reason"]
        await running.publish("acme", [order(1, "ann"), order(2, "bob")])
        await running.until_at("first_orders", "acme", 3)
    assert [row["customer"] for row in running.rows("acme", "first_orders")] == ["ann", "bob"]
    assert [row["customer"] for row in running.rows("globex", "first_orders")] == ["ann"]
    assert json.loads(running.rows("globex")[2]["data"])["customer"] == "cid"
