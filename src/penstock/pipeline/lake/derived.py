"""Refreshes derived tables: functions of a job's table, updated in one commit as far back as new rows reach.

If rows were replaced or removed (an upsert, a backfill, a manual DELETE), the whole table is recomputed.

A function that needs all history would make each refresh slower than the last. A job can therefore name a
rollup: a small table of rows that replace all rows before a day. It is advanced once a day, from the previous
rollup and the rows since. A refresh that reaches back further than the rollup reads the whole table again.

Each commit of a derived table stores the source snapshot it was computed from, and is made only if no other
run has refreshed the table meanwhile. After a crash before the commit, the old table is intact and the next
run sees what is missing; after the commit, nothing is left to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from penstock.model import fault_points
from penstock.pipeline.lake.commit import commit
from penstock.pipeline.lake.ledger import JOB, ROLLED_UP, SOURCE_SNAPSHOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.pipeline.job import Derived, Job, Rollup
    from penstock.pipeline.lake.commit import Snapshots
    from penstock.pipeline.lake.tables import Tables

REFRESH_STARTED: Final = fault_points.declare(
    "pipeline.derived.refresh-started", "new rows are in the job's table, not yet in a derived table"
)
ROLLUP_STARTED: Final = fault_points.declare(
    "pipeline.derived.rollup-started", "derived tables are up to date, their rollup is a day behind"
)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Refresh:
    """What a derived table lacks: nothing, rows from `since` on, or everything (`since` is None).

    `seen` is the source snapshot it was computed from, if any."""

    needed: bool
    since: datetime | None = None
    seen: int | None = None


def refresh_derived(job: Job, tables: Tables, *, now: datetime | None = None) -> int:
    """Refreshes the derived tables that are out of date; returns how many."""
    refreshed = 0
    snapshot = tables.current_snapshot(job.sink.table)
    if snapshot is None:
        return 0
    for derived in job.derived:
        refresh = pending_refresh(tables, job, derived.table, derived.sink_column, snapshot)
        if refresh.needed:
            fault_points.reach(REFRESH_STARTED)
            refreshed += _refresh(job, tables, derived, snapshot, refresh)
    if job.rollup is not None:
        _advance_rollup(job, job.rollup, tables, snapshot, now or datetime.now(UTC))
    return refreshed


def pending_refresh(tables: Tables, job: Job, table: str, column: str, snapshot: int) -> Refresh:
    """What a table computed from the job's table lacks of it at `snapshot`; `column` is the job's table's."""
    if not tables.exists(table):
        return Refresh(needed=True)
    seen = _source_of(tables.snapshots(table))
    if seen == snapshot:
        return Refresh(needed=False, seen=seen)
    added: list[int] = []
    for snapshot_id, summary in tables.snapshots(job.sink.table):
        if snapshot_id == seen:
            break
        operation = summary.get("operation")
        if operation == "append":
            added.append(snapshot_id)
        elif operation != "replace":  # compaction changes no row
            return Refresh(needed=True, seen=seen)  # file statistics do not show which rows were removed
    else:
        return Refresh(needed=True, seen=seen)  # the snapshots in between have expired
    lowest = _lowest_value(tables, job.sink.table, column, tuple(added))
    return Refresh(needed=bool(added), since=lowest, seen=seen)


def _source_of(snapshots: Snapshots) -> int | None:
    """The source snapshot that a derived table was computed from."""
    return next((int(each[SOURCE_SNAPSHOT]) for _, each in snapshots if SOURCE_SNAPSHOT in each), None)


@lru_cache(maxsize=4)  # derived tables and rollup of one job ask for the same
def _lowest_value(tables: Tables, table: str, column: str, snapshots: tuple[int, ...]) -> datetime | None:
    """The lowest value of a column in the rows that these snapshots added, from file statistics."""
    if not snapshots:
        return None
    bound: Any = F.col(f"readable_metrics.`{column}`.lower_bound")
    entries = tables.session.table(f"{tables.qualified(table)}.all_entries")
    added = entries.filter(F.col("snapshot_id").isin(*snapshots) & (F.col("status") == 1))
    return _moment(added, F.min(bound))


