"""One micro-batch: its messages, what it reads of which lane, and whose lanes these are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tenantry.pipelines.assignment import Assignment
from tenantry.pipelines.keys import POOL_PREFIX, LaneName, lane_of
from tenantry.pipelines.offset_log import Ranges
from tenantry.tenants.tenant import Tenant


@dataclass(frozen=True, slots=True)
class Batch:
    messages: DataFrame
    """As `read_messages` gives them."""
    ranges: Ranges
    tenants: Mapping[str, Tenant]
    """Those whose messages it may hold."""
    lanes: list[LaneName]
    """All that may have messages in it."""
    pooled: set[LaneName]
    """Those of them that are in shared streams now."""
    is_all_known: bool
    """Whether it can hold no message of anybody else."""

    @classmethod
    def of(cls, messages: DataFrame, ranges: Ranges, assignment: Assignment, everybody: Iterable[Tenant]) -> Batch:
        tenants = {tenant.id: tenant for tenant in everybody}
        own = [lane for key in ranges if (lane := lane_of(key))]
        pools = {key for key in ranges if lane_of(key) is None}
        pooled = assignment.lanes_in(pools)
        lanes = [lane for lane in [*own, *pooled] if lane.tenant in tenants]
        is_all_known = not pools and all(lane.tenant in tenants for lane in own)
        owners = {lane.tenant: tenants[lane.tenant] for lane in lanes}
        return cls(messages, ranges, owners, list(dict.fromkeys(lanes)), set(pooled), is_all_known)

    @property
    def ends(self) -> dict[LaneName, int]:
        """The last sequence of each lane that is read by itself; in a shared stream, only its messages can tell."""
        ends = {lane: last for key, (_, last) in self.ranges.items() if (lane := lane_of(key))}
        return {lane: last for lane, last in ends.items() if lane.tenant in self.tenants}

    def known(self) -> DataFrame:
        """Without what may be left in a shared stream of a tenant that is gone, or has moved."""
        if self.is_all_known:
            return self.messages
        is_own = F.col("tenant").isin(list(self.tenants)) & ~F.startswith("origin", F.lit(POOL_PREFIX))
        return self.messages.where(is_own | F.col("lane").isin([str(lane) for lane in self.pooled]))

    def unseen(self, applied: Mapping[LaneName, int], assignment: Assignment) -> DataFrame:
        """Without what was applied before: after a crash, a batch is repeated.

        `applied` says how far each lane is; those that it does not name, and those that are parked, are left out.
        """
        firsts = {lane: first for key, (first, _) in self.ranges.items() if (lane := lane_of(key))}
        seen = {lane: last for lane, last in applied.items() if last >= firsts.get(lane, 1)}
        left_out = [str(lane) for lane in self.lanes if lane not in applied or assignment.is_parked(lane)]
        frame = self.known()
        if left_out:
            frame = frame.where(~F.col("lane").isin(left_out))
        return frame.where(_after(seen)) if seen else frame


def _after(seen: Mapping[LaneName, int]) -> Column:
    known = F.create_map(*[F.lit(each) for lane, last in seen.items() for each in (str(lane), last)])
    return F.col("sequence") > F.coalesce(F.try_element_at(known, F.col("lane")), F.lit(0))
