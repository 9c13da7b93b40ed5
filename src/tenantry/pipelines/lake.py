"""Where tables are: each tenant's under a location of its own, on disk or in an object store."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.fs

from tenantry.config import Settings
from tenantry.tenants.tenant import Tenant


@dataclass(frozen=True, slots=True)
class Lake:
    """Travels to the tasks, which write files. `repr` does not show the options, which may hold keys."""

    root: str
    """A folder, or an address such as s3://bucket/prefix."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_settings(cls, settings: Settings) -> Lake:
        options = settings.lake_options.get_secret_value() if settings.lake_options else "{}"
        return cls(settings.lake or str(settings.data / "lake"), msgspec.json.decode(options, type=dict[str, str]))

    def location(self, tenant: Tenant, table: str) -> str:
        """`…/tenant=acme/events`; where a tenant is placed elsewhere, there."""
        root = (tenant.placement.lake or self.root).rstrip("/")
        return f"{root}/tenant={tenant.id}/{table}"

    def filesystem(self, location: str) -> pyarrow.fs.FileSystem:
        """Seen from a table's location, through the same store as delta-rs."""
        if is_local(location):
            Path(location).mkdir(parents=True, exist_ok=True)
            return pyarrow.fs.SubTreeFileSystem(location, pyarrow.fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        handler: Any = DeltaStorageHandler(location, dict(self.options))
        return pyarrow.fs.PyFileSystem(handler)

    def storage_options(self, location: str) -> dict[str, str] | None:
        return None if is_local(location) else dict(self.options)

    def erase(self, location: str) -> None:
        """All that is there, whether a table knows of it or not; the tenant's own folder goes with the last table."""
        if not is_local(location):
            place, _, table = location.rpartition("/")
            self.filesystem(place).delete_dir(table)
            return
        folder = Path(location)
        while folder.exists():
            # Somebody else may be at it, too.
            with suppress(FileNotFoundError):
                shutil.rmtree(folder)
        with suppress(OSError):
            folder.parent.rmdir()


def is_local(location: str) -> bool:
    return "://" not in location
