"""Upserting by key: the newest record of each key is the row of that key, a record without value removes it.

Within a batch the record with the highest offset counts; against the table, a row is replaced by a
record that is not older than it. A key must stay on one partition of its topic, as Kafka's keys do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from penstock.pipeline.columns import DELETED, OFFSET

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from penstock.pipeline.job import Sink
    from penstock.pipeline.lake import Tables


_RANK: Final = "penstock_rank"


def newest_by_key(rows: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """One row for each key: that of the highest offset.

    Rows are shuffled and sorted once, by the key, and that is the order in which the table is joined.
    An aggregate over whole rows would sort them before the shuffle as well.
    """
    newest = F.row_number().over(Window.partitionBy(*key).orderBy(F.desc(OFFSET)))
    return rows.withColumn(_RANK, newest).filter(F.col(_RANK) == 1).drop(_RANK)


def upsert(tables: Tables, rows: DataFrame, sink: Sink, said: Mapping[str, str]) -> None:
    """One commit of the table, which says what it holds."""
    session = rows.sparkSession
    source = newest_by_key(rows, sink.key)
    name = "penstock_batch"
    source.createOrReplaceTempView(name)
    columns = [each for each in rows.columns if each != DELETED]
    same = " AND ".join(f"t.`{each}` = s.`{each}`" for each in sink.key)
    update = ", ".join(f"t.`{each}` = s.`{each}`" for each in columns)
    into, values = ", ".join(f"`{each}`" for each in columns), ", ".join(f"s.`{each}`" for each in columns)
    newer = f"s.{OFFSET} >= t.{OFFSET}"
    with tables.saying(session, said):
        try:
            session.sql(
                f"MERGE INTO {tables.full(sink.table)} t USING {name} s ON {same} "
                f"WHEN MATCHED AND s.{DELETED} AND {newer} THEN DELETE "
                f"WHEN MATCHED AND s.{DELETED} IS NULL AND {newer} THEN UPDATE SET {update} "
                f"WHEN NOT MATCHED AND s.{DELETED} IS NULL THEN INSERT ({into}) VALUES ({values})"
            )
        finally:
            session.catalog.dropTempView(name)
