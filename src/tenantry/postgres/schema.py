"""The schema as a service: nothing that starts after it has to wonder whether the tables are there."""

from __future__ import annotations

from collections.abc import Callable

from tenantry.postgres.migrations import Migrations
from tenantry.postgres.pool import connect
from tenantry.service import forever


class Schema:
    """Migrates a database that is ours alone; of one that others run, only checks that it fits."""

    name = "schema"

    def __init__(self, database_url: Callable[[], str], *, may_migrate: bool) -> None:
        self._database_url = database_url
        self._may_migrate = may_migrate

    async def start(self) -> None:
        async with connect(self._database_url(), autocommit=True) as connection:
            migrations = Migrations()
            if self._may_migrate:
                await migrations.apply(connection)
            else:
                await migrations.require_current(connection)

    async def run(self) -> None:
        await forever()

    async def stop(self) -> None:
        pass

    def kill(self) -> None:
        pass
