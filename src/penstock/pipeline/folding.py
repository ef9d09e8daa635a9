"""One partition of an application's log, folded with its state in Spark's state store.

The same `Fold` that executors of applications run. What is here runs in Python workers, which may
have nothing of this package but an archive: it imports no more than it needs.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from penstock.olep.event import Record
from penstock.olep.fold import LAYER_TABLES, Batch, Fold, Source, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.olep.application import Application
    from penstock.olep.codec import Codec
    from penstock.olep.table import Key, Table
    from penstock.pipeline.ledger import Offsets

BATCH_EVENTS_MAX: Final = 500_000
OUTGOING_DDL: Final = "partition int, position bigint, log string, key binary, value binary"
_BYTES: Final = "~"


@dataclass(frozen=True, slots=True)
class Task:
    """What is folded: an application's log, from its beginning to a position."""

    application: Application
    log: str  # the name its events know it by
    topic_id: str  # as executors write it
    codec: Codec
    until: Offsets
    sent: Offsets  # what lies below was sent by an executor before
    group: str | None = None  # whose commits say so
    batch_events_max: int = BATCH_EVENTS_MAX


class FoldProcessor(StatefulProcessor):
    """One partition of the log: its rows are in map states, one for each table."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def init(self, handle: Any) -> None:
        tables = (*self.task.application.tables, *LAYER_TABLES)
        self._maps = {t.name: handle.getMapState(t.name, "key string", "row string") for t in tables}

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802,N803 - the API's names
        partition = int(key[0])
        records = sorted((Record(row.offset, row.key, row.value) for row in rows), key=lambda r: r.offset)
        source = Source(self.task.log, self.task.topic_id, partition)
        fold = Fold(self.task.application, source, self.task.codec, MapReader(self._maps), watch=Watch.NEVER)
        sent = self.task.sent.get(partition, 0)
        before = [record for record in records if record.offset < sent]
        after = records[len(before) :]
        for part, keep in ((before, False), (after, True)):
            if part:
                batch = fold.take(part, part[0].offset)
                self._store(batch)
                fold.settle()
                if batch.stopped is not None:
                    raise batch.stopped
                if keep:
                    for log, to, value in batch.outgoing:
                        yield Row(partition=partition, position=batch.position, log=log, key=to, value=value)

    def _store(self, batch: Batch) -> None:
        for name, changes in batch.changes.items():
            for key, row in changes.items():
                if row is None:
                    self._maps[name].removeKey((encoded(key),))
                else:
                    self._maps[name].updateValue((encoded(key),), (encoded(row),))
        tables = {table.name: table for table in self.task.application.tables}
        for name, appended in batch.appends.items():
            for row in appended:
                self._maps[name].updateValue((encoded(tables[name].key_of(row)),), (encoded(row),))

    def close(self) -> None:
        """Nothing to close."""


class MapReader:
    """Reads rows of the state for a fold."""

    def __init__(self, maps: Mapping[str, Any]) -> None:
        self._maps = maps

    def load(self, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        found = self._maps[table.name].getValue((encoded(key),))
        return None if found is None else decoded(found[0])

    def scan(self, table: Table[Any]) -> list[tuple[Any, ...]]:
        states = self._maps[table.name]
        return [decoded(row[0]) for _, row in states.iterator()] if states.exists() else []


def encoded(value: Any) -> str:
    """A key or a row as text; equal values have equal texts."""
    return json.dumps(value, default=_tagged, separators=(",", ":"))


def _tagged(value: bytes) -> dict[str, str]:
    return {_BYTES: base64.b64encode(value).decode()}


def decoded(text: str) -> tuple[Any, ...]:
    return tuple(json.loads(text, object_hook=lambda found: base64.b64decode(found[_BYTES])))
