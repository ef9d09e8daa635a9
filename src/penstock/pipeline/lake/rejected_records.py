"""Replaces the rejected records of an offset range that is read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.pipeline.lake.columns import OFFSET, PARTITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.pipeline.lake.ledger import Offsets
    from penstock.pipeline.lake.tables import Tables

_VIEW: Final = "penstock_rejected"


def replace_rejected(tables: Tables, table: str, rejected: DataFrame, begin: Offsets, until: Offsets) -> None:
    """Replaces them in one commit, so a crash leaves the old rows or the new."""
    inside = " OR ".join(
        f"(t.{PARTITION} = {p} AND t.{OFFSET} >= {begin[p]} AND t.{OFFSET} < {until[p]})" for p in begin
    )
    rejected.createOrReplaceTempView(_VIEW)
    session = rejected.sparkSession
    try:
        session.sql(
            f"MERGE INTO {tables.qualified(table)} t USING {_VIEW} s "
            f"ON t.{PARTITION} = s.{PARTITION} AND t.{OFFSET} = s.{OFFSET} "
            f"WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT * "
            f"WHEN NOT MATCHED BY SOURCE AND ({inside}) THEN DELETE"
        )
    finally:
        session.catalog.dropTempView(_VIEW)
