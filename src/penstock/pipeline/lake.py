"""Tables of the lake: made, compared, written and asked what their commits say.

Commits are read through Iceberg's own Java objects: a look at the newest ones costs no Spark job.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors.pipeline import LakeUnusable, RoomMissing, SchemaConflict
from penstock.pipeline.failure import first_line, named
from penstock.pipeline.ledger import BATCH, JOB, QUERY, Commit
from penstock.pipeline.session import CATALOG

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

TABLE_PROPERTIES: Final = {
    "format-version": "2",
    # Rows come in the order of the log, so a shuffle before each write would only cost time.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.merge.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.distribution-mode": "none",
    "write.delete.distribution-mode": "none",
}
ADDED_ROWS: Final = "added-records"  # of a commit's summary, Iceberg's own word
_CONF_PROPERTY: Final = "spark.sql.iceberg.snapshot-property."


class Tables:
    """The tables of one lake, for one session."""

    def __init__(self, session: SparkSession, where: str) -> None:
        self.session = session
        self.where = where

    def full(self, table: str) -> str:
        return f"{CATALOG}.{table}"

    def exists(self, table: str) -> bool:
        with self._usable():
            return bool(self.session.catalog.tableExists(self.full(table)))

    def frame(self, table: str) -> DataFrame:
        return self.session.table(self.full(table))

    def ensure(
        self,
        table: str,
        schema: StructType,
        *,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] = {},
    ) -> None:
        """Makes the table if it is not there, and its namespace."""
        namespace = table.rpartition(".")[0]
        columns = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in schema)
        said = ", ".join(f"'{key}'='{value}'" for key, value in {**TABLE_PROPERTIES, **properties}.items())
        split = f"PARTITIONED BY ({', '.join(partition_by)}) " if partition_by else ""
        with self._usable():
            self.session.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{namespace}")
            self.session.sql(
                f"CREATE TABLE IF NOT EXISTS {self.full(table)} ({columns}) "
                f"USING iceberg {split}TBLPROPERTIES ({said})"
            )

    def columns(self, table: str) -> dict[str, str]:
        """Name → type, as the table is now."""
        with self._usable():
            return {f.name: f.dataType.simpleString() for f in self.frame(table).schema}

    def check(self, job: str, table: str, schema: StructType) -> None:
        """Raises SchemaConflict if a column that will be written has another type, or is not there."""
        found = self.columns(table)
        for field in schema:
            expected = field.dataType.simpleString()
            if found.get(field.name, "missing") != expected:
                raise SchemaConflict(
                    job=job,
                    table=table,
                    column=field.name,
                    found=found.get(field.name, "missing"),
                    expected=expected,
                )

    def add_columns(self, table: str, fields: Mapping[str, str]) -> None:
        known = self.columns(table)
        for name, kind in sorted(fields.items()):
            if name not in known:
                self.session.sql(f"ALTER TABLE {self.full(table)} ADD COLUMN `{name}` {kind}")

    # --- commits ---------------------------------------------------------------------------------

    def java(self, table: str) -> Any:
        """Iceberg's own object, fresh from the catalog."""
        jvm: Any = self.session._jvm
        return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.session._jsparkSession, self.full(table)
        )

    def snapshots(self, table: str) -> Iterator[tuple[int, Mapping[str, str]]]:
        """(id, summary) from the newest on, along the line of the current one."""
        java = self.java(table)
        snapshot = java.currentSnapshot()
        while snapshot is not None:
            # Iceberg's object has the operation beside the summary, its file within.
            yield int(snapshot.snapshotId()), {"operation": snapshot.operation(), **dict(snapshot.summary())}
            parent = snapshot.parentId()
            snapshot = None if parent is None else java.snapshot(parent)

    def newest(self, table: str, *, job: str | None = None, query: str | None = None) -> Commit | None:
        """The newest commit that this job, or this query, made."""
        for _, summary in self.snapshots(table):
            if BATCH in summary and (job in (None, summary[JOB])) and (query in (None, summary[QUERY])):
                return Commit.of(summary)
        return None

    def added(self, table: str) -> int:
        """Rows that came with the newest commit."""
        return next((int(said.get(ADDED_ROWS, 0)) for _, said in self.snapshots(table)), 0)

    def current_snapshot(self, table: str) -> int | None:
        return next((snapshot for snapshot, _ in self.snapshots(table)), None)

    # --- writing ----------------------------------------------------------------------------------

    def append(self, rows: DataFrame, table: str, said: Mapping[str, str]) -> None:
        writer = rows.writeTo(self.full(table))
        for key, value in said.items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.append()

    @contextmanager
    def saying(self, session: SparkSession, said: Mapping[str, str]) -> Iterator[None]:
        """For statements that take no options: what commits of this session say meanwhile."""
        for key, value in said.items():
            session.conf.set(_CONF_PROPERTY + key, value)
        try:
            yield
        finally:
            for key in said:
                session.conf.unset(_CONF_PROPERTY + key)

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            ours = named(error, f"the lake at {self.where}")
            if isinstance(ours, RoomMissing):
                raise ours from error
            raise LakeUnusable(where=self.where, reason=first_line(error)) from error
