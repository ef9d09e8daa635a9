"""Derived tables: a function of a job's table, renewed in one commit as far back as new rows reach.

Where rows were replaced or removed (an upsert, a backfill, somebody's DELETE) all of it is renewed.

A commit of a derived table names the snapshot it was made from. So a crash before it leaves the
old, whole table, and the next run sees what is missing; a crash after it leaves nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from penstock.model import faults
from penstock.pipeline.ledger import JOB, SOURCE_SNAPSHOT

if TYPE_CHECKING:
    from penstock.pipeline.job import Derived, Job
    from penstock.pipeline.lake import Tables

DERIVE_BEGUN: Final = faults.declare(
    "pipeline.derive.begun", "new rows are in the job's table, a table derived from it is of the state before"
)


@dataclass(frozen=True, slots=True)
class Renewal:
    """What is missing in a derived table: nothing, something since a time, or everything (None)."""

    needed: bool
    since: datetime | None = None


def derive(job: Job, tables: Tables) -> int:
    """Renews what is behind; returns how many tables were."""
    renewed = 0
    snapshot = tables.current_snapshot(job.sink.table)
    if snapshot is None:
        return 0
    for each in job.derived:
        renewal = missing(tables, job, each, snapshot)
        if renewal.needed:
            faults.reach(DERIVE_BEGUN)
            _renew(job, tables, each, snapshot, renewal.since)
            renewed += 1
    return renewed


def missing(tables: Tables, job: Job, each: Derived, snapshot: int) -> Renewal:
    if not tables.exists(each.table):
        return Renewal(needed=True)
    seen = next(
        (int(s[SOURCE_SNAPSHOT]) for _, s in tables.snapshots(each.table) if SOURCE_SNAPSHOT in s), None
    )
    if seen == snapshot:
        return Renewal(needed=False)
    added: list[int] = []
    for identity, summary in tables.snapshots(job.sink.table):
        if identity == seen:
            break
        operation = summary.get("operation")
        if operation == "append":
            added.append(identity)
        elif operation != "replace":  # compaction changes no row
            return Renewal(needed=True)  # rows went: where they had been, no statistics tell
    else:
        return Renewal(needed=True)  # the history between was expired: all of it is made anew
    least = _least(tables, job.sink.table, each.watch, added)
    if least is None:
        return Renewal(needed=bool(added), since=None)
    return Renewal(needed=True, since=each.align(least))


def _least(tables: Tables, table: str, column: str, snapshots: list[int]) -> datetime | None:
    """The least value among the rows that these commits added, from the statistics of their files."""
    if not snapshots:
        return None
    bound: Any = F.col(f"readable_metrics.`{column}`.lower_bound")
    entries = tables.session.table(f"{tables.full(table)}.all_entries")
    found = entries.filter(F.col("snapshot_id").isin(snapshots) & (F.col("status") == 1)).agg(F.min(bound))
    least = found.collect()[0][0]
    if isinstance(least, date) and not isinstance(least, datetime):
        least = datetime.combine(least, time())
    return None if least is None else least.replace(tzinfo=UTC)


def _renew(job: Job, tables: Tables, each: Derived, snapshot: int, since: datetime | None) -> None:
    source = tables.session.read.option("versionAsOf", str(snapshot)).table(tables.full(job.sink.table))
    rows = each.transform(source, since)
    tables.ensure(each.table, rows.schema, partition_by=each.partition_by)
    where = F.lit(True) if since is None else F.col(each.column) >= F.lit(since)
    writer = rows.writeTo(tables.full(each.table))
    for key, value in {JOB: job.name, SOURCE_SNAPSHOT: str(snapshot)}.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.overwrite(where)
