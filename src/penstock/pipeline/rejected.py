"""The list of rejected records, for a range of offsets that is read again: each is in it once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.pipeline.columns import OFFSET, PARTITION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from penstock.pipeline.lake import Tables
    from penstock.pipeline.ledger import Offsets

_VIEW: Final = "penstock_rejected"


def renew_rejected(
    tables: Tables, table: str, bad: DataFrame, begin: Offsets, until: Offsets, said: Mapping[str, str]
) -> int:
    """In one commit: a crash leaves the old list or the new one. Returns how many there are."""
    inside = " OR ".join(
        f"(t.{PARTITION} = {p} AND t.{OFFSET} >= {begin[p]} AND t.{OFFSET} < {until[p]})" for p in begin
    )
    bad.createOrReplaceTempView(_VIEW)
    session = bad.sparkSession
    try:
        with tables.saying(session, said):
            session.sql(
                f"MERGE INTO {tables.full(table)} t USING {_VIEW} s "
                f"ON t.{PARTITION} = s.{PARTITION} AND t.{OFFSET} = s.{OFFSET} "
                f"WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT * "
                f"WHEN NOT MATCHED BY SOURCE AND ({inside}) THEN DELETE"
            )
        return bad.count()
    finally:
        session.catalog.dropTempView(_VIEW)
