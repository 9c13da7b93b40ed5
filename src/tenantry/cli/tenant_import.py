"""`tenantry tenant create --file`: many tenants at once, side by side. A bad line harms no other."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tenantry.cli.options import Options
from tenantry.cli.output import note, print_json, progress, say
from tenantry.cli.session import use_administration
from tenantry.cli.tenant_put import put
from tenantry.config import Settings
from tenantry.errors import TenantInvalid, TenantryError
from tenantry.tenants.administration import Administration
from tenantry.tenants.spec import TenantSpec

EXAMPLE = '{"id": "acme", "plan": "pro"}'


@dataclass
class Report:
    """What became of the lines."""

    outcomes: Counter[str] = field(default_factory=Counter)
    problems: dict[int, str] = field(default_factory=dict)
    """What is wrong, by line."""

    def describe(self) -> dict[str, Any]:
        counts = {name: self.outcomes[name] for name in ("created", "changed", "unchanged")}
        problems = [{"line": line, "problem": problem} for line, problem in sorted(self.problems.items())]
        return counts | {"failed": len(problems), "problems": problems}


def import_tenants(options: Options, file: Path, *, json: bool) -> None:
    report = Report()
    specs = list(_read(_text(file), report))
    asyncio.run(_import(options.load().settings, specs, report))
    document = report.describe()
    if json:
        print_json(document)
    else:
        for problem in document["problems"]:
            note(f"line {problem['line']}: {problem['problem']}")
        say(", ".join(f"{document[name]:,} {name}" for name in ("created", "changed", "unchanged", "failed")))
    if report.problems:
        sys.exit(1)


async def _import(settings: Settings, specs: list[tuple[int, TenantSpec]], report: Report) -> None:
    # Enough that the provisioner never waits for the next one.
    room = asyncio.Semaphore(settings.provisioning_parallel * 2)
    async with use_administration(settings) as administration:
        with progress() as bars:
            task = bars.add_task("tenants", total=len(specs))
            each = (_put(administration, room, line, spec, report, lambda: bars.advance(task)) for line, spec in specs)
            await asyncio.gather(*each)


async def _put(
    administration: Administration,
    room: asyncio.Semaphore,
    line: int,
    spec: TenantSpec,
    report: Report,
    done: Callable[[], None],
) -> None:
    async with room:
        try:
            tenant, outcome = await put(administration, spec.id, lambda _: spec)
        except TenantryError as problem:
            report.problems[line] = f"tenant {spec.id}: {problem}"
        else:
            report.outcomes[outcome] += 1
            if not tenant.is_ready:
                report.problems[line] = (
                    f"tenant {spec.id} is {outcome}, and the servers do not have it yet: {tenant.problem}"
                )
        done()


def _text(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise TenantInvalid("file", f"cannot read --file {file}: {getattr(problem, 'strerror', problem)}") from None


def _read(text: str, report: Report) -> Iterator[tuple[int, TenantSpec]]:
    """The specs with their lines; what is wrong with the others is reported."""
    lines: dict[str, int] = {}
    for line, document in enumerate(text.splitlines(), 1):
        if not document.strip():
            continue
        try:
            spec = _spec(document)
        except TenantInvalid as problem:
            report.problems[line] = str(problem)
            continue
        if spec.id in lines:
            report.problems[line] = f"tenant {spec.id} is in line {lines[spec.id]} already; keep one of the two"
            continue
        lines[spec.id] = line
        yield line, spec


def _spec(document: str) -> TenantSpec:
    try:
        fields = msgspec.json.decode(document, type=dict[str, Any])
        unknown = fields.keys() - set(TenantSpec.__struct_fields__)
        if unknown:
            known = ", ".join(TenantSpec.__struct_fields__)
            raise TenantInvalid("file", f"expected fields of a tenant, {known}, got: {', '.join(sorted(unknown))}")
        return msgspec.convert(fields, TenantSpec)
    except (msgspec.DecodeError, msgspec.ValidationError) as problem:
        raise TenantInvalid("file", f"expected a JSON object like {EXAMPLE}: {problem}") from None
