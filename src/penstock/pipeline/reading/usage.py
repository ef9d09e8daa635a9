"""Reads usage reports, reduced to the highest value of each counter per hour.

Counters only rise within an incarnation, so an hour needs only each counter's maximum. A maximum does not
depend on repeats, order, or how records are split into blocks and batches: partial maxima are appended as
they come and reduced again when read.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.events import UsageReport
from penstock.pipeline.reading.blocks import Rejected, decode_block
from penstock.pipeline.reading.json_values import check_event, parse_objects

SERIES: Final = ("cluster", "gateway", "incarnation", "tenant")
HOUR_MS: Final = 3_600_000
SCHEMA_PREFIX: Final = f"{UsageReport.kind}/{UsageReport.major}."
_EXPLICIT: Final = pa.schema(
    [
        ("schema", pa.string()),
        *((name, pa.string()) for name in SERIES),
        ("sequence", pa.int64()),
        ("time_ms", pa.int64()),
    ]
)
_REQUIRED: Final = (*SERIES, "sequence", "time_ms")


class _ReportDecoder:
    """Decodes a report's fields, then its counters as one struct column."""

    schema = _EXPLICIT

    def decode(self, values: pa.Array) -> list[pa.Array]:
        if values.null_count:
            raise ValueError("the record has no value")
        parsed = parse_objects(values, _EXPLICIT, infer=True)
        check_event(parsed, SCHEMA_PREFIX, _REQUIRED)
        if "used" not in parsed.schema.names or not pa.types.is_struct(parsed.schema.field("used").type):
            raise ValueError("`used` is missing, or not an object")
        used: Any = parsed.column("used")
        if used.null_count:
            raise ValueError("`used` is missing")
        for field, column in zip(used.type, used.flatten()):
            if not pa.types.is_integer(field.type) and not pa.types.is_null(field.type):
                raise ValueError(f"`used.{field.name}` is not a whole number")
            if pa.types.is_integer(field.type) and (pc.min(column).as_py() or 0) < 0:
                raise ValueError(f"`used.{field.name}` is below zero")
        return [*(parsed.column(name) for name in _EXPLICIT.names), used]


class UsageReader:
    """Reads (cluster, gateway, incarnation, tenant, dimension, hour) → highest counter value of the block."""

    ddl = ", ".join(
        (*(f"{name} string" for name in SERIES), "dimension string, hour timestamp, counter bigint")
    )

    def read(self, block: pa.RecordBatch) -> tuple[pa.RecordBatch | None, list[Rejected]]:
        values = block.column("value")
        try:
            pieces = [_ReportDecoder().decode(values)]
            rejected: list[Rejected] = []
        except (pa.ArrowException, ValueError):
            pieces, rejected = _decode_in_pieces(values)
        maxima = [rows for columns in pieces for rows in _hourly_maxima(columns)]
        if not maxima:
            return None, rejected
        return pa.concat_tables(maxima).combine_chunks().to_batches()[0], rejected


def _decode_in_pieces(values: pa.Array) -> tuple[list[list[pa.Array]], list[Rejected]]:
    """The decodable pieces, unjoined because their counter names may differ, and the rejected records."""
    pieces: list[list[pa.Array]] = []

    class Collecting(_ReportDecoder):
        def decode(self, values: pa.Array) -> list[pa.Array]:
            columns = super().decode(values)
            pieces.append(columns)
            return columns[:-1]

    _, _, rejected = decode_block(Collecting(), values)
    return pieces, rejected


def _hourly_maxima(columns: list[pa.Array]) -> list[pa.Table]:
    """The maxima of a block, one table per counter."""
    _, *series, _, times, used = columns
    hours = pc.multiply(pc.divide(times, HOUR_MS), HOUR_MS)
    names = [field.name for field in used.type if not pa.types.is_null(field.type)]
    counters = dict(zip((field.name for field in used.type), used.flatten()))
    table = pa.table([*series, hours, *(counters[name] for name in names)], names=[*SERIES, "hour", *names])
    grouped = table.group_by([*SERIES, "hour"], use_threads=False)
    highest = grouped.aggregate([(name, "max") for name in names])
    tables = []
    for name in names:
        column = highest.column(f"{name}_max")
        rows = highest.filter(pc.is_valid(column)) if column.null_count else highest
        tables.append(
            pa.table(
                [
                    *(rows.column(each) for each in SERIES),
                    pa.array([name] * rows.num_rows, pa.string()),
                    rows.column("hour").cast(pa.timestamp("ms", "UTC")),
                    rows.column(f"{name}_max"),
                ],
                names=[*SERIES, "dimension", "hour", "counter"],
            )
        )
    return tables
