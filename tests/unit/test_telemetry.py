"""Signals: emitted to whoever subscribes, and never in the way."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import tenantry
from tenantry import telemetry

Seen = list[tuple[str, dict[str, object]]]

SIGNAL = telemetry.signal("test.signal", "For this test.", "tenant")
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "telemetry.md"


def test_a_signal_reaches_its_subscribers_until_they_end(signals: Seen) -> None:
    matching: Seen = []
    end = telemetry.subscribe(lambda signal, fields: matching.append((signal.name, fields)), "test.")
    other: Seen = []
    end_other = telemetry.subscribe(lambda signal, fields: other.append((signal.name, fields)), "elsewhere.")
    SIGNAL.emit(tenant="acme")
    end()
    SIGNAL.emit(tenant="globex")
    end_other()
    assert matching == [("test.signal", {"tenant": "acme"})]
    assert other == []
    assert [fields["tenant"] for _, fields in signals] == ["acme", "globex"]


def test_a_span_is_told_once_with_its_duration_and_what_was_learnt_on_the_way(signals: Seen) -> None:
    with SIGNAL.span(tenant="acme") as span:
        span["events"] = 3
    ((_, fields),) = signals
    assert fields["tenant"] == "acme"
    assert fields["events"] == 3
    assert isinstance(fields["seconds"], float)
    assert "error" not in fields


def test_a_span_that_fails_says_so_and_lets_the_error_pass(signals: Seen) -> None:
    with pytest.raises(KeyError), SIGNAL.span(tenant="acme"):
        raise KeyError("x")
    assert isinstance(signals[0][1]["error"], KeyError)


def test_a_subscriber_that_fails_does_not_stop_the_work(signals: Seen, caplog: pytest.LogCaptureFixture) -> None:
    def broken(signal: telemetry.Signal, fields: telemetry.Fields) -> None:
        raise RuntimeError("broken subscriber")

    end = telemetry.subscribe(broken)
    SIGNAL.emit(tenant="acme")
    end()
    assert "test.signal" in caplog.text


def test_a_name_is_declared_once() -> None:
    with pytest.raises(ValueError, match=r"test\.signal"):
        telemetry.signal("test.signal", "Again.")


def test_the_reference_lists_every_signal_with_its_fields() -> None:
    for module in pkgutil.walk_packages(tenantry.__path__, "tenantry."):
        importlib.import_module(module.name)
    declared = {
        (signal.name, signal.meaning, signal.fields, signal.level)
        for signal in telemetry.signals()
        if not signal.name.startswith("test.")
    }
    rows = re.findall(r"^\| `([\w.]+)` \| (.+?) \| (.*?) \| (\w+) \|$", REFERENCE.read_text(), re.MULTILINE)
    documented = {
        (name, meaning, tuple(re.findall(r"`(\w+)`", fields)), level) for name, meaning, fields, level in rows
    }
    assert documented == declared
