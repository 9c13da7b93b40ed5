"""An application, as a user would write it."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from tenantry import Event, Tenantry

app = Tenantry("shop")


@app.pipeline(table="orders", types=["order.*"])
def orders(events: DataFrame) -> DataFrame:
    return events.selectExpr(
        "tenant",
        "sequence",
        "id",
        "time",
        "cast(data:amount as double) as amount",
        "100 / cast(data:amount as int) as part",
    )


@app.projection("customers", types=["order.*"], key="data.customer", initial={"orders": 0, "total": 0})
def customers(state: dict[str, Any], event: Event) -> dict[str, Any]:
    if event.data.get("poison"):
        raise ValueError(f"cannot take {event.id}")
    state["orders"] += 1
    state["total"] += event.data["amount"]
    return state


def fold(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What the documents should be."""
    found: dict[str, Any] = {}
    for each in events:
        state = found.setdefault(each["customer"], {"orders": 0, "total": 0})
        state["orders"] += 1
        state["total"] += each["amount"]
    return found
