"""The engine: Spark's session, and on it every pipeline of the application, and the warehouse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from psycopg_pool import ConnectionPool
from pyspark.sql import SparkSession

from tenantry.application import WAREHOUSE, Tenantry
from tenantry.config import Settings
from tenantry.event import EVERY_TYPE, type_expression
from tenantry.nats.keys import Key
from tenantry.pipelines.assignment import Assignment
from tenantry.pipelines.job_runner import JobRunner
from tenantry.pipelines.lake import Lake
from tenantry.pipelines.lane_reader import LaneReader
from tenantry.pipelines.progress import Database, Progress
from tenantry.pipelines.projecting import ProjectionPipeline
from tenantry.pipelines.queries import AS_FAST_AS_IT_CAN, BatchPipeline, Course, PipelineQueries
from tenantry.pipelines.read_access import ReadAccess
from tenantry.pipelines.session import ship_application
from tenantry.pipelines.stateful import StatefulPipeline
from tenantry.pipelines.switchboard import Switchboard
from tenantry.pipelines.tables import Tables
from tenantry.pipelines.transforming import Transforming
from tenantry.pipelines.warehouse import Warehouse
from tenantry.tenants.lanes import Lanes
from tenantry.tenants.roster import Roster

CONNECTIONS: Final = 8
# However much one tenant has to read, batches stay so short that the events of others need not wait for long.
MOST_OF_ONE_FOR_TABLES: Final = 0.4
MOST_OF_ONE_FOR_DOCUMENTS: Final = 0.25


class Engine:
    """Everything but the decision to run. Blocking; its queries have threads of their own."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        application: Tenantry | None,
        *,
        roster: Roster,
        lanes: Lanes,
        platform_key: Key | None,
        database_url: str,
        refresh_roster: Callable[[], None],
        folder: Path,
        warehouse: str = WAREHOUSE,
    ) -> None:
        """`warehouse` is what the warehouse calls itself: under another name it begins from nothing."""
        self.spark = spark
        self.settings = settings
        self.application = application
        self.roster = roster
        self.database_url = database_url
        self.database = _connect(database_url)
        self.tables = Tables(Lake.from_settings(settings), self.database)
        self.switchboard = Switchboard()
        self.reader = LaneReader(spark, self.switchboard)
        self.access = ReadAccess(lanes, settings, platform_key)
        self._warehouse = warehouse
        self._refresh_roster = refresh_roster
        self._checkpoints = settings.checkpoints or str(folder / "checkpoints")
        self.pipelines: dict[str, PipelineQueries] = {each.name: each for each in self._make()}
        self.jobs = JobRunner(self)

    def keep(self) -> None:
        for pipeline in self.pipelines.values():
            pipeline.keep()
        self.jobs.keep()

    def close(self) -> None:
        self.jobs.stop()
        for pipeline in self.pipelines.values():
            pipeline.stop()
        self.switchboard.close()
        self.tables.close()
        self.database.close()

    def assign(
        self,
        name: str,
        channel: str | None,
        *,
        may_be_dedicated: bool = True,
        most_of_one: float = MOST_OF_ONE_FOR_TABLES,
    ) -> Assignment:
        return Assignment(
            Progress(self.database, name),
            self.roster,
            self.access,
            channel=channel,
            may_be_dedicated=may_be_dedicated,
            most_of_one=most_of_one,
        )

    def _make(self) -> list[PipelineQueries]:
        settings = self.settings
        every = f"{round(settings.table_seconds * 1000)} milliseconds"
        assignment = self.assign(self._warehouse, None)
        application = self.application
        reserved = {each.table for each in application.pipelines.values()} if application else set()
        warehouse = Warehouse(self.tables, assignment, self.database_url, reserved)
        course = self._course((EVERY_TYPE,), every, settings.pipeline_batch)
        made: list[PipelineQueries] = [BatchPipeline(assignment, warehouse, course)]
        if self.application is None:
            return made
        ship_application(each.function for each in self.application.pipelines.values())
        ship_application(each.evolve for each in self.application.projections.values())
        for pipeline in self.application.pipelines.values():
            assignment = self.assign(pipeline.name, pipeline.channel, may_be_dedicated=not pipeline.stateful)
            course = self._course(pipeline.types, every, settings.pipeline_batch, pipeline.channel)
            if pipeline.stateful:
                made.append(StatefulPipeline(assignment, pipeline, self.tables, self.database, course))
            else:
                made.append(BatchPipeline(assignment, Transforming(pipeline, self.tables, assignment), course))
        for projection in self.application.projections.values():
            assignment = self.assign(projection.name, projection.channel, most_of_one=MOST_OF_ONE_FOR_DOCUMENTS)
            course = self._course(projection.types, AS_FAST_AS_IT_CAN, settings.projection_batch, projection.channel)
            made.append(ProjectionPipeline(assignment, projection, self.database_url, course))
        return made

    def _course(self, types: tuple[str, ...], every: str, most: int, channel: str | None = None) -> Course:
        return Course(
            self.reader,
            self.roster,
            self._refresh_roster,
            types=None if EVERY_TYPE in types else type_expression(types),
            channel=channel,
            every=every,
            most=most,
            checkpoints=self._checkpoints,
            first_pause=self.settings.pipeline_restart_seconds,
        )


def _connect(url: str) -> Database:
    pool: ConnectionPool[Any] = ConnectionPool(
        url,
        min_size=1,
        max_size=CONNECTIONS,
        open=True,
        timeout=30,
        kwargs={"application_name": "tenantry-pipelines", "autocommit": True},
        check=ConnectionPool.check_connection,
    )
    return pool
