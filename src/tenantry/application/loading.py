"""Finds an application by its name."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from tenantry.application.app import Tenantry
from tenantry.errors import ApplicationInvalid


def load_application(path: str, folder: Path | None = None) -> Tenantry:
    """The application that `module:attribute` names; what is in the folder, or else the current one, is found first."""
    name, _, attribute = path.partition(":")
    if not (name and attribute):
        raise ApplicationInvalid(f"expected an application to be named module:attribute, like shop:app, got: {path!r}")
    place = str((folder or Path.cwd()).absolute())
    if place not in sys.path:
        # It stays there: what the application imports later is found, too.
        sys.path.insert(0, place)
    module = _import(path, name, place)
    found = getattr(module, attribute, None)
    if isinstance(found, Tenantry):
        return found
    if hasattr(module, attribute):
        problem = f"expected {path} to be a Tenantry, got: {type(found).__name__}"
    else:
        problem = f"there is no {attribute} in the module {name}, which is {module.__file__}"
    others = [f"{name}:{other}" for other, value in vars(module).items() if isinstance(value, Tenantry)]
    remedy = f"there is {', '.join(others)}" if others else f'write {attribute} = Tenantry("…") there'
    raise ApplicationInvalid(f"{problem}; {remedy}")


def _import(path: str, name: str, place: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as problem:
        if isinstance(problem, ModuleNotFoundError) and problem.name and f"{name}.".startswith(f"{problem.name}."):
            raise ApplicationInvalid(
                f"there is no module {problem.name} for the application {path}; looked in {place} and among the "
                "installed packages: check the name, or start in the folder that has it"
            ) from None
        raise ApplicationInvalid(f"the application {path} cannot be imported: {_last_line(problem)}") from problem


def _last_line(problem: BaseException) -> str:
    line = (f"{type(problem).__name__}: {problem}".splitlines() or [""])[-1]
    if isinstance(problem, SyntaxError):
        # It says itself where it is.
        return line
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{line} ({frame.filename}, line {frame.lineno})"