def _moment(frame: DataFrame, aggregate: Any) -> datetime | None:
    """An aggregate of a frame, a time or a date, in UTC.

    It leaves Spark as a number: Spark gives times to Python without a zone, in the driver's local time."""
    micros = frame.agg(F.unix_micros(aggregate.cast("timestamp"))).collect()[0][0]
    return None if micros is None else EPOCH + timedelta(microseconds=micros)


def _refresh(job: Job, tables: Tables, derived: Derived, snapshot: int, refresh: Refresh) -> bool:
    since = None if refresh.since is None else derived.align(refresh.since)
    rows = derived.transform(_source_rows(job, tables, snapshot, since), since)
    where = F.lit(True) if since is None else F.col(derived.column) >= F.lit(since)
    tables.ensure(derived.table, rows.schema, partition_by=derived.partition_by)
    properties = {JOB: job.name, SOURCE_SNAPSHOT: str(snapshot)}
    return _replace(tables, derived.table, rows, where, properties, seen=refresh.seen)


def _replace(
    tables: Tables, table: str, rows: DataFrame, where: Any, properties: dict[str, str], *, seen: int | None
) -> bool:
    """Replaces rows of a derived table, unless another run has refreshed it since it was read."""

    def write() -> None:
        rows.writeTo(tables.qualified(table)).overwrite(where)

    def unless(snapshots: Snapshots) -> bool:
        return _source_of(snapshots) != seen

    return commit(tables, rows.sparkSession, table, properties, write, unless=unless) is not None


def _source_rows(job: Job, tables: Tables, snapshot: int, since: datetime | None) -> DataFrame:
    """Rows of the job's table that give the same derived rows from `since` on as all of them."""
    source = _as_of(tables, job.sink.table, snapshot)
    rollup = job.rollup
    if rollup is None or since is None:
        return source
    before, rolled_up = _rolled_up(job, rollup, tables, snapshot)
    if rolled_up is None or before is None or since < before:
        return source
    return source.filter(F.col(rollup.column) >= F.lit(before)).unionByName(rolled_up, True)


def _rolled_up(
    job: Job, rollup: Rollup, tables: Tables, snapshot: int
) -> tuple[datetime | None, DataFrame | None]:
    """The day before which the rollup replaces rows at `snapshot`, and its rows; None if it is unusable."""
    pending = pending_refresh(tables, job, rollup.table, rollup.column, snapshot)
    if pending.seen is None or (pending.needed and pending.since is None):
        return None, None
    for rollup_snapshot, summary in tables.snapshots(rollup.table):
        if ROLLED_UP in summary and summary[SOURCE_SNAPSHOT] == str(pending.seen):
            before = datetime.fromisoformat(summary[ROLLED_UP])
            if pending.since is not None and pending.since < before:
                return None, None  # late rows, which it lacks
            return before, _as_of(tables, rollup.table, rollup_snapshot)
    return None, None


def _advance_rollup(job: Job, rollup: Rollup, tables: Tables, snapshot: int, now: datetime) -> None:
    """Moves the rollup to `rollup.days` before the newest row, if that is a later day than before."""
    upper: Any = F.col(f"readable_metrics.`{rollup.column}`.upper_bound")
    newest = _moment(tables.session.table(f"{tables.qualified(job.sink.table)}.files"), F.max(upper))
    if newest is None:
        return
    # A row from the future, by a wrong clock, must not roll up what is still to come.
    moment = min(newest, now) - timedelta(days=rollup.days)
    until = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    before, rolled_up = _rolled_up(job, rollup, tables, snapshot)
    if before is not None and until <= before:
        return
    fault_points.reach(ROLLUP_STARTED)
    rows = _as_of(tables, job.sink.table, snapshot).filter(F.col(rollup.column) < F.lit(until))
    if rolled_up is not None:
        rows = rows.filter(F.col(rollup.column) >= F.lit(before)).unionByName(rolled_up, True)
    rolled = rollup.fold(rows, until)
    tables.ensure(rollup.table, rolled.schema)
    seen = _source_of(tables.snapshots(rollup.table))
    properties = {JOB: job.name, SOURCE_SNAPSHOT: str(snapshot), ROLLED_UP: until.isoformat()}
    _replace(tables, rollup.table, rolled, F.lit(True), properties, seen=seen)


def _as_of(tables: Tables, table: str, snapshot: int) -> DataFrame:
    return tables.session.read.option("versionAsOf", str(snapshot)).table(tables.qualified(table))
