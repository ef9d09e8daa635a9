"""Iceberg tables: creating and checking them, and listing their snapshots. `commit` writes to them.

Snapshots are read through Iceberg's Java objects, which needs no Spark job.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors.pipeline import DiskFull, LakeUnusable, SchemaConflict
from penstock.pipeline.lake.commit import ancestors
from penstock.pipeline.lake.ledger import Commit, newest_commit
from penstock.pipeline.spark.failure import first_line, translate_error
from penstock.pipeline.spark.java import java_class
from penstock.pipeline.spark.session import CATALOG

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

TABLE_PROPERTIES: Final = {
    "format-version": "2",
    # Rows arrive in log order, so a shuffle before each write would only cost time.
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


class Tables:
    """The tables of one lake, for one session."""

    def __init__(self, session: SparkSession, location: str) -> None:
        self.session = session
        self.location = location

    def qualified(self, table: str) -> str:
        return f"{CATALOG}.{table}"

    def exists(self, table: str) -> bool:
        with self._lake_errors():
            return bool(self.session.catalog.tableExists(self.qualified(table)))

    def frame(self, table: str) -> DataFrame:
        return self.session.table(self.qualified(table))

    def ensure(
        self,
        table: str,
        schema: StructType,
        *,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] = {},
    ) -> None:
        """Creates the table and its namespace unless they exist."""
        namespace = table.rpartition(".")[0]
        columns = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in schema)
        options = ", ".join(f"'{key}'='{value}'" for key, value in {**TABLE_PROPERTIES, **properties}.items())
        partitioning = f"PARTITIONED BY ({', '.join(partition_by)}) " if partition_by else ""
        with self._lake_errors():
            self.session.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{namespace}")
            self.session.sql(
                f"CREATE TABLE IF NOT EXISTS {self.qualified(table)} ({columns}) "
                f"USING iceberg {partitioning}TBLPROPERTIES ({options})"
            )

    def columns(self, table: str) -> dict[str, str]:
        """Name → type of the table's current columns."""
        with self._lake_errors():
            return {f.name: f.dataType.simpleString() for f in self.frame(table).schema}

    def check_schema(self, job: str, table: str, schema: StructType) -> None:
        """Raises SchemaConflict if a column to be written is missing or has another type."""
        columns = self.columns(table)
        for field in schema:
            name, expected = field.name, field.dataType.simpleString()
            if (actual := columns.get(name, "missing")) != expected:
                raise SchemaConflict(job=job, table=table, column=name, actual=actual, expected=expected)

    def add_columns(self, table: str, fields: Mapping[str, str]) -> None:
        known = self.columns(table)
        for name, kind in sorted(fields.items()):
            if name not in known:
                self.session.sql(f"ALTER TABLE {self.qualified(table)} ADD COLUMN `{name}` {kind}")

    def iceberg_table(self, table: str) -> Any:
        """Iceberg's Java object, loaded from the catalog."""
        util = java_class(self.session, "org.apache.iceberg.spark.Spark3Util")
        return util.loadIcebergTable(self.session._jsparkSession, self.qualified(table))

    def snapshots(self, table: str) -> Iterator[tuple[int, Mapping[str, str]]]:
        """(id, summary) of the current snapshot and its ancestors, newest first."""
        return ancestors(self.iceberg_table(table))

    def newest_commit(self, table: str, *, job: str | None = None, query: str | None = None) -> Commit | None:
        """The newest commit of this job or query."""
        return newest_commit(self.snapshots(table), job=job, query=query)

    def current_snapshot(self, table: str) -> int | None:
        return next((snapshot for snapshot, _ in self.snapshots(table)), None)

    @contextmanager
    def _lake_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            translated = translate_error(error, f"the lake at {self.location}")
            if isinstance(translated, DiskFull):
                raise translated from error
            raise LakeUnusable(where=self.location, reason=first_line(error)) from error
