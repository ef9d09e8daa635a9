"""A view in dictionaries: the reference that other stores are tested against, and for small caches."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.olep.position import Position
from penstock.olep.view import INTERNAL_TABLES, KEEP_SECONDS, Version, check_rows, fingerprint
from penstock.olep.view.stores.stored_view import StoredView, check_exists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.olep.table import Key, Table
    from penstock.olep.view import ViewBatch
    from penstock.olep.view.projection import Projection


class _Generation:
    """The rows of a generation. Like a file, it outlives the `MemoryView` that writes it."""

    def __init__(self, projection: Projection, topic_id: str, partitions: int) -> None:
        self.built_for = (topic_id, fingerprint(projection))
        self.positions = dict.fromkeys(range(partitions), 0)
        self.horizons = dict.fromkeys(range(partitions), 0)
        self.epoch = 0
        names = [table.name for table in projection.tables]
        # table → (partition, key) → versions, oldest first. Each commit rekeys the dictionaries, so that
        # a reader in another thread is not affected.
        self.versions: dict[str, dict[tuple[int, Any], tuple[Version, ...]]] = {name: {} for name in names}
        self.internal: dict[tuple[str, int], dict[Any, tuple[Any, ...]]] = {}


class MemoryViews:
    """Generations, which exist as long as this object."""

    def __init__(
        self, keep_seconds: float = KEEP_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.keep_seconds = keep_seconds
        self.clock = clock
        self._generations: dict[tuple[str, int], _Generation] = {}
        self._serving: dict[str, int] = {}

    def open(self, projection: Projection, topic_id: str, partitions: int, *, generation: int) -> MemoryView:
        key = (projection.name, generation)
        if key not in self._generations:
            self._generations[key] = _Generation(projection, topic_id, partitions)
        return MemoryView(self, projection, self._generations[key], topic_id, generation)

    def generations(self, view: str) -> list[int]:
        return sorted(generation for name, generation in self._generations if name == view)

    def serving(self, view: str) -> int | None:
        return self._serving.get(view)

    def serve(self, view: str, generation: int) -> None:
        check_exists(self, view, generation)
        self._serving[view] = generation

    def retire(self, view: str, generation: int) -> Position:
        check_exists(self, view, generation)
        data = self._generations[view, generation]
        data.epoch = -abs(data.epoch) - 1
        return Position({data.built_for[0]: dict(data.positions)})

    def drop(self, view: str, generation: int) -> None:
        self._generations.pop((view, generation), None)


class MemoryView(StoredView):
    def __init__(
        self, views: MemoryViews, projection: Projection, data: _Generation, topic_id: str, generation: int
    ) -> None:
        name = f"memory of {projection.name}"
        super().__init__(name, projection, topic_id, len(data.positions), generation, views.keep_seconds)
        self._tables = {table.name: table for table in (*projection.tables, *INTERNAL_TABLES)}
        self._data = data
        self._clock = views.clock
        self._check_compatible(*data.built_for)

    def claim(self) -> dict[int, int]:
        self._epoch = self._data.epoch = abs(self._data.epoch) + 1
        return dict(self._data.positions)

    def load(self, partition: int, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        if table.name not in self._data.versions:
            return self._data.internal.get((table.name, partition), {}).get(key)
        versions = self._data.versions[table.name].get((partition, key))
        return versions[-1].row if versions else None

    def scan(self, partition: int, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        if table.name not in self._data.versions:
            return [*self._data.internal.get((table.name, partition), {}).values()]
        versions = self._data.versions[table.name].items()
        return [v[-1].row for (at, _), v in versions if at == partition and v[-1].row is not None]

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        self._check(batches)
        data = self._data
        tables = {name: dict(rows) for name, rows in data.versions.items()}
        for batch in batches:
            for name, versions in batch.versions.items():
                rows = tables[name]
                for version in versions:
                    partition_and_key = (batch.partition, version.key)
                    rows[partition_and_key] = (*rows.get(partition_and_key, ()), version)
            for name, changes in batch.internal.items():
                internal = data.internal.setdefault((name, batch.partition), {})
                for key, row in changes.items():
                    if row is None:
                        internal.pop(key, None)
                    else:
                        internal[key] = row
        data.versions = tables
        data.positions = {**data.positions, **{each.partition: each.position for each in batches}}
        now = self._clock()
        if self._horizon.due(now) and (expired := self._horizon.mark(now, data.positions)) is not None:
            self._prune(expired)

    def position(self) -> Position:
        return self._at(self._data.positions)

    @contextmanager
    def reading(self, as_of: Position | None = None) -> Iterator[MemoryReader]:
        data = self._data
        shown = self._shown(as_of, data.positions, data.horizons)
        yield MemoryReader(self._at(shown), shown, data.versions)

    def close(self) -> None:
        """Nothing to close."""

    def _check(self, batches: Sequence[ViewBatch]) -> None:
        self._check_writer(self._data.epoch, self._data.positions, batches)
        check_rows(batches, self._tables)

    def _prune(self, horizons: Mapping[int, int]) -> None:
        """Deletes versions that ended before the horizon."""
        for name, rows in self._data.versions.items():
            retained = {}
            for partition_and_key, versions in rows.items():
                ends = [*(each.offset for each in versions[1:]), None]
                horizon = horizons[partition_and_key[0]]
                new = tuple(v for v, end in zip(versions, ends) if end is None or end >= horizon)
                if new[-1].row is not None or new[-1].offset >= horizon or len(new) > 1:
                    retained[partition_and_key] = new
            self._data.versions[name] = retained
        self._data.horizons = dict(horizons)


class MemoryReader:
    def __init__(
        self,
        position: Position,
        shown: Mapping[int, int],
        versions: Mapping[str, Mapping[tuple[int, Any], tuple[Version, ...]]],
    ) -> None:
        self.position = position
        self._shown = shown
        self._versions = versions

    def get(self, table: Table[Any], key: Key) -> list[tuple[int, tuple[Any, ...]]]:
        rows = []
        for partition, until in self._shown.items():
            row = _as_of(self._versions[table.name].get((partition, key), ()), until)
            if row is not None:
                rows.append((partition, row))
        return rows

    def rows(self, table: Table[Any]) -> Iterable[tuple[int, tuple[Any, ...]]]:
        for (partition, _), versions in self._versions[table.name].items():
            row = _as_of(versions, self._shown.get(partition, 0))
            if row is not None:
                yield partition, row


def _as_of(versions: Sequence[Version], until: int) -> tuple[Any, ...] | None:
    return next((version.row for version in reversed(versions) if version.offset < until), None)
