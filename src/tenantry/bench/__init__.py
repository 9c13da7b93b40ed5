"""Benchmarks. Speed lives here and never in a test: machines are noisy, so each ratio compares two things in one run.

They are part of the package, and not of a folder beside it, so that `tenantry bench` works wherever it is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

import msgspec

Say = Callable[[str], None]


class Report(msgspec.Struct):
    """What was measured; each ratio compares two figures of the same run."""

    bench: str
    figures: dict[str, float]
    ratios: dict[str, float]


BENCHMARKS: Final = {
    "fairness": ("tenantry.bench.fairness", "what a tenant has of a relay that others keep busy"),
    "ingest": ("tenantry.bench.ingest", "events over HTTP against a plain endpoint of FastAPI and nats-py"),
    "pipeline": (
        "tenantry.bench.pipeline",
        "events into Delta tables and documents on Spark, and how soon they are there",
    ),
    "provision": (
        "tenantry.bench.provision",
        "tenants provisioned a second at each tier, and how soon they publish",
    ),
    "relay": ("tenantry.bench.relay", "the outbox relay against rows with flags, and against the database alone"),
    "source": ("tenantry.bench.source", "the Spark source against the official client, and against the wire alone"),
    "wire": ("tenantry.bench.wire", "nats_bulk against the official client: publish with acks, and reading a stream"),
    "workers": ("tenantry.bench.workers", "handlers against FastStream's, and what a slow tenant costs the others"),
}


def run_benchmark(name: str, *, quick: bool, say: Say) -> Report:
    module, _ = BENCHMARKS[name]
    report: Report = import_module(module).run(quick=quick, say=say)
    return report
