"""Merges: upserts by key, and the rejected records of an offset range that is read again.

In an upsert, the newest record of each key becomes its row; a tombstone deletes it.

The newest is the one with the highest offset, or the highest value of a column that the job names
(`order_by`). Offsets order records of one partition only. A key in several partitions therefore stops an
upsert by offset: without that, newer records could lose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from penstock.pipeline.lake.columns import DELETED, OFFSET, PARTITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.pipeline.job import Sink
    from penstock.pipeline.lake.ledger import Offsets
    from penstock.pipeline.lake.tables import Tables

KEY_MOVED: Final = "penstock-key-moved"  # in Spark's error text
_RANK: Final = "penstock_rank"
_VIEW: Final = "penstock_batch"


def newest_by_key(rows: DataFrame, key: tuple[str, ...], order_by: str | None = None) -> DataFrame:
    """The newest row of each key.

    The window shuffles and sorts rows once, by key, which is the order the merge needs. An aggregate over
    whole rows would also sort before the shuffle."""
    order = [F.desc(name) for name in (order_by, OFFSET, PARTITION) if name is not None]
    window = Window.partitionBy(*key).orderBy(*order)
    rank: Any = F.row_number().over(window)
    if order_by is None and PARTITION not in key:
        moved = F.lag(PARTITION).over(window) != F.col(PARTITION)
        rank = F.when(moved, F.raise_error(F.lit(KEY_MOVED)).cast("int")).otherwise(rank)
    return rows.withColumn(_RANK, rank).filter(F.col(_RANK) == 1).drop(_RANK)


def upsert(tables: Tables, rows: DataFrame, sink: Sink) -> None:
    """Merges rows by the sink's key in one commit."""
    columns = [each for each in rows.columns if each != DELETED]
    same = " AND ".join(f"t.`{each}` = s.`{each}`" for each in sink.key)
    update = ", ".join(f"t.`{each}` = s.`{each}`" for each in columns)
    into, values = ", ".join(f"`{each}`" for each in columns), ", ".join(f"s.`{each}`" for each in columns)
    newer = _newer(sink)
    actions = (
        f"WHEN MATCHED AND s.{DELETED} AND {newer} THEN DELETE "
        f"WHEN MATCHED AND s.{DELETED} IS NULL AND {newer} THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED AND s.{DELETED} IS NULL THEN INSERT ({into}) VALUES ({values})"
    )
    _merge(tables, sink.table, newest_by_key(rows, sink.key, sink.order_by), same, actions)


def replace_rejected(tables: Tables, table: str, rejected: DataFrame, begin: Offsets, until: Offsets) -> None:
    """Replaces the rejected records of a range in one commit, so a crash leaves the old rows or the new."""
    same = f"t.{PARTITION} = s.{PARTITION} AND t.{OFFSET} = s.{OFFSET}"
    inside = " OR ".join(
        f"(t.{PARTITION} = {p} AND t.{OFFSET} >= {begin[p]} AND t.{OFFSET} < {until[p]})" for p in begin
    )
    actions = (
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT * "
        f"WHEN NOT MATCHED BY SOURCE AND ({inside}) THEN DELETE"
    )
    _merge(tables, table, rejected, same, actions)


def _merge(tables: Tables, table: str, rows: DataFrame, same: str, actions: str) -> None:
    """Merges `rows`, named s, into the table, named t."""
    rows.createOrReplaceTempView(_VIEW)
    session = rows.sparkSession
    try:
        session.sql(f"MERGE INTO {tables.qualified(table)} t USING {_VIEW} s ON {same} {actions}")
    finally:
        session.catalog.dropTempView(_VIEW)


def _newer(sink: Sink) -> str:
    """SQL: whether the record is not older than the row."""
    if sink.order_by is not None:
        s, t = (f"struct({r}.`{sink.order_by}`, {r}.{OFFSET}, {r}.{PARTITION})" for r in "st")
        return f"{s} >= {t}"
    if PARTITION in sink.key:
        return f"s.{OFFSET} >= t.{OFFSET}"
    return (
        f"CASE WHEN s.{PARTITION} = t.{PARTITION} THEN s.{OFFSET} >= t.{OFFSET} "
        f"ELSE raise_error('{KEY_MOVED}') END"
    )
