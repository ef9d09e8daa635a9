"""Stores that break the contract, each in its own way: the shipped tests catch every one of them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.olep.position import Position
from penstock.olep.store import RowsRefused
from penstock.olep.view import Version
from penstock.olep.view.memory import MemoryView, MemoryViews
from penstock.olep.view.testing import ViewContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from penstock.olep.view import Stretch, ViewStores
    from penstock.olep.view.memory import MemoryReader


class _PositionApart(MemoryView):
    """The position is written beside the rows, so a batch that fails leaves it behind."""

    def commit(self, stretches: Sequence[Stretch]) -> None:
        positions = {each.partition: each.position for each in stretches}
        if self._epoch == self._kept.epoch and all(
            at >= self._kept.positions[p] for p, at in positions.items()
        ):
            self._kept.positions = {**self._kept.positions, **positions}
        super().commit(stretches)


class _HalfABatch(MemoryView):
    """Rows before the bad one stay."""

    def commit(self, stretches: Sequence[Stretch]) -> None:
        try:
            super().commit(stretches)
        except RowsRefused:
            super().commit([replace(stretches[0], position=self._kept.positions[stretches[0].partition])])
            raise


class _Forgetful(MemoryView):
    """A position moves only with rows."""

    def commit(self, stretches: Sequence[Stretch]) -> None:
        super().commit(
            [each for each in stretches if any(each.versions.values()) or any(each.layer.values())]
        )


class _Unfenced(MemoryView):
    """Two writers at once."""

    def commit(self, stretches: Sequence[Stretch]) -> None:
        self._epoch = self._kept.epoch
        super().commit(stretches)


class _AppliesRepeats(MemoryView):
    """Goes back when it is told to."""

    def commit(self, stretches: Sequence[Stretch]) -> None:
        self._kept.positions = {**self._kept.positions, **{s.partition: 0 for s in stretches}}
        super().commit(stretches)


class _FirstWins(MemoryView):
    """Applies a batch in another order than the log's."""

    def commit(self, stretches: Sequence[Stretch]) -> None:
        def turned(versions: list[Version]) -> list[Version]:
            rows = [(each.key, each.row) for each in reversed(versions)]
            return [Version(v.offset, key, row) for v, (key, row) in zip(versions, rows)]

        super().commit(
            [replace(s, versions={name: turned(v) for name, v in s.versions.items()}) for s in stretches]
        )


class _NoPast(MemoryView):
    """Shows the present and calls it the past."""

    @contextmanager
    def reading(self, cut: Position | None = None) -> Iterator[MemoryReader]:
        with super().reading(cut):
            pass
        with super().reading() as reader:
            if cut is not None:
                reader.position = cut
            yield reader


class _OffByOne(MemoryView):
    """The event at a position counts as below it."""

    @contextmanager
    def reading(self, cut: Position | None = None) -> Iterator[MemoryReader]:
        with super().reading(cut) as reader:
            reader._shown = {p: at + 1 for p, at in reader._shown.items()}
            yield reader


class _AnyPosition(MemoryView):
    """Answers as of positions that it has not reached."""

    @contextmanager
    def reading(self, cut: Position | None = None) -> Iterator[MemoryReader]:
        if cut is not None:
            here = cut.of_topic(self.name, self._topic_id)
            cut = Position(
                {self._topic_id: {p: min(at, here.get(p, 0)) for p, at in self._kept.positions.items()}}
            )
        with super().reading(cut) as reader:
            yield reader


class _MixedPartitions(MemoryView):
    """One row for a key, whichever partition wrote it."""

    def commit(self, stretches: Sequence[Stretch]) -> None:
        super().commit(stretches)
        for name, rows in self._kept.versions.items():
            self._kept.versions[name] = {(0, key): versions for (_, key), versions in rows.items()}


class _KeepsRemoved(MemoryView):
    """A row that was removed is still there."""

    def commit(self, stretches: Sequence[Stretch]) -> None:
        super().commit(
            [
                replace(s, versions={n: [v for v in vs if v.row is not None] for n, vs in s.versions.items()})
                for s in stretches
            ]
        )


class _LosesTheLayer(MemoryView):
    """Does not keep what was seen, so repeats after a restart are applied again."""

    def commit(self, stretches: Sequence[Stretch]) -> None:
        super().commit([replace(each, layer={}) for each in stretches])


class _Broken(MemoryViews):
    def __init__(self, keep_seconds: float, made: type[MemoryView]) -> None:
        super().__init__(keep_seconds)
        self._made = made

    def open(self, *words: Any, **keys: Any) -> MemoryView:
        store = super().open(*words, **keys)
        store.__class__ = self._made
        return store


class _AnyProjection(MemoryViews):
    """Does not notice that the projection or the topic changed."""

    def open(self, projection: Any, topic_id: str, partitions: int, *, generation: int) -> MemoryView:
        if (kept := self._kept.get((projection.name, generation))) is not None:
            from penstock.olep.view import fingerprint

            kept.made_for = (topic_id, fingerprint(projection))
        return super().open(projection, topic_id, partitions, generation=generation)


class _ServesWhatIsMissing(MemoryViews):
    def serve(self, view: str, generation: int) -> None:
        self._serving[view] = generation


def _of(made: type[MemoryView]) -> Callable[[float], ViewStores]:
    return lambda keep_seconds: _Broken(keep_seconds, made)


PLANTED: dict[str, Callable[[float], ViewStores]] = {
    **{
        made.__name__: _of(made)
        for made in (
            _PositionApart,
            _HalfABatch,
            _Forgetful,
            _Unfenced,
            _AppliesRepeats,
            _FirstWins,
            _NoPast,
            _OffByOne,
            _AnyPosition,
            _MixedPartitions,
            _KeepsRemoved,
            _LosesTheLayer,
        )
    },
    "_AnyProjection": _AnyProjection,
    "_ServesWhatIsMissing": _ServesWhatIsMissing,
}
TESTS = [name for name in dir(ViewContract) if name.startswith("test_")]


def findings(make: Callable[[float], ViewStores], directory: Path) -> list[str]:
    """The tests of the contract that a store fails."""
    found = []
    for name in TESTS:
        made: dict[float, ViewStores] = {}

        class Contract(ViewContract):
            def make(
                self, directory: Path, keep_seconds: float, made: dict[float, ViewStores] = made
            ) -> ViewStores:
                if keep_seconds not in made:
                    made[keep_seconds] = make(keep_seconds)
                return made[keep_seconds]

        try:
            getattr(Contract(), name)(directory)
        except Exception:  # noqa: BLE001 - a broken store may fail in any way
            found.append(name)
    return found


@pytest.mark.parametrize("planted", PLANTED)
def test_a_store_that_breaks_the_contract_is_caught(planted: str, tmp_path: Path) -> None:
    assert findings(PLANTED[planted], tmp_path)


def test_a_store_that_keeps_the_contract_passes(tmp_path: Path) -> None:
    assert findings(MemoryViews, tmp_path) == []
