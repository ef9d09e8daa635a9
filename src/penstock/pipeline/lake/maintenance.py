"""Table maintenance: compacts files, expires old snapshots, removes orphan files.

Expiry keeps the newest commit of each job and everything after it: a repeated batch is recognised by that
commit. No row of a table changes. Jobs may write meanwhile: if both changed the same files, the later of the
two commits is refused by Iceberg, and a batch is then written again.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from penstock.model import fault_points
from penstock.pipeline.lake.ledger import BATCH, JOB, SOURCE_SNAPSHOT
from penstock.pipeline.spark.failure import translate_errors
from penstock.pipeline.spark.session import CATALOG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Row

    from penstock.pipeline.job import Job
    from penstock.pipeline.lake.tables import Tables

COMPACTED: Final = fault_points.declare(
    "pipeline.maintain.compacted", "files are compacted, no snapshot is expired and no file removed"
)
EXPIRED: Final = fault_points.declare(
    "pipeline.maintain.expired", "old snapshots are expired, orphan files are still there"
)
COMMITS_MAX: Final = 20  # since the last compaction, before `schedule` compacts a table
SNAPSHOTS_KEPT_MIN: Final = 20
SNAPSHOT_DAYS_KEPT: Final = 5.0
ORPHAN_DAYS_MIN: Final = 3.0  # younger files may belong to a commit in progress
FILE_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What maintenance did to a table."""

    table: str
    files_before: int
    files_after: int
    snapshots_before: int
    snapshots_after: int
    orphans: int


def snapshots_to_keep(history: Iterable[tuple[int, Mapping[str, str]]]) -> int:
    """How many of the newest snapshots must stay: back to the newest commit of every job.

    Older queries of a job do not matter: their checkpoints are gone. A derived table keeps the newest
    snapshot that stores its source snapshot. `history` starts with the newest."""
    seen: set[str] = set()
    needed = 1
    for count, (_, summary) in enumerate(history, 1):
        owner = summary.get(JOB) if BATCH in summary else summary.get(SOURCE_SNAPSHOT) and SOURCE_SNAPSHOT
        if owner and owner not in seen:
            seen.add(owner)
            needed = count
    return needed


def is_due(history: Iterable[tuple[int, Mapping[str, str]]]) -> bool:
    """Whether a table has many commits since its last compaction. `history` starts with the newest."""
    operations = (summary.get("operation") for _, summary in itertools.islice(history, COMMITS_MAX))
    return sum(1 for _ in itertools.takewhile(lambda each: each != "replace", operations)) == COMMITS_MAX


def maintain_due(tables: Tables, job: Job, *, now: datetime) -> list[MaintenanceResult]:
    """Maintains those tables of a job that are due. Raises SparkFailed, DiskFull."""
    names = [name for name in (*job.tables, job.sink.rejected) if tables.exists(name)]
    return [maintain(tables, name, now=now) for name in names if is_due(tables.snapshots(name))]


def maintain(
    tables: Tables,
    table: str,
    *,
    now: datetime,
    days: float = SNAPSHOT_DAYS_KEPT,
    orphan_days: float = ORPHAN_DAYS_MIN,
) -> MaintenanceResult:
    """Compacts, expires and cleans one table. Raises SparkFailed, DiskFull; the table stays whole."""

    def call(procedure: str, arguments: str) -> list[Row]:
        sql = f"CALL {CATALOG}.system.{procedure}(table => '{table}'{arguments})"
        return tables.session.sql(sql).collect()

    def count() -> tuple[int, int]:
        files = tables.session.table(f"{tables.qualified(table)}.files").count()
        return files, len(list(tables.snapshots(table)))

    with translate_errors(f"maintenance of {table}"):
        files, snapshots = count()
        options = (
            f"'target-file-size-bytes', '{FILE_BYTES}', 'min-input-files', '2', 'delete-file-threshold', '1'"
        )
        call("rewrite_data_files", f", options => map({options})")
        call("rewrite_manifests", "")
        fault_points.reach(COMPACTED)
        keep = max(SNAPSHOTS_KEPT_MIN, snapshots_to_keep(tables.snapshots(table)))
        older_than = f", older_than => TIMESTAMP '{_timestamp(now, days)}'"
        call("expire_snapshots", f"{older_than}, retain_last => {keep}")
        fault_points.reach(EXPIRED)
        # By the real clock, whatever `now` is: files of a commit in progress must not count as old.
        older_than = f", older_than => TIMESTAMP '{_timestamp(datetime.now(UTC), orphan_days)}'"
        orphans = call("remove_orphan_files", older_than)
        files_after, snapshots_after = count()
        return MaintenanceResult(table, files, files_after, snapshots, snapshots_after, len(orphans))


def _timestamp(now: datetime, days_before: float) -> str:
    return (now - timedelta(days=days_before)).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
