"""Stores that break the contract, each in one way: the shipped contract test for it catches every one."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.olep.position import Position
from penstock.olep.store import RowsRefused
from penstock.olep.view import Version
from penstock.olep.view.stores.memory import MemoryView, MemoryViews
from penstock.olep.view.testing import ViewContract

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.olep.view import ViewBatch, ViewStores
    from penstock.olep.view.stores.memory import MemoryReader


class _SeparatePosition(MemoryView):
    """The position is written separately, so a refused batch still moves it."""

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        try:
            super().commit(batches)
        except RowsRefused:
            self._data.positions |= {each.partition: each.position for each in batches}
            raise


class _HalfBatch(MemoryView):
    """Rows before the invalid one are stored."""

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        try:
            super().commit(batches)
        except RowsRefused:
            super().commit([replace(batches[0], position=batches[0].start)])
            raise


class _AdvancesOneByOne(MemoryView):
    """Commits the batches before the one that it refuses."""

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        for batch in batches:
            super().commit([batch])


class _MovesOnlyWithRows(MemoryView):
    """A batch without rows does not move the position."""

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        super().commit(
            [each for each in batches if any(each.versions.values()) or any(each.internal.values())]
        )


class _Unfenced(MemoryView):
    """Allows two writers."""

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        if self._data.epoch > 0:
            self._epoch = self._data.epoch
        super().commit(batches)


class _NeverRetired(MemoryView):
    """Allows a writer of a generation that was replaced."""

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        if self._data.epoch < 0:
            self._data.epoch = self._epoch
        super().commit(batches)


class _AppliesRepeats(MemoryView):
    """Accepts a batch that starts below the stored position."""

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        super().commit([replace(s, start=max(s.start, self._data.positions[s.partition])) for s in batches])


class _JumpsOverHoles(MemoryView):
    """Accepts a batch that starts above the stored position."""

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        super().commit([replace(s, start=min(s.start, self._data.positions[s.partition])) for s in batches])


class _FirstWins(MemoryView):
    """Applies a batch in another order than the log's."""

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        def reordered(versions: list[Version]) -> list[Version]:
            rows = [(each.key, each.row) for each in reversed(versions)]
            return [Version(v.offset, key, row) for v, (key, row) in zip(versions, rows)]

        super().commit(
            [replace(s, versions={name: reordered(v) for name, v in s.versions.items()}) for s in batches]
        )


class _NoHistory(MemoryView):
    """Shows the current rows as of every position."""

    @contextmanager
    def reading(self, as_of: Position | None = None) -> Iterator[MemoryReader]:
        with super().reading(as_of):
            pass
        with super().reading() as reader:
            if as_of is not None:
                reader.position = as_of
            yield reader


class _OffByOne(MemoryView):
    """The event at a position counts as below it."""

    @contextmanager
    def reading(self, as_of: Position | None = None) -> Iterator[MemoryReader]:
        with super().reading(as_of) as reader:
            reader._shown = {p: at + 1 for p, at in reader._shown.items()}
            yield reader


class _AnyPosition(MemoryView):
    """Serves positions that it has not reached."""

    @contextmanager
    def reading(self, as_of: Position | None = None) -> Iterator[MemoryReader]:
        if as_of is not None:
            here = as_of.of_topic(self.name, self._topic_id)
            as_of = Position(
                {self._topic_id: {p: min(at, here.get(p, 0)) for p, at in self._data.positions.items()}}
            )
        with super().reading(as_of) as reader:
            yield reader


class _MixedPartitions(MemoryView):
    """One row for a key, whichever partition wrote it."""

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        super().commit(batches)
        for name, rows in self._data.versions.items():
            self._data.versions[name] = {(0, key): versions for (_, key), versions in rows.items()}


class _KeepsRemoved(MemoryView):
    """Does not remove rows."""

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        super().commit(
            [
                replace(s, versions={n: [v for v in vs if v.row is not None] for n, vs in s.versions.items()})
                for s in batches
            ]
        )


class _LosesInternalRows(MemoryView):
    """Does not store the ids it has seen, so repeats after a restart are applied again."""

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        super().commit([replace(each, internal={}) for each in batches])


class _Defective(MemoryViews):
    def __init__(self, keep_seconds: float, store_type: type[MemoryView]) -> None:
        super().__init__(keep_seconds)
        self._store_type = store_type

    def open(self, *args: Any, **kwargs: Any) -> MemoryView:
        store = super().open(*args, **kwargs)
        store.__class__ = self._store_type
        return store


class _AnyProjection(MemoryViews):
    """Does not notice that the projection or the topic changed."""

    def open(self, projection: Any, topic_id: str, partitions: int, *, generation: int) -> MemoryView:
        if (existing := self._generations.get((projection.name, generation))) is not None:
            from penstock.olep.view import fingerprint

            existing.built_for = (topic_id, fingerprint(projection))
        return super().open(projection, topic_id, partitions, generation=generation)


class _ServesWhatIsMissing(MemoryViews):
    def serve(self, view: str, generation: int) -> None:
        self._serving[view] = generation


REFUSED = "test_a_refused_batch_leaves_neither_rows_nor_position"
COMPARED = "test_a_batch_applies_only_if_it_starts_at_the_stored_position"
AS_OF = "test_every_retained_position_shows_the_rows_of_the_memory_store"
# Each defect, with the test of the contract that is about it.
DEFECTS: dict[type[MemoryView] | type[MemoryViews], str] = {
    _SeparatePosition: REFUSED,
    _HalfBatch: REFUSED,
    _AdvancesOneByOne: COMPARED,
    _MovesOnlyWithRows: "test_a_position_moves_past_events_that_change_nothing",
    _Unfenced: "test_a_writer_that_lost_the_view_changes_nothing",
    _NeverRetired: "test_a_retired_generation_takes_no_writes_until_it_is_claimed",
    _AppliesRepeats: COMPARED,
    _JumpsOverHoles: COMPARED,
    _FirstWins: "test_the_last_version_of_a_batch_wins",
    _NoHistory: AS_OF,
    _OffByOne: AS_OF,
    _AnyPosition: "test_positions_that_are_not_retained_are_refused",
    _MixedPartitions: "test_rows_and_position_survive_a_reopen",
    _KeepsRemoved: "test_rows_are_replaced_and_removed_by_key",
    _LosesInternalRows: "test_internal_rows_are_stored_for_each_partition",
    _AnyProjection: "test_a_changed_projection_needs_a_rebuild",
    _ServesWhatIsMissing: "test_generations_are_separate_and_one_serves",
}
TESTS = [name for name in dir(ViewContract) if name.startswith("test_")]


def run_contract(defect: type[MemoryView] | type[MemoryViews], test: str, directory: Path) -> None:
    """Runs one test of the contract on a store."""
    created: dict[float, MemoryViews] = {}

    class Contract(ViewContract):
        def open_stores(self, directory: Path, keep_seconds: float) -> ViewStores:
            if keep_seconds not in created:
                if issubclass(defect, MemoryView):
                    created[keep_seconds] = _Defective(keep_seconds, defect)
                else:
                    created[keep_seconds] = defect(keep_seconds)
            return created[keep_seconds]

    getattr(Contract(), test)(directory)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_store_that_breaks_a_promise_fails_the_test_of_that_promise(defect: Any, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run_contract(defect, DEFECTS[defect], tmp_path)


@pytest.mark.parametrize("test", TESTS)
def test_a_correct_store_passes_the_contract(test: str, tmp_path: Path) -> None:
    run_contract(MemoryViews, test, tmp_path)
