"""Conditional commits: a change becomes visible only if the table is as it was when that was decided.

A lock holds on one host; schedulers may run on several. So every write is first staged, as an Iceberg
snapshot that no reader sees. It is then published by comparing and setting the table's metadata: the catalog
accepts it only if no other commit came in between. Otherwise the decision is taken again on the table as it
is now, and the change is staged again or dropped. Staged snapshots that were never published expire with the
others.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from py4j.protocol import Py4JJavaError

from penstock.model import fault_points
from penstock.model.errors.pipeline import TableContended
from penstock.pipeline.spark.failure import SPARK_ERRORS, error_lines
from penstock.pipeline.spark.java import java_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from penstock.pipeline.lake.tables import Tables

    Snapshots = Iterable[tuple[int, Mapping[str, str]]]

STAGED: Final = fault_points.declare(
    "pipeline.commit.staged", "a change is staged in a table, where no reader sees it"
)
ATTEMPTS_MAX: Final = 10
_WAP_ENABLED: Final = "write.wap.enabled"  # lets Spark stage snapshots (Iceberg's write-audit-publish)
_WAP_ID: Final = "wap.id"
_CONF_STAGE: Final = "spark.wap.id"
_CONF_PROPERTY: Final = "spark.sql.iceberg.snapshot-property."
# Another commit came first: the catalog refused ours, or a MERGE saw that its rows or files had changed.
_CONFLICTS: Final = ("CommitFailedException", "ValidationException")


def commit(
    tables: Tables,
    session: SparkSession,
    table: str,
    properties: Mapping[str, str],
    write: Callable[[], None],
    *,
    unless: Callable[[Snapshots], bool] = lambda _: False,
) -> Mapping[str, str] | None:
    """Commits what `write` writes to the table in `session`, unless the table's snapshots already have it.

    Returns the summary of the new snapshot, which has `properties`, or None. `unless` gets the snapshots
    that the commit would follow, newest first, and is asked again whenever another commit came first.
    Raises TableContended, and what `unless` and `write` raise."""
    for _ in range(ATTEMPTS_MAX):
        stage = uuid4().hex
        settings = {_CONF_PROPERTY + key: value for key, value in properties.items()} | {_CONF_STAGE: stage}
        try:
            java = tables.iceberg_table(table)
            if java.properties().get(_WAP_ENABLED) != "true":
                java.updateProperties().set(_WAP_ENABLED, "true").commit()
            seen = _id_of(java.currentSnapshot())
            if unless(ancestors(java)):
                return None
            with _settings(session, settings):
                write()
            fault_points.reach(STAGED)
            summary = _publish(tables, table, stage, seen)
        except SPARK_ERRORS as error:
            if not any(name in line for line in error_lines(error) for name in _CONFLICTS):
                raise
        else:
            if summary is not None:
                return summary
    raise TableContended(table=table, attempts=ATTEMPTS_MAX)


def ancestors(java: Any) -> Iterator[tuple[int, Mapping[str, str]]]:
    """(id, summary) of the current snapshot of an Iceberg table and its ancestors, newest first."""
    snapshot = java.currentSnapshot()
    while snapshot is not None:
        # Iceberg's object keeps the operation outside the summary; its metadata file, inside.
        yield int(snapshot.snapshotId()), {"operation": snapshot.operation(), **dict(snapshot.summary())}
        parent = snapshot.parentId()
        snapshot = None if parent is None else java.snapshot(parent)


def _publish(tables: Tables, table: str, stage: str, seen: int | None) -> Mapping[str, str] | None:
    """Makes the staged snapshot current, if it directly follows `seen` and that still is the current one."""
    java = tables.iceberg_table(table)
    operations = java.operations()
    base = operations.current()
    own = (each for each in reversed(base.snapshots()) if each.summary().get(_WAP_ID) == stage)
    staged = next(own, None)  # it may have expired
    if staged is None or not _id_of(base.currentSnapshot()) == staged.parentId() == seen:
        return None
    changed = java_class(tables.session, "org.apache.iceberg.TableMetadata").buildFrom(base)
    published = changed.setBranchSnapshot(staged.snapshotId(), "main").build()
    try:
        operations.commit(base, published)  # compares with `base` and sets, in the catalog
    except Py4JJavaError:
        # The connection to the catalog may have been lost after it accepted the commit.
        if all(snapshot != staged.snapshotId() for snapshot, _ in ancestors(tables.iceberg_table(table))):
            raise
    return dict(staged.summary())


def _id_of(snapshot: Any) -> int | None:
    return None if snapshot is None else int(snapshot.snapshotId())


@contextmanager
def _settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Spark settings for the writes in this block. SQL statements take no write options."""
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            session.conf.unset(key)
