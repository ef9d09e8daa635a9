"""Exports invoice lines: what each tenant used in a period, per dimension, for billing systems.

Lines are sorted and amounts are integers, so exporting the same usage twice gives identical files.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from penstock.atomic_files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date
    from pathlib import Path

    from pyspark.sql import DataFrame


class InvoiceFormat(StrEnum):
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    tenant: str
    cluster: str
    dimension: str
    first_day: str
    last_day: str
    used: int


COLUMNS: Final = tuple(InvoiceLine.__dataclass_fields__)


def invoice_lines(daily: DataFrame, first: date, last: date, tenant: str | None = None) -> list[InvoiceLine]:
    """Usage from the first day to the last, inclusive."""
    period = daily.filter((F.col("day") >= F.lit(first)) & (F.col("day") <= F.lit(last)))
    if tenant is not None:
        period = period.filter(F.col("tenant") == tenant)
    sums = period.groupBy("tenant", "cluster", "dimension").agg(F.sum("used").alias("used"))
    days = first.isoformat(), last.isoformat()
    return sorted(
        (InvoiceLine(row.tenant, row.cluster, row.dimension, *days, int(row.used)) for row in sums.collect()),
        key=lambda line: (line.tenant, line.cluster, line.dimension),
    )


def write_lines(lines: Sequence[InvoiceLine], path: Path, file_format: InvoiceFormat) -> None:
    """Writes the file atomically."""
    rows = [asdict(line) for line in lines]
    if file_format is InvoiceFormat.PARQUET:
        import pyarrow as pa
        import pyarrow.parquet as pq

        fields = [pa.field(name, pa.int64() if name == "used" else pa.string()) for name in COLUMNS]
        out = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(fields)), out)
        content: str | bytes = out.getvalue().to_pybytes()
    elif file_format is InvoiceFormat.JSON:
        content = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
        content = text.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
