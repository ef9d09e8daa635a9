"""Folds one partition of an OLEP application's log, with its state in Spark's state store.

It is the same `Fold` that executors run. This module runs in Python workers, which may have nothing but
the shipped archive, so it imports no more than it needs.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from penstock.olep.event import Record
from penstock.olep.fold import INTERNAL_TABLES, Batch, Fold, PurityChecks, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.olep.application import Application
    from penstock.olep.codec import Codec
    from penstock.olep.table import Key, Table
    from penstock.pipeline.lake.ledger import Offsets

BATCH_EVENTS_MAX: Final = 500_000
OUTGOING_DDL: Final = "partition int, position bigint, log string, key binary, value binary"
_BYTES: Final = "~"


@dataclass(frozen=True, slots=True)
class FoldTask:
    """An application's log to fold, from its beginning to a position."""

    application: Application
    log: str  # the name its events use for it
    topic_id: str  # as Kafka prints it
    codec: Codec
    until: Offsets
    sent: Offsets  # events emitted below these offsets were already sent by an executor
    group: str | None = None  # the executors' consumer group that `sent` was read from
    batch_events_max: int = BATCH_EVENTS_MAX


class FoldProcessor(StatefulProcessor):
    """Folds one partition of the log; each table's rows are in a map state."""

    def __init__(self, task: FoldTask) -> None:
        self.task = task

    def init(self, handle: Any) -> None:
        tables = (*self.task.application.tables, *INTERNAL_TABLES)
        self._maps = {t.name: handle.getMapState(t.name, "key string", "row string") for t in tables}

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802,N803 - the API's names
        partition = int(key[0])
        read = (Record(row.offset, _bytes(row.key), _bytes(row.value)) for row in rows)
        records = sorted(read, key=lambda record: record.offset)
        task, reader = self.task, MapReader(self._maps)
        source = Source(task.log, task.topic_id, partition)
        fold = Fold(task.application, source, task.codec, reader, purity_checks=PurityChecks.NEVER)
        sent = task.sent.get(partition, 0)
        before = [record for record in records if record.offset < sent]
        after = records[len(before) :]
        for group, emit in ((before, False), (after, True)):
            if group:
                batch = fold.process(group, group[0].offset)
                self._store(batch)
                fold.committed()
                if batch.stopped is not None:
                    raise batch.stopped
                if emit:
                    at = {"partition": partition, "position": batch.position}
                    for log, out_key, value in batch.outgoing:
                        yield Row(**at, log=log, key=out_key, value=value)

    def _store(self, batch: Batch) -> None:
        for name, changes in batch.changes.items():
            for key, row in changes.items():
                if row is None:
                    self._maps[name].removeKey((encode_value(key),))
                else:
                    self._maps[name].updateValue((encode_value(key),), (encode_value(row),))
        tables = {table.name: table for table in self.task.application.tables}
        for name, appended in batch.appends.items():
            for row in appended:
                self._maps[name].updateValue((encode_value(tables[name].key_of(row)),), (encode_value(row),))

    def close(self) -> None:
        """Nothing to close."""


class MapReader:
    """Reads rows from the map states for a fold."""

    def __init__(self, maps: Mapping[str, Any]) -> None:
        self._maps = maps

    def load(self, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        state = self._maps[table.name].getValue((encode_value(key),))
        return None if state is None else decode_row(state[0])

    def scan(self, table: Table[Any]) -> list[tuple[Any, ...]]:
        states = self._maps[table.name]
        return [decode_row(row[0]) for _, row in states.iterator()] if states.exists() else []


def encode_value(value: Any) -> str:
    """A key or row as JSON; equal values have equal texts."""
    return json.dumps(value, default=_tagged, separators=(",", ":"))


def _tagged(value: bytes) -> dict[str, str]:
    return {_BYTES: base64.b64encode(value).decode()}


def decode_row(text: str) -> tuple[Any, ...]:
    return tuple(json.loads(text, object_hook=lambda tagged: base64.b64decode(tagged[_BYTES])))


def _bytes(value: bytes | bytearray | None) -> bytes | None:
    """Binary values as `bytes`: Spark may pass a `bytearray`, which the compiled fold refuses."""
    return None if value is None else bytes(value)
