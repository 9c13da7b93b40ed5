"""A small program that stands before another one and corrects what it is told."""

from __future__ import annotations

import os
from pathlib import Path


def write_shim(shim: Path, script: str, program: Path) -> Path:
    """Whole at once, for another process may be about to start it; `script` names the program as {program}."""
    shim.parent.mkdir(parents=True, exist_ok=True)
    draft = shim.with_name(f"{shim.name}.{os.getpid()}")
    quoted = "'" + str(program).replace("'", "'\\''") + "'"
    draft.write_text(script.replace("{program}", quoted))
    draft.chmod(0o755)
    return draft.rename(shim)
