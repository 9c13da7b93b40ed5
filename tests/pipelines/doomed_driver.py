"""`serve pipeline`, except that it kills itself, with SIGKILL, at a point that it is told: PIPELINE:STEP:N."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tenantry import telemetry
from tenantry.cli import main
from tenantry.telemetry import Signal


def die_at(place: str) -> None:
    pipeline, step, number = place.split(":")
    passed = 0

    def watch(_: Signal, fields: dict[str, Any]) -> None:
        nonlocal passed
        if (fields["pipeline"], fields["step"]) == (pipeline, step):
            passed += 1
            if passed == int(number):
                os.kill(os.getpid(), signal.SIGKILL)

    telemetry.subscribe(watch, "pipelines.step")


if __name__ == "__main__":
    if place := sys.argv.pop(1):
        die_at(place)
    sys.argv[1:1] = ["serve", "pipeline"]
    main()
