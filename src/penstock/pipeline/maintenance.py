"""Keeping tables quick and small: few large files, short histories, nothing orphaned.

Expiry never takes the newest commit of a job's query, nor anything after it: that commit is what tells a
repeated batch from a new one. What is expired, compacted or removed changes no row of a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from penstock.model import faults
from penstock.pipeline.failure import naming
from penstock.pipeline.ledger import BATCH, JOB, SOURCE_SNAPSHOT
from penstock.pipeline.session import CATALOG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.pipeline.lake import Tables

COMPACTED: Final = faults.declare(
    "pipeline.maintain.compacted", "files are compacted, no commit is expired and no file removed"
)
EXPIRED: Final = faults.declare(
    "pipeline.maintain.expired", "old commits are expired, files that nobody knows are still there"
)
SNAPSHOTS_KEPT_MIN: Final = 20
SNAPSHOT_DAYS_KEPT: Final = 5.0
ORPHAN_DAYS_MIN: Final = 3.0  # younger files may belong to a commit that is under way
FILE_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class Kept:
    """What was done to a table."""

    table: str
    files_before: int
    files_after: int
    snapshots_before: int
    snapshots_after: int
    orphans: int


def snapshots_to_keep(history: Iterable[tuple[int, Mapping[str, str]]]) -> int:
    """How many of the newest snapshots must stay: down to the newest commit of every job.

    That is the newest commit of the query the job has now; queries of checkpoints that were lost do
    not come back. `history` is from the newest on. A derived table keeps its newest that says of what.
    """
    seen: set[str] = set()
    needed = 1
    for place, (_, summary) in enumerate(history, 1):
        who = summary.get(JOB) if BATCH in summary else summary.get(SOURCE_SNAPSHOT) and SOURCE_SNAPSHOT
        if who and who not in seen:
            seen.add(who)
            needed = place
    return needed


def maintain(
    tables: Tables,
    table: str,
    *,
    now: datetime,
    days: float = SNAPSHOT_DAYS_KEPT,
    orphan_days: float = ORPHAN_DAYS_MIN,
) -> Kept:
    """Compacts, expires and cleans one table. Raises SparkFailed, RoomMissing; the table stays whole."""
    with naming(f"maintenance of {table}"):
        return _maintain(tables, table, now, days, orphan_days)


def _maintain(tables: Tables, table: str, now: datetime, days: float, orphan_days: float) -> Kept:
    session = tables.session
    files, history = _files(tables, table), list(tables.snapshots(table))
    session.sql(
        f"CALL {CATALOG}.system.rewrite_data_files(table => '{table}', options => map("
        f"'target-file-size-bytes', '{FILE_BYTES}', 'min-input-files', '2', 'delete-file-threshold', '1'))"
    ).collect()
    session.sql(f"CALL {CATALOG}.system.rewrite_manifests('{table}')").collect()
    faults.reach(COMPACTED)
    keep = max(SNAPSHOTS_KEPT_MIN, snapshots_to_keep(tables.snapshots(table)))
    older = (now - timedelta(days=days)).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    session.sql(
        f"CALL {CATALOG}.system.expire_snapshots(table => '{table}', older_than => TIMESTAMP '{older}', "
        f"retain_last => {keep})"
    ).collect()
    faults.reach(EXPIRED)
    # By the real clock, whatever `now` is: the files of a commit under way are young by that alone.
    before = (datetime.now(UTC) - timedelta(days=orphan_days)).strftime("%Y-%m-%d %H:%M:%S.%f")
    orphans = session.sql(
        f"CALL {CATALOG}.system.remove_orphan_files(table => '{table}', older_than => TIMESTAMP '{before}')"
    ).collect()
    return Kept(
        table, files, _files(tables, table), len(history), len(list(tables.snapshots(table))), len(orphans)
    )


def _files(tables: Tables, table: str) -> int:
    return int(tables.session.table(f"{tables.full(table)}.files").count())
