"""Applications: what can be declared, what a mistake is answered with, and how they are found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tenantry
from tenantry import Event, Tenantry
from tenantry.application import Key, Projection, load_application
from tenantry.errors import ApplicationInvalid


def transform(events: Any) -> Any:
    return events


def evolve(state: Any, event: Event) -> Any:
    return state


def event(**given: Any) -> Event:
    whole: dict[str, Any] = {"tenant": "acme", "channel": "events", "type": "order.created", "id": "1"}
    return Event(**(whole | {"source": "/shop", "sequence": 1} | given))


def projection(key: Key = "data", initial: Any = dict) -> Projection:
    app = Tenantry("shop")
    app.projection("totals", key=key, initial=initial)(evolve)
    return app.projections["totals"]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Writes a module into an empty folder, which is the current one, and says its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"shop_{abs(hash(request.node.nodeid))}"

    def write(text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


# Declaring


def test_a_pipeline_has_the_name_of_its_table_and_all_events_unless_told_otherwise() -> None:
    app = Tenantry("shop")
    assert app.pipeline(table="orders")(transform) is transform
    app.pipeline(table="carts", types=["cart.*", "cart.>"], name="all-carts", channel="clicks", stateful=True)(
        transform
    )
    orders, carts = app.pipelines.values()
    assert (orders.name, orders.table, orders.types, orders.channel) == ("orders", "orders", (">",), "events")
    assert (orders.stateful, orders.function) == (False, transform)
    assert app.pipelines["all-carts"] is carts
    assert (carts.table, carts.types, carts.channel, carts.stateful) == ("carts", ("cart.*", "cart.>"), "clicks", True)


def test_a_projection_is_kept_as_it_was_declared() -> None:
    app = Tenantry("shop")
    declare = app.projection("by-customer", types=("order.created",), key="data.customer", initial={"n": 0})
    assert declare(evolve) is evolve
    found = app.projections["by-customer"]
    assert (found.types, found.key, found.channel) == (("order.created",), "data.customer", "events")
    assert found.evolve(found.start(), event()) == {"n": 0}


@pytest.mark.parametrize("name", ["", "Orders", "-a", "a-", "a b", "a.b", "ü", "a" * 49, "a\n", None, transform])
def test_names_that_no_folder_or_query_could_have_are_refused(name: Any) -> None:
    with pytest.raises(ApplicationInvalid, match=r"name .*to match"):
        Tenantry("shop").projection(name, key="id")(evolve)
    with pytest.raises(ApplicationInvalid, match="to match"):
        Tenantry(name)
    with pytest.raises(ApplicationInvalid, match="expected the table of pipeline 'x' to match"):
        Tenantry("shop").pipeline(table=name, name="x")(transform)


def test_names_may_have_dashes_and_tables_may_not() -> None:
    app = Tenantry("a" * 48)
    app.projection("a-b_c", key="id")(evolve)
    app.pipeline(table="a_b", name="d-e")(transform)
    with pytest.raises(ApplicationInvalid, match=r"table .*'a-b'"):
        app.pipeline(table="a-b")(transform)


def test_pipelines_projections_and_the_warehouse_share_their_names() -> None:
    app = Tenantry("shop")
    app.pipeline(table="orders")(transform)
    app.projection("totals", key="id")(evolve)
    with pytest.raises(ApplicationInvalid, match="'orders' has a name that is taken, by a pipeline of shop"):
        app.projection("orders", key="id")(evolve)
    with pytest.raises(ApplicationInvalid, match="'totals' has a name that is taken, by a projection of shop"):
        app.pipeline(table="totals")(transform)
    with pytest.raises(ApplicationInvalid, match="'totals' has a name that is taken"):
        app.projection("totals", key="id")(evolve)
    with pytest.raises(ApplicationInvalid, match="warehouse writes the tables of channels"):
        app.projection("warehouse", key="id")(evolve)
    assert [*app.pipelines, *app.projections] == ["orders", "totals"]


def test_a_table_is_of_one_pipeline_and_never_of_a_channel() -> None:
    app = Tenantry("shop")
    app.pipeline(table="orders")(transform)
    with pytest.raises(ApplicationInvalid, match="orders is of pipeline 'orders'"):
        app.pipeline(table="orders", name="other")(transform)
    for table in ("events", "properties"):
        with pytest.raises(ApplicationInvalid, match=f"{table} holds the events of that channel"):
            app.pipeline(table=table, name="other")(transform)


@pytest.mark.parametrize("types", [["order.>.x"], ["order..x"], [""], ["order.*", "a b"], [], "order.*"])
def test_types_are_a_list_of_patterns(types: Any) -> None:
    app = Tenantry("shop")
    with pytest.raises(ApplicationInvalid, match="pipeline 'orders'"):
        app.pipeline(table="orders", types=types)(transform)
    with pytest.raises(ApplicationInvalid, match="projection 'totals'"):
        app.projection("totals", key="id", types=types)(evolve)
    assert not app.projections
    assert not app.pipelines


def test_a_channel_must_be_one() -> None:
    with pytest.raises(ApplicationInvalid, match=r"channel of pipeline 'orders' .*got: 'a b'"):
        Tenantry("shop").pipeline(table="orders", channel="a b")(transform)


def test_a_function_that_could_not_be_called_is_refused_when_it_is_declared() -> None:
    app = Tenantry("shop")

    async def later(state: Any, event: Any) -> Any:
        return state

    with pytest.raises(ApplicationInvalid, match="async"):
        app.projection("totals", key="id")(later)
    with pytest.raises(ApplicationInvalid, match="function of state and event: too many positional arguments"):
        app.projection("totals", key="id")(transform)  # type: ignore[type-var]
    with pytest.raises(ApplicationInvalid, match="function of events"):
        app.pipeline(table="orders")(evolve)  # type: ignore[type-var]
    with pytest.raises(ApplicationInvalid, match="function of events, got: 'orders'"):
        app.pipeline(table="orders")("orders")  # type: ignore[type-var]
    with pytest.raises(ApplicationInvalid, match="the key of projection 'totals' to be a function of event"):
        app.projection("totals", key=lambda: "a")(evolve)  # type: ignore[arg-type,misc]


# Keys and states


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("data.customer", "c1"),
        ("data.order.number", "7"),
        ("data.order.missing", None),
        ("data.missing.number", None),
        ("data.customer.name", None),
        ("data.nothing", None),
        ("data.lines.0", None),
        ("subject", "order/7"),
        ("id", "1"),
        ("source", "/shop"),
        ("type", "order.created"),
        (lambda event: event.data["order"]["number"] + 1, "8"),
        (lambda event: None, None),
    ],
)
def test_the_key_of_an_event_is_found(key: Key, found: str | None) -> None:
    data = {"customer": "c1", "order": {"number": 7}, "lines": [1], "nothing": None}
    assert projection(key).key_of(event(data=data, subject="order/7")) == found


def test_an_event_without_subject_or_data_is_for_no_document() -> None:
    assert projection("subject").key_of(event()) is None
    assert projection("data").key_of(event()) is None
    assert projection("data.customer").key_of(event(data=[1])) is None
    assert projection("data").key_of(event(data="whole")) == "whole"


@pytest.mark.parametrize("value", [True, False, {"a": 1}, [], 1.5])
def test_what_would_make_no_clear_key_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"projection totals .*got: \w+ .* from data of event 1"):
        projection("data").key_of(event(data=value))


@pytest.mark.parametrize("value", ["", "x" * 257, "a\0b"])
def test_keys_are_neither_empty_nor_endless(value: str) -> None:
    with pytest.raises(
        ValueError, match=r"projection totals to be 1 to 256 characters, .* from its function of event 1"
    ):
        projection(lambda event: value).key_of(event())
    assert projection("data").key_of(event(data="x" * 256)) == "x" * 256


@pytest.mark.parametrize("key", ["", "customer", "data.", "data..a", "subject.a", "time", "tenant", None, 5])
def test_a_key_that_leads_nowhere_is_refused_when_it_is_declared(key: Any) -> None:
    with pytest.raises(
        ApplicationInvalid, match=r"expected the key of projection 'totals' to be a path like data\.customer"
    ):
        projection(key)


def test_each_document_starts_with_a_state_of_its_own() -> None:
    counting = projection(initial={"lines": []})
    counting.start()["lines"].append(1)
    assert counting.start() == {"lines": []}
    assert projection(initial=lambda: [0]).start() == [0]
    assert projection().start() == {}
    assert projection(initial=None).start() is None


# Finding


def test_an_application_is_found_in_the_current_folder(module: Callable[[str], str]) -> None:
    name = module("from tenantry import Tenantry\napp = Tenantry('shop')")
    assert load_application(f"{name}:app").name == "shop"


def test_an_application_in_a_package_of_another_folder_is_found_with_what_it_imports(
    module: Callable[[str], str], tmp_path: Path
) -> None:
    module("")
    package = tmp_path / "elsewhere" / "company_of_this_test"
    package.mkdir(parents=True)
    (package / "names_of_this_test.py").write_text("NAME = 'inner'")
    (package / "main.py").write_text(
        "from tenantry import Tenantry\nfrom company_of_this_test.names_of_this_test import NAME\napp = Tenantry(NAME)"
    )
    assert load_application("company_of_this_test.main:app", tmp_path / "elsewhere").name == "inner"


def test_a_module_that_is_missing_is_named_with_where_it_was_looked_for(
    module: Callable[[str], str], tmp_path: Path
) -> None:
    name = module("import no_such_module_at_all")
    with pytest.raises(ApplicationInvalid, match=r"there is no module nowhere_to_be_found .*looked in") as caught:
        load_application("nowhere_to_be_found.main:app")
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(ApplicationInvalid, match=f"{name}:app cannot be imported: .*'no_such_module_at_all'"):
        load_application(f"{name}:app")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\nraise RuntimeError('first\\nno database')", r"cannot be imported: no database \(.*\.py, line 2\)"),
        ("x = 1\nx = = 2", r"cannot be imported: SyntaxError: .*\.py, line 2\)"),
        ("import sys; sys.exit(3)", "cannot be imported: SystemExit: 3"),
        ("from tenantry import Tenantry\nTenantry('')", "cannot be imported: ApplicationInvalid: expected the app"),
        ("x = 1", r"there is no app in the module .*\.py; write app = Tenantry"),
        ("app = 1", "to be a Tenantry, got: int; write app = Tenantry"),
        ("from tenantry import Tenantry\nshop = Tenantry('a')", r"there is no app in .*; there is shop_\d+:shop"),
    ],
)
def test_an_application_that_cannot_be_had_says_why(module: Callable[[str], str], text: str, told: str) -> None:
    with pytest.raises(ApplicationInvalid, match=told):
        load_application(f"{module(text)}:app")


@pytest.mark.parametrize("path", ["shop", "shop:", ":app", ""])
def test_an_application_is_named_by_module_and_attribute(path: str) -> None:
    with pytest.raises(ApplicationInvalid, match="module:attribute, like shop:app"):
        load_application(path)


# Importing


def test_the_package_gives_what_it_lists_and_nothing_else() -> None:
    assert [getattr(tenantry, name).__name__ for name in tenantry.__all__] == tenantry.__all__
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        tenantry.Nothing  # type: ignore[attr-defined]  # noqa: B018


def test_an_application_is_imported_without_what_runs_it() -> None:
    heavy = {"pyspark", "pandas", "pyarrow", "psycopg", "pydantic", "nats"}
    script = (
        "import sys, tenantry\nassert 'msgspec' not in sys.modules\n"
        f"from tenantry import Tenantry, Event\nassert not {heavy!r} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
