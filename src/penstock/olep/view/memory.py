"""A view in dictionaries: the measure that other stores are compared with, and small caches."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.model.errors.views import ViewMissing, ViewTaken
from penstock.olep.position import Position
from penstock.olep.view import (
    KEEP_SECONDS,
    LAYER_TABLES,
    Horizon,
    Version,
    check_kept,
    check_made_for,
    check_rows,
    fingerprint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.olep.table import Key, Table
    from penstock.olep.view import Stretch
    from penstock.olep.view.projection import Projection


class _Kept:
    """What outlives the object that writes it: a generation's rows, as a file would."""

    def __init__(self, projection: Projection, topic_id: str, partitions: int) -> None:
        self.made_for = (topic_id, fingerprint(projection))
        self.positions = dict.fromkeys(range(partitions), 0)
        self.horizons = dict.fromkeys(range(partitions), 0)
        self.epoch = 0
        names = [table.name for table in projection.tables]
        # table → (partition, key) → versions, oldest first. Replaced as a whole by each commit, so
        # that a reader in another thread keeps what it has begun with.
        self.versions: dict[str, dict[tuple[int, Any], tuple[Version, ...]]] = {name: {} for name in names}
        self.layer: dict[tuple[str, int], dict[Any, tuple[Any, ...]]] = {}


class MemoryViews:
    """Generations for as long as this object lives."""

    def __init__(
        self, keep_seconds: float = KEEP_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._kept: dict[tuple[str, int], _Kept] = {}
        self._serving: dict[str, int] = {}

    def open(self, projection: Projection, topic_id: str, partitions: int, *, generation: int) -> MemoryView:
        place = (projection.name, generation)
        if place not in self._kept:
            self._kept[place] = _Kept(projection, topic_id, partitions)
        check_made_for(projection.name, self._kept[place].made_for, projection, topic_id)
        return MemoryView(
            projection, self._kept[place], topic_id, generation, Horizon(self._keep_seconds), self._clock
        )

    def generations(self, view: str) -> list[int]:
        return sorted(generation for name, generation in self._kept if name == view)

    def serving(self, view: str) -> int | None:
        return self._serving.get(view)

    def serve(self, view: str, generation: int) -> None:
        if (view, generation) not in self._kept:
            raise ViewMissing(view=view, generation=generation)
        self._serving[view] = generation

    def drop(self, view: str, generation: int) -> None:
        self._kept.pop((view, generation), None)


class MemoryView:
    def __init__(
        self,
        projection: Projection,
        kept: _Kept,
        topic_id: str,
        generation: int,
        horizon: Horizon,
        clock: Callable[[], float],
    ) -> None:
        self.name = f"memory of {projection.name}"
        self.generation = generation
        self._tables = {table.name: table for table in (*projection.tables, *LAYER_TABLES)}
        self._kept = kept
        self._topic_id = topic_id
        self._horizon = horizon
        self._clock = clock
        self._epoch = 0

    def claim(self) -> dict[int, int]:
        self._kept.epoch += 1
        self._epoch = self._kept.epoch
        return dict(self._kept.positions)

    def load(self, partition: int, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        if table.name not in self._kept.versions:
            return self._kept.layer.get((table.name, partition), {}).get(key)
        versions = self._kept.versions[table.name].get((partition, key))
        return versions[-1].row if versions else None

    def scan(self, partition: int, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        if table.name not in self._kept.versions:
            return [*self._kept.layer.get((table.name, partition), {}).values()]
        found = self._kept.versions[table.name].items()
        return [v[-1].row for (at, _), v in found if at == partition and v[-1].row is not None]

    def commit(self, stretches: Sequence[Stretch]) -> None:
        self._check(stretches)
        kept = self._kept
        tables = {name: dict(rows) for name, rows in kept.versions.items()}
        for stretch in stretches:
            for name, versions in stretch.versions.items():
                rows = tables[name]
                for version in versions:
                    place = (stretch.partition, version.key)
                    rows[place] = (*rows.get(place, ()), version)
            for name, changes in stretch.layer.items():
                layer = kept.layer.setdefault((name, stretch.partition), {})
                for key, row in changes.items():
                    if row is None:
                        layer.pop(key, None)
                    else:
                        layer[key] = row
        kept.versions = tables
        kept.positions = {**kept.positions, **{each.partition: each.position for each in stretches}}
        now = self._clock()
        if self._horizon.due(now) and (gone := self._horizon.mark(now, kept.positions)) is not None:
            self._prune(gone)

    def position(self) -> Position:
        return Position({self._topic_id: dict(self._kept.positions)})

    @contextmanager
    def reading(self, cut: Position | None = None) -> Iterator[MemoryReader]:
        kept = self._kept
        positions, versions = kept.positions, kept.versions
        shown = positions
        if cut is not None:
            shown = dict(cut.of_topic(self.name, self._topic_id))
            check_kept(self.name, shown, positions, kept.horizons)
        yield MemoryReader(Position({self._topic_id: dict(shown)}), shown, versions)

    def close(self) -> None:
        """Nothing to close."""

    def _check(self, stretches: Sequence[Stretch]) -> None:
        if self._epoch != self._kept.epoch:
            raise ViewTaken(view=self.name, epoch=self._epoch, actual=self._kept.epoch)
        for stretch in stretches:
            if stretch.position < self._kept.positions[stretch.partition]:
                at = self._kept.positions[stretch.partition]
                raise ViewTaken(view=self.name, epoch=self._epoch, actual=f"position {at}")
        check_rows(stretches, self._tables)

    def _prune(self, horizons: Mapping[int, int]) -> None:
        """Drops versions that ended at or before the horizon."""
        for name, rows in self._kept.versions.items():
            left = {}
            for place, versions in rows.items():
                ends = [*(each.offset for each in versions[1:]), None]
                horizon = horizons[place[0]]
                new = tuple(v for v, end in zip(versions, ends) if end is None or end >= horizon)
                if new[-1].row is not None or new[-1].offset >= horizon or len(new) > 1:
                    left[place] = new
            self._kept.versions[name] = left
        self._kept.horizons = dict(horizons)


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
        found = []
        for partition, until in self._shown.items():
            row = _as_of(self._versions[table.name].get((partition, key), ()), until)
            if row is not None:
                found.append((partition, row))
        return found

    def rows(self, table: Table[Any]) -> Iterable[tuple[int, tuple[Any, ...]]]:
        for (partition, _), versions in self._versions[table.name].items():
            row = _as_of(versions, self._shown.get(partition, 0))
            if row is not None:
                yield partition, row


def _as_of(versions: Sequence[Version], until: int) -> tuple[Any, ...] | None:
    return next((version.row for version in reversed(versions) if version.offset < until), None)
