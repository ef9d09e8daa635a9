"""Invoice lines: what each tenant used in a period, in each dimension, as a file for somebody else's program.

Lines are sorted, and numbers are whole, so that two exports of the same use are the same bytes.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from penstock.fleet.layout import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date
    from pathlib import Path

    from pyspark.sql import DataFrame


class Paper(StrEnum):
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class Line:
    tenant: str
    cluster: str
    dimension: str
    first_day: str
    last_day: str
    used: int


COLUMNS: Final = tuple(Line.__dataclass_fields__)


def invoice_lines(daily: DataFrame, first: date, last: date, tenant: str | None = None) -> list[Line]:
    """Use from the first day to the last, both included."""
    inside = daily.filter((F.col("day") >= F.lit(first)) & (F.col("day") <= F.lit(last)))
    if tenant is not None:
        inside = inside.filter(F.col("tenant") == tenant)
    sums = inside.groupBy("tenant", "cluster", "dimension").agg(F.sum("used").alias("used"))
    days = first.isoformat(), last.isoformat()
    return sorted(
        (Line(row.tenant, row.cluster, row.dimension, *days, int(row.used)) for row in sums.collect()),
        key=lambda line: (line.tenant, line.cluster, line.dimension),
    )


def write_lines(lines: Sequence[Line], path: Path, form: Paper) -> None:
    """The file, whole or not at all."""
    rows = [asdict(line) for line in lines]
    if form is Paper.PARQUET:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = [pa.field(name, pa.int64() if name == "used" else pa.string()) for name in COLUMNS]
        out = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(kinds)), out)
        content: str | bytes = out.getvalue().to_pybytes()
    elif form is Paper.JSON:
        content = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
        content = text.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
