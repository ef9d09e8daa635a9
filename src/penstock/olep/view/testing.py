"""Contract tests that every view store must pass, including one you write.

    from penstock.olep.view.testing import ViewContract

    class TestMyStore(ViewContract):
        def open_stores(self, directory: Path, keep_seconds: float) -> ViewStores:
            return MyViews(...)          # empty at first; with the same directory, finds the existing views

pytest collects the methods. Each tests one promise of `penstock.olep.view`; `MemoryViews` is the reference.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from penstock.model.errors.olep import TokenForeign
from penstock.model.errors.views import (
    SnapshotUnavailable,
    ViewChanged,
    ViewFenced,
    ViewMissing,
    ViewMoved,
    ViewReplaced,
    ViewRetired,
)
from penstock.olep.deduplication import MARKS
from penstock.olep.position import Position
from penstock.olep.store import RowsRefused
from penstock.olep.table import Table
from penstock.olep.view import SKIPPED, Version, ViewBatch, digest
from penstock.olep.view.projection import Projection
from penstock.olep.view.stores.memory import MemoryViews

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.olep.view import ViewStore, ViewStores

TOPIC: Final = "AAAAAAAAAAAAAAAAAAAAAA"
OTHER_TOPIC: Final = "BAAAAAAAAAAAAAAAAAAAAA"
LONG: Final = 3600.0  # seconds; nothing is pruned within a test


class Item(NamedTuple):
    shelf: str
    number: int
    title: str
    note: str | None
    weight: float
    picture: bytes


class Entry(NamedTuple):
    number: int
    text: str


ITEMS: Final = Table("items", Item, key=2)
ENTRIES: Final = Table("entries", Entry, append_only=True)


def projection(version: int = 1) -> Projection:
    return Projection(
        "contract", lambda state, event: (), (ITEMS, ENTRIES), {"put": 1}, version, text={"items": ("title",)}
    )


def item(shelf: str, number: int, title: str = "a title", note: str | None = None) -> Item:
    return Item(shelf, number, title, note, number / 4, title.encode())


def put(partition: int, start: int, position: int, *rows: Item | Entry, at: int | None = None) -> ViewBatch:
    """A batch whose last event, or the event at offset `at`, writes these rows."""
    offset = position - 1 if at is None else at
    batch = ViewBatch(partition, start, position, {"items": [], "entries": []})
    for row in rows:
        table = ITEMS if isinstance(row, Item) else ENTRIES
        batch.versions[table.name].append(Version(offset, table.key_of(row), tuple(row)))
    return batch


def history(seed: int, partitions: int, commits: int) -> Iterator[list[ViewBatch]]:
    """Random batches: rows written, written again within a batch, removed, and empty batches."""
    dice = random.Random(seed)
    positions = [0] * partitions
    for _ in range(commits):
        batches = []
        for partition in dice.sample(range(partitions), dice.randint(1, partitions)):
            start = positions[partition]
            batch = ViewBatch(partition, start, start, {"items": [], "entries": []})
            for _ in range(dice.randint(0, 5)):
                offset = batch.position + dice.randint(0, 2)  # markers and aborted records leave gaps
                for _ in range(dice.randint(0, 2)):
                    key = (dice.choice("ab"), dice.randint(0, 3))
                    row = None if dice.random() < 0.3 else tuple(item(*key, title=f"{dice.random()}"))
                    batch.versions["items"].append(Version(offset, key, row))
                if dice.random() < 0.3:
                    batch.versions["entries"].append(Version(offset, offset, (offset, f"entry {offset}")))
                batch.position = offset + 1
            positions[partition] = batch.position
            batches.append(batch)
        yield batches


def contents(store: ViewStore, as_of: Position | None = None) -> tuple[list[Any], list[Any]]:
    with store.reading(as_of) as reader:
        items, entries = (sorted((p, tuple(row)) for p, row in reader.rows(t)) for t in (ITEMS, ENTRIES))
        return items, entries


def at(*offsets: int) -> Position:
    return Position({TOPIC: dict(enumerate(offsets))})


class ViewContract:
    """Subclass it and define `open_stores`; pytest collects it."""

    searches: ClassVar[bool] = False  # whether readers have `search`

    def open_stores(self, directory: Path, keep_seconds: float) -> ViewStores:
        raise NotImplementedError

    def open_store(
        self, directory: Path, *, topic_id: str = TOPIC, version: int = 1, keep_seconds: float = LONG
    ) -> ViewStore:
        views = self.open_stores(directory, keep_seconds)
        return views.open(projection(version), topic_id, 2, generation=1)

    def open_claimed(self, directory: Path, **keys: Any) -> ViewStore:
        store = self.open_store(directory, **keys)
        store.claim()
        return store

    def test_rows_and_position_survive_a_reopen(self, tmp_path: Path) -> None:
        store = self.open_claimed(tmp_path)
        store.commit([put(0, 0, 7, item("a", 1), Entry(6, "six")), put(1, 0, 3, item("a", 1, "other"))])
        store.close()
        again = self.open_store(tmp_path)
        assert again.claim() == {0: 7, 1: 3}
        expected = ([(0, item("a", 1)), (1, item("a", 1, "other"))], [(0, (6, "six"))])
        assert contents(again) == expected
        assert again.load(0, ITEMS, ("a", 1)) == tuple(item("a", 1))
        again.close()

    def test_a_position_moves_past_events_that_change_nothing(self, tmp_path: Path) -> None:
        store = self.open_claimed(tmp_path)
        store.commit([ViewBatch(0, 0, 900)])
        assert store.position() == at(900, 0)
        store.close()

    def test_rows_are_replaced_and_removed_by_key(self, tmp_path: Path) -> None:
        store = self.open_claimed(tmp_path)
        store.commit([put(0, 0, 1, item("a", 1), item("a", 2))])
        removal = ViewBatch(0, 1, 2, {"items": [Version(1, ("a", 2), None), Version(1, ("never", 0), None)]})
        store.commit([removal, put(1, 0, 1, item("b", 1))])
        store.commit([put(0, 2, 3, item("a", 1, "new", "with a note"))])
        assert contents(store)[0] == [(0, item("a", 1, "new", "with a note")), (1, item("b", 1))]
        store.close()

    def test_the_last_version_of_a_batch_wins(self, tmp_path: Path) -> None:
        store = self.open_claimed(tmp_path)
        batch = put(0, 0, 9, item("a", 1, "first"), at=2)
        for offset, title in ((4, "second"), (4, "third"), (8, "last")):
            batch.versions["items"].append(Version(offset, ("a", 1), tuple(item("a", 1, title))))
        store.commit([batch])
        assert contents(store)[0] == [(0, item("a", 1, "last"))]
        assert [contents(store, at(n, 0))[0] for n in (2, 3, 5)] == [
            [],
            [(0, item("a", 1, "first"))],
            [(0, item("a", 1, "third"))],
        ]
        store.close()

    def test_a_refused_batch_leaves_neither_rows_nor_position(self, tmp_path: Path) -> None:
        store = self.open_claimed(tmp_path)
        store.commit([put(0, 0, 1, item("a", 1))])
        wrong = item("a", 9)._replace(number=1 << 63)
        refused = [put(1, 0, 1, item("good", 1)), put(0, 1, 2, item("a", 1, "changed"), wrong)]
        _assert_raises(RowsRefused, lambda: store.commit(refused))
        assert (contents(store)[0], store.position()) == ([(0, item("a", 1))], at(1, 0))
        store.commit(
            [put(0, 1, 2, item("a", 2)), ViewBatch(1, 0, 1)]
        )  # nothing of the refused batch shows later
        assert contents(store)[0] == [(0, item("a", 1)), (0, item("a", 2))]
        store.close()

    def test_rows_of_types_that_no_column_has_are_refused(self, tmp_path: Path) -> None:
        store = self.open_claimed(tmp_path)
        for wrong in ({"number": "seven"}, {"note": object()}):
            row = item("a", 1)._replace(**wrong)
            _assert_raises(RowsRefused, lambda row=row: store.commit([put(0, 0, 1, item("a", 1), row)]))
        assert (contents(store)[0], store.position()) == ([], at(0, 0))
        store.close()

    def test_a_writer_that_lost_the_view_changes_nothing(self, tmp_path: Path) -> None:
        paused, owner = self.open_claimed(tmp_path), self.open_store(tmp_path)
        owner.claim()
        _assert_raises(ViewFenced, lambda: paused.commit([put(0, 0, 5, item("a", 1))]))
        assert (contents(owner)[0], owner.position()) == ([], at(0, 0))
        owner.commit([put(0, 0, 1, item("a", 2))])
        paused.close()
        owner.close()

    def test_a_batch_applies_only_if_it_starts_at_the_stored_position(self, tmp_path: Path) -> None:
        store = self.open_claimed(tmp_path)
        store.commit([put(0, 0, 9, item("a", 1, "new"), Entry(8, "eight"))])
        known = ([(0, item("a", 1, "new"))], [(0, (8, "eight"))])
        for start, position in ((0, 4), (0, 9), (4, 12), (10, 12)):  # applied before, overlapping, a hole
            refused = put(0, start, position, item("a", 1, "wrong"), Entry(8, "again"))
            good = put(1, 0, 1, item("b", 1))
            for batches in ([refused], [good, refused], [refused, good]):
                _assert_raises(ViewMoved, lambda batches=batches: store.commit(batches))
                assert (contents(store), store.position()) == (known, at(9, 0)), (
                    "a refused batch left a trace"
                )
        store.commit([put(0, 9, 10, item("a", 2))])
        assert contents(store)[0] == [(0, item("a", 1, "new")), (0, item("a", 2))]
        store.close()

    def test_a_retired_generation_takes_no_writes_until_it_is_claimed(self, tmp_path: Path) -> None:
        views, store = self.open_stores(tmp_path, LONG), self.open_claimed(tmp_path)
        store.commit([put(0, 0, 5, item("a", 1))])
        for _ in range(2):  # by two rebuilds
            assert views.retire("contract", 1) == at(5, 0)
        for batches in ([put(0, 5, 6, item("a", 2))], list[ViewBatch]()):
            _assert_raises(ViewRetired, lambda batches=batches: store.commit(batches))
        assert (contents(store)[0], store.position()) == ([(0, item("a", 1))], at(5, 0))
        again = self.open_store(tmp_path)
        assert again.claim() == {0: 5, 1: 0}
        again.commit([put(0, 5, 6, item("a", 2))])
        _assert_raises(ViewFenced, lambda: store.commit([]))
        _assert_raises(ViewMissing, lambda: views.retire("contract", 2))
        store.close()
        again.close()

    def test_every_retained_position_shows_the_rows_of_the_memory_store(self, tmp_path: Path) -> None:
        store, memory, dice = self.open_claimed(tmp_path), _memory(), random.Random(1)
        for batches in history(1, 2, 40):
            store.commit(batches)
            memory.commit(batches)
        ends = store.position().offsets[TOPIC]
        assert store.position() == memory.position()
        for _ in range(40):
            position = at(*(dice.randint(0, ends[p]) for p in range(2)))
            assert contents(store, position) == contents(memory, position), f"as of {position}"
        with store.reading() as ours, memory.reading() as theirs:
            assert digest(ours, projection()) == digest(theirs, projection())
        store.close()

    def test_a_row_is_read_by_key_as_of_a_position(self, tmp_path: Path) -> None:
        store = self.open_claimed(tmp_path)
        store.commit([put(0, 0, 5, item("a", 1, "old")), put(1, 0, 5, item("a", 1, "other"))])
        store.commit([put(0, 5, 6, item("a", 1, "new"))])
        with store.reading(at(5, 5)) as then, store.reading() as now:
            rows = [sorted((p, tuple(row)) for p, row in r.get(ITEMS, ("a", 1))) for r in (then, now)]
            missing = then.get(ITEMS, ("a", 2))
            shown = (then.position, now.position)
        other = (1, tuple(item("a", 1, "other")))
        assert rows == [[(0, tuple(item("a", 1, "old"))), other], [(0, tuple(item("a", 1, "new"))), other]]
        assert (missing, shown) == ([], (at(5, 5), at(6, 5)))
        store.close()

    def test_positions_that_are_not_retained_are_refused(self, tmp_path: Path) -> None:
        store = self.open_claimed(tmp_path, keep_seconds=0.0)
        store.commit([put(0, 0, 5, item("a", 1, "old"))])
        store.commit([put(0, 5, 9, item("a", 1, "new"))])
        store.commit([put(0, 9, 10, item("a", 2))])
        _assert_raises(SnapshotUnavailable, lambda: contents(store, at(10, 1)))  # ahead of the view
        with suppress(SnapshotUnavailable):  # expired; a store with the whole history may show it
            assert contents(store, at(2, 0))[0] == []
        assert contents(store, at(10, 0))[0] == [(0, item("a", 1, "new")), (0, item("a", 2))]
        store.close()

    def test_a_reader_is_not_affected_by_later_commits(self, tmp_path: Path) -> None:
        store = self.open_claimed(tmp_path)
        store.commit([put(0, 0, 1, item("a", 1, "old"))])
        with store.reading(at(1, 0)) as reader:
            before = reader.get(ITEMS, ("a", 1))
            store.commit([put(0, 1, 2, item("a", 1, "new"))])
            after = reader.get(ITEMS, ("a", 1))
        assert [tuple(row) for _, row in before] == [tuple(row) for _, row in after] == [item("a", 1, "old")]
        store.close()

    def test_a_token_of_another_topic_is_refused(self, tmp_path: Path) -> None:
        store = self.open_claimed(tmp_path)
        _assert_raises(TokenForeign, lambda: contents(store, Position({OTHER_TOPIC: {0: 0}})))
        store.close()

    def test_a_view_of_a_recreated_topic_is_refused(self, tmp_path: Path) -> None:
        self.open_claimed(tmp_path).close()
        _assert_raises(ViewReplaced, lambda: self.open_store(tmp_path, topic_id=OTHER_TOPIC))

    def test_a_changed_projection_needs_a_rebuild(self, tmp_path: Path) -> None:
        self.open_claimed(tmp_path).close()
        _assert_raises(ViewChanged, lambda: self.open_store(tmp_path, version=2))

    def test_internal_rows_are_stored_for_each_partition(self, tmp_path: Path) -> None:
        store = self.open_claimed(tmp_path)
        marks: dict[Any, tuple[Any, ...] | None] = {"s": ("s", 5), "t": ("t", 6)}
        skipped: dict[Any, tuple[Any, ...] | None] = {3: (3, "decide-raised", "why")}
        store.commit([ViewBatch(0, 0, 4, {}, {MARKS.name: marks, SKIPPED.name: skipped})])
        store.commit([ViewBatch(0, 4, 5, {}, {MARKS.name: {"t": None, "s": ("s", 9)}})])
        store.close()
        again = self.open_claimed(tmp_path)
        assert [[*map(tuple, again.scan(p, MARKS))] for p in (0, 1)] == [[("s", 9)], []]
        assert [tuple(row) for row in again.scan(0, SKIPPED)] == [(3, "decide-raised", "why")]
        again.close()

    def test_generations_are_separate_and_one_serves(self, tmp_path: Path) -> None:
        views = self.open_stores(tmp_path, LONG)
        assert (views.generations("contract"), views.serving("contract")) == ([], None)
        old = views.open(projection(), TOPIC, 2, generation=1)
        new = views.open(projection(2), TOPIC, 2, generation=2)
        for store, title in ((old, "old"), (new, "new")):
            store.claim()
            store.commit([put(0, 0, 1, item("a", 1, title))])
        views.serve("contract", 1)
        views.serve("contract", 2)
        assert (views.generations("contract"), views.serving("contract")) == ([1, 2], 2)
        assert contents(old)[0] == [(0, item("a", 1, "old"))]
        old.close()
        views.drop("contract", 1)
        assert (views.generations("contract"), contents(new)[0]) == ([2], [(0, item("a", 1, "new"))])
        _assert_raises(ViewMissing, lambda: views.serve("contract", 1))
        new.close()

    def test_a_search_matches_the_text_as_of_a_position(self, tmp_path: Path) -> None:
        if not self.searches:
            return
        store: Any = self.open_claimed(tmp_path)
        store.commit(
            [put(0, 0, 5, item("a", 1, "the quick brown fox")), put(1, 0, 1, item("b", 1, "a lazy dog"))]
        )
        store.commit([put(0, 5, 6, item("a", 1, "the slow dog"))])
        assert [
            _search(store, word, position) for word in ("fox", "dog") for position in (at(5, 1), None)
        ] == [[(0, ("a", 1))], [], [(1, ("b", 1))], [(0, ("a", 1)), (1, ("b", 1))]]
        assert _search(store, 'slow "AND" (dog', None) == []
        store.close()


def _search(store: Any, text: str, as_of: Position | None) -> list[Any]:
    with store.reading(as_of) as reader:
        return sorted(reader.search(ITEMS, text))


def _memory() -> ViewStore:
    store = MemoryViews(LONG).open(projection(), TOPIC, 2, generation=1)
    store.claim()
    return store


def _assert_raises(expected: type[Exception], call: Any) -> None:
    try:
        call()
    except expected:
        return
    except Exception as error:
        raise AssertionError(f"{expected.__name__} was not raised, but {error!r}") from error
    raise AssertionError(f"{expected.__name__} was not raised")
