"""What the page on handling events shows is run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tenantry.postgres.migrations import Migrations
from tenantry.postgres.pool import connect
from tenantry.testing import Rehearsal

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "subscriptions.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def shown() -> dict[str, Any]:
    """All that the page defines, as if it were one module."""
    module: dict[str, Any] = {"__name__": "shop"}
    for snippet in SNIPPETS:
        exec(snippet, module)
    return module


def test_the_page_begins_with_the_example() -> None:
    assert SNIPPETS[0] == (ROOT / "examples" / "shop.py").read_text()


async def test_the_handlers_of_the_page_handle(shown: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    rehearsal = Rehearsal(shown["app"])
    for type, data, service, printed in (
        ("invoice.sent", {"total": 5}, "invoices", "acme: invoice.sent 5\n"),
        ("order.created", {"order": 7}, "mails", "acme: thank you for order 7\n"),
        ("line.added", {"sku": "x", "price": 2.5}, "lines", "2.5\n"),
        ("customer.created", {"name": "Ada"}, "customers", "Ada\n"),
        ("payment.made", {"customer": "ann"}, "balances", "ann is in part 3\n"),
    ):
        outcomes = await rehearsal.deliver("acme", type, data)
        assert outcomes[service].handled, outcomes[service]
        assert capsys.readouterr().out == printed


async def test_the_ledger_of_the_page_has_each_invoice_once(
    shown: dict[str, Any], database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", database)
    async with connect(database, autocommit=True) as connection:
        await Migrations(outbox_only=True).apply(connection)
        await connection.execute("create table ledger (tenant text, total integer)")
        rehearsal = Rehearsal(shown["app"])
        for id in ("1", "1", "2"):
            outcomes = await rehearsal.deliver("acme", "invoice.paid", {"total": 5}, id=id)
            assert all(outcome.handled for outcome in outcomes.values()), outcomes
        rows = await (await connection.execute("select tenant, total from ledger")).fetchall()
    assert rows == [("acme", 5), ("acme", 5)]
    assert capsys.readouterr().out == 3 * "acme: invoice.paid 5\n5\n"


async def test_the_tests_of_the_page_pass(shown: dict[str, Any]) -> None:
    tests = [value for name, value in shown.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        await test()
