"""`__all__` is exactly what a package gives away."""

from __future__ import annotations

import types

import pytest

import nats_bulk
import pyspark_nats
import tenantry.outbox
import tenantry.testing


@pytest.mark.parametrize("package", [nats_bulk, pyspark_nats, tenantry.outbox, tenantry.testing])
def test_all_lists_exactly_what_is_exported(package: types.ModuleType) -> None:
    exported = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert exported == set(package.__all__)
    assert list(package.__all__) == sorted(package.__all__)
