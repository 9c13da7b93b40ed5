"""The command line. Each command is a file of its own and is imported only when it is used."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """What the `tenantry` command runs."""
    from tenantry.cli.app import app
    from tenantry.errors import TenantryError

    try:
        app()
    except TenantryError as problem:
        sys.exit(f"tenantry: {problem}")
    except BrokenPipeError:
        # Whoever read our output has had enough; Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        print(
            "tenantry: broken off; what was done is on record, and the same command goes on from there", file=sys.stderr
        )
        sys.exit(130)
