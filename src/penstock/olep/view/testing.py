"""The contract of view stores, as tests that every store passes, yours too.

    from penstock.olep.view.testing import ViewContract

    class TestMyStore(ViewContract):
        def make(self, directory: Path, keep_seconds: float) -> ViewStores:
            return MyViews(...)          # empty; called twice with one directory, it finds what is there

pytest collects the methods. Each of them is a way in which a store can break the promises of
`penstock.olep.view`; the store is compared with `MemoryViews`.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from penstock.model.errors.views import SnapshotGone, ViewChanged, ViewMissing, ViewReplaced, ViewTaken
from penstock.olep.position import Position
from penstock.olep.repeats import MARKS
from penstock.olep.store import RowsRefused
from penstock.olep.table import Table
from penstock.olep.view import SKIPPED, Stretch, Version, digest
from penstock.olep.view.memory import MemoryViews
from penstock.olep.view.projection import Projection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.olep.view import ViewStore, ViewStores

TOPIC: Final = "AAAAAAAAAAAAAAAAAAAAAA"
OTHER_TOPIC: Final = "BAAAAAAAAAAAAAAAAAAAAA"
LONG: Final = 3600.0  # seconds: nothing is pruned within a test


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


def put(partition: int, position: int, *rows: Item | Entry, at: int | None = None) -> Stretch:
    """A stretch whose last event, or the one at `at`, writes these rows."""
    offset = position - 1 if at is None else at
    stretch = Stretch(partition, position, {"items": [], "entries": []})
    for row in rows:
        table = ITEMS if isinstance(row, Item) else ENTRIES
        stretch.versions[table.name].append(Version(offset, table.key_of(row), tuple(row)))
    return stretch


def history(seed: int, partitions: int, batches: int) -> Iterator[list[Stretch]]:
    """Random batches: rows written, written again within a batch, removed, and stretches of nothing."""
    dice = random.Random(seed)
    positions = [0] * partitions
    for _ in range(batches):
        stretches = []
        for partition in dice.sample(range(partitions), dice.randint(1, partitions)):
            stretch = Stretch(partition, positions[partition], {"items": [], "entries": []})
            for _ in range(dice.randint(0, 5)):
                offset = stretch.position + dice.randint(0, 2)  # markers and aborted records leave gaps
                for _ in range(dice.randint(0, 2)):
                    key = (dice.choice("ab"), dice.randint(0, 3))
                    row = None if dice.random() < 0.3 else tuple(item(*key, title=f"{dice.random()}"))
                    stretch.versions["items"].append(Version(offset, key, row))
                if dice.random() < 0.3:
                    stretch.versions["entries"].append(Version(offset, offset, (offset, f"entry {offset}")))
                stretch.position = offset + 1
            positions[partition] = stretch.position
            stretches.append(stretch)
        yield stretches


def contents(store: ViewStore, cut: Position | None = None) -> tuple[list[Any], list[Any]]:
    with store.reading(cut) as reader:
        items, entries = (sorted((p, tuple(row)) for p, row in reader.rows(t)) for t in (ITEMS, ENTRIES))
        return items, entries


def at(*offsets: int) -> Position:
    return Position({TOPIC: dict(enumerate(offsets))})


class ViewContract:
    """Subclass it, define `make`, and let pytest collect it."""

    searches: ClassVar[bool] = False  # whether readers have `search`

    def make(self, directory: Path, keep_seconds: float) -> ViewStores:
        raise NotImplementedError

    def opened(
        self, directory: Path, *, topic_id: str = TOPIC, version: int = 1, keep_seconds: float = LONG
    ) -> ViewStore:
        views = self.make(directory, keep_seconds)
        return views.open(projection(version), topic_id, 2, generation=1)

    def claimed(self, directory: Path, **keys: Any) -> ViewStore:
        store = self.opened(directory, **keys)
        store.claim()
        return store

    def test_rows_and_position_are_there_when_the_view_is_opened_again(self, tmp_path: Path) -> None:
        store = self.claimed(tmp_path)
        store.commit([put(0, 7, item("a", 1), Entry(6, "six")), put(1, 3, item("a", 1, "other"))])
        store.close()
        again = self.opened(tmp_path)
        assert again.claim() == {0: 7, 1: 3}
        expected = ([(0, item("a", 1)), (1, item("a", 1, "other"))], [(0, (6, "six"))])
        assert contents(again) == expected
        assert again.load(0, ITEMS, ("a", 1)) == tuple(item("a", 1))
        again.close()

    def test_a_position_moves_past_events_that_change_nothing(self, tmp_path: Path) -> None:
        store = self.claimed(tmp_path)
        store.commit([Stretch(0, 900)])
        assert store.position() == at(900, 0)
        store.close()

    def test_rows_are_replaced_and_removed_by_key(self, tmp_path: Path) -> None:
        store = self.claimed(tmp_path)
        store.commit([put(0, 1, item("a", 1), item("a", 2))])
        gone = Stretch(0, 2, {"items": [Version(1, ("a", 2), None), Version(1, ("never", 0), None)]})
        store.commit([gone, put(1, 1, item("b", 1))])
        store.commit([put(0, 3, item("a", 1, "new", "with a note"))])
        assert contents(store)[0] == [(0, item("a", 1, "new", "with a note")), (1, item("b", 1))]
        store.close()

    def test_the_last_version_of_a_batch_wins(self, tmp_path: Path) -> None:
        store = self.claimed(tmp_path)
        stretch = put(0, 9, item("a", 1, "first"), at=2)
        for offset, title in ((4, "second"), (4, "third"), (8, "last")):
            stretch.versions["items"].append(Version(offset, ("a", 1), tuple(item("a", 1, title))))
        store.commit([stretch])
        assert contents(store)[0] == [(0, item("a", 1, "last"))]
        assert [contents(store, at(n, 0))[0] for n in (2, 3, 5)] == [
            [],
            [(0, item("a", 1, "first"))],
            [(0, item("a", 1, "third"))],
        ]
        store.close()

    def test_a_batch_that_cannot_be_kept_leaves_neither_rows_nor_position(self, tmp_path: Path) -> None:
        store = self.claimed(tmp_path)
        store.commit([put(0, 1, item("a", 1))])
        wrong = item("a", 9)._replace(number=1 << 63)
        raised = False
        try:
            store.commit([put(1, 1, item("good", 1)), put(0, 2, item("a", 1, "changed"), wrong)])
        except RowsRefused:
            raised = True
        assert raised, "a row that does not fit its column was kept"
        assert (contents(store)[0], store.position()) == ([(0, item("a", 1))], at(1, 0))
        store.commit([put(0, 2, item("a", 2)), Stretch(1, 1)])  # it goes on, and nothing comes to light
        assert contents(store)[0] == [(0, item("a", 1)), (0, item("a", 2))]
        store.close()

    def test_a_writer_that_lost_the_view_changes_nothing(self, tmp_path: Path) -> None:
        paused, owner = self.claimed(tmp_path), self.opened(tmp_path)
        owner.claim()
        _refused(ViewTaken, lambda: paused.commit([put(0, 5, item("a", 1))]))
        assert (contents(owner)[0], owner.position()) == ([], at(0, 0))
        owner.commit([put(0, 1, item("a", 2))])
        paused.close()
        owner.close()

    def test_a_stretch_that_was_applied_before_is_refused(self, tmp_path: Path) -> None:
        store = self.claimed(tmp_path)
        store.commit([put(0, 9, item("a", 1, "new"))])
        _refused(ViewTaken, lambda: store.commit([put(0, 4, item("a", 1, "old"))]))
        assert (contents(store)[0], store.position()) == ([(0, item("a", 1, "new"))], at(9, 0))
        store.close()

    def test_every_position_kept_shows_what_memory_shows(self, tmp_path: Path) -> None:
        store, memory, dice = self.claimed(tmp_path), _memory(), random.Random(1)
        for stretches in history(1, 2, 40):
            store.commit(stretches)
            memory.commit(stretches)
        ends = store.position().offsets[TOPIC]
        assert store.position() == memory.position()
        for _ in range(40):
            cut = at(*(dice.randint(0, ends[p]) for p in range(2)))
            assert contents(store, cut) == contents(memory, cut), f"as of {cut}"
        with store.reading() as ours, memory.reading() as theirs:
            assert digest(ours, projection()) == digest(theirs, projection())
        store.close()

    def test_a_row_is_found_by_its_key_as_of_a_position(self, tmp_path: Path) -> None:
        store = self.claimed(tmp_path)
        store.commit([put(0, 5, item("a", 1, "old")), put(1, 5, item("a", 1, "other"))])
        store.commit([put(0, 6, item("a", 1, "new"))])
        with store.reading(at(5, 5)) as then, store.reading() as now:
            found = [sorted((p, tuple(row)) for p, row in r.get(ITEMS, ("a", 1))) for r in (then, now)]
            missing = then.get(ITEMS, ("a", 2))
            shown = (then.position, now.position)
        other = (1, tuple(item("a", 1, "other")))
        assert found == [[(0, tuple(item("a", 1, "old"))), other], [(0, tuple(item("a", 1, "new"))), other]]
        assert (missing, shown) == ([], (at(5, 5), at(6, 5)))
        store.close()

    def test_positions_that_are_not_kept_are_refused(self, tmp_path: Path) -> None:
        store = self.claimed(tmp_path, keep_seconds=0.0)
        store.commit([put(0, 5, item("a", 1, "old"))])
        store.commit([put(0, 9, item("a", 1, "new"))])
        store.commit([put(0, 10, item("a", 2))])
        _refused(SnapshotGone, lambda: contents(store, at(10, 1)))  # ahead of what was applied
        with suppress(SnapshotGone):  # before what is kept; a store that keeps everything may answer
            assert contents(store, at(2, 0))[0] == []
        assert contents(store, at(10, 0))[0] == [(0, item("a", 1, "new")), (0, item("a", 2))]
        store.close()

    def test_a_reader_keeps_the_moment_it_began_with(self, tmp_path: Path) -> None:
        store = self.claimed(tmp_path)
        store.commit([put(0, 1, item("a", 1, "old"))])
        with store.reading(at(1, 0)) as reader:
            before = reader.get(ITEMS, ("a", 1))
            store.commit([put(0, 2, item("a", 1, "new"))])
            after = reader.get(ITEMS, ("a", 1))
        assert [tuple(row) for _, row in before] == [tuple(row) for _, row in after] == [item("a", 1, "old")]
        store.close()

    def test_a_token_of_another_topic_is_refused(self, tmp_path: Path) -> None:
        from penstock.model.errors.olep import TokenForeign

        store = self.claimed(tmp_path)
        _refused(TokenForeign, lambda: contents(store, Position({OTHER_TOPIC: {0: 0}})))
        store.close()

    def test_a_view_of_a_topic_that_was_created_anew_is_refused(self, tmp_path: Path) -> None:
        self.claimed(tmp_path).close()
        _refused(ViewReplaced, lambda: self.opened(tmp_path, topic_id=OTHER_TOPIC))

    def test_a_changed_projection_needs_a_rebuild(self, tmp_path: Path) -> None:
        self.claimed(tmp_path).close()
        _refused(ViewChanged, lambda: self.opened(tmp_path, version=2))

    def test_the_layers_own_rows_are_kept_for_each_partition(self, tmp_path: Path) -> None:
        store = self.claimed(tmp_path)
        marks: dict[Any, tuple[Any, ...] | None] = {"s": ("s", 5), "t": ("t", 6)}
        skipped: dict[Any, tuple[Any, ...] | None] = {3: (3, "decide-raised", "why")}
        store.commit([Stretch(0, 4, {}, {MARKS.name: marks, SKIPPED.name: skipped})])
        store.commit([Stretch(0, 5, {}, {MARKS.name: {"t": None, "s": ("s", 9)}})])
        store.close()
        again = self.claimed(tmp_path)
        assert [[*map(tuple, again.scan(p, MARKS))] for p in (0, 1)] == [[("s", 9)], []]
        assert [tuple(row) for row in again.scan(0, SKIPPED)] == [(3, "decide-raised", "why")]
        again.close()

    def test_generations_are_apart_and_one_of_them_serves(self, tmp_path: Path) -> None:
        views = self.make(tmp_path, LONG)
        assert (views.generations("contract"), views.serving("contract")) == ([], None)
        old = views.open(projection(), TOPIC, 2, generation=1)
        new = views.open(projection(2), TOPIC, 2, generation=2)
        for store, title in ((old, "old"), (new, "new")):
            store.claim()
            store.commit([put(0, 1, item("a", 1, title))])
        views.serve("contract", 1)
        views.serve("contract", 2)
        assert (views.generations("contract"), views.serving("contract")) == ([1, 2], 2)
        assert contents(old)[0] == [(0, item("a", 1, "old"))]
        old.close()
        views.drop("contract", 1)
        assert (views.generations("contract"), contents(new)[0]) == ([2], [(0, item("a", 1, "new"))])
        _refused(ViewMissing, lambda: views.serve("contract", 1))
        new.close()

    def test_a_search_finds_what_stood_there_then(self, tmp_path: Path) -> None:
        if not self.searches:
            return
        store: Any = self.claimed(tmp_path)
        store.commit([put(0, 5, item("a", 1, "the quick brown fox")), put(1, 1, item("b", 1, "a lazy dog"))])
        store.commit([put(0, 6, item("a", 1, "the slow dog"))])
        assert [_searched(store, word, cut) for word in ("fox", "dog") for cut in (at(5, 1), None)] == [
            [(0, ("a", 1))],
            [],
            [(1, ("b", 1))],
            [(0, ("a", 1)), (1, ("b", 1))],
        ]
        assert _searched(store, 'slow "AND" (dog', None) == []
        store.close()


def _searched(store: Any, text: str, cut: Position | None) -> list[Any]:
    with store.reading(cut) as reader:
        return sorted(reader.search(ITEMS, text))


def _memory() -> ViewStore:
    store = MemoryViews(LONG).open(projection(), TOPIC, 2, generation=1)
    store.claim()
    return store


def _refused(expected: type[Exception], call: Any) -> None:
    try:
        call()
    except expected:
        return
    raise AssertionError(f"{expected} was not raised")
