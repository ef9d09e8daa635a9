"""State in dictionaries, for replays and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.olep.store import Claim, Unsent, all_tables, fenced

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.olep.application import Application
    from penstock.olep.fold import Batch
    from penstock.olep.table import Key, Table


class MemoryStore:
    def __init__(self, application: Application, partition: int = 0) -> None:
        self.name = f"memory of {application.name}"
        self.partition = partition
        self.at = 0
        self._epoch = 0
        self._claimed = 0
        self._tables = {table.name: table for table in all_tables(application)}
        self._rows: dict[str, dict[Any, tuple[Any, ...]]] = {name: {} for name in self._tables}
        self._outbox: dict[int, Unsent] = {}

    def load(self, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        return self._rows[table.name].get(key)

    def scan(self, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        return list(self._rows[table.name].values())

    def claim(self, partitions: int = 0) -> Claim:
        self._epoch += 1
        self._claimed = self._epoch
        return Claim(self.at, self._epoch)

    def commit(self, batch: Batch, *, sent: int) -> None:
        if (expected := (self._claimed, batch.start)) != (actual := (self._epoch, self.at)):
            raise fenced(self, expected, actual)
        for name, changes in batch.changes.items():
            rows = self._rows[name]
            for key, row in changes.items():
                if row is None:
                    rows.pop(key, None)
                else:
                    rows[key] = row
        for name, appended in batch.appends.items():
            key_of = self._tables[name].key_of
            self._rows[name].update((key_of(row), row) for row in appended)
        for position in [position for position in self._outbox if position <= sent]:
            del self._outbox[position]
        if batch.outgoing:
            self._outbox[batch.position] = Unsent(batch.position, batch.outgoing)
        self.at = batch.position

    def position(self) -> int:
        return self.at

    def unsent(self) -> list[Unsent]:
        return sorted(self._outbox.values())

    def close(self) -> None:
        """Nothing to close."""
