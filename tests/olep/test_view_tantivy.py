"""Text that lives in another store than the rows: what counts is what SQLite has committed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from penstock.olep.view.tantivy import TantivyView, TantivyViews
from penstock.olep.view.testing import ITEMS, LONG, TOPIC, ViewContract, item, projection, put

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.olep.view import ViewStores


class TestTantivy(ViewContract):
    searches = True

    def make(self, directory: Path, keep_seconds: float) -> ViewStores:
        return TantivyViews(directory, keep_seconds)


class Interrupted(TantivyView):
    """Ends between the commit of the words and that of the rows."""

    def _seal(self) -> None:
        super()._seal()
        raise KeyboardInterrupt


def opened(directory: Path, keep_seconds: float = LONG) -> TantivyView:
    store = TantivyViews(directory, keep_seconds).open(projection(), TOPIC, 2, generation=1)
    store.claim()
    return store


def searched(store: TantivyView, text: str) -> list[int]:
    with store.reading() as reader:
        return sorted(key[1] for _, key in reader.search(ITEMS, text))


def test_words_whose_rows_were_not_committed_are_not_found_then_or_later(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit([put(0, 1, item("a", 1, "a red kite"))])
    store.close()
    views = TantivyViews(tmp_path, LONG)
    killed = Interrupted(views, projection(), TOPIC, 2, 1)
    killed.claim()
    with pytest.raises(KeyboardInterrupt):
        killed.commit([put(0, 2, item("a", 2, "a red herring"))])
    assert searched(killed, "red") == [1]
    killed.close()
    again = opened(tmp_path)
    assert searched(again, "red") == [1]
    again.commit([put(0, 2, item("a", 3, "a blue heron"))])  # under the number that the herring had
    assert [searched(again, word) for word in ("red", "herring", "heron")] == [[1], [], [3]]
    again.close()


def test_an_index_that_was_lost_is_made_again_from_the_rows(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit([put(0, 1, item("a", 1, "a red kite"), item("a", 2, "ein grüner Specht"))])
    store.close()
    shutil.rmtree(tmp_path / "contract.1.words")
    again = opened(tmp_path)
    assert [searched(again, word) for word in ("KITE", "gruner")] == [[1], [2]]
    again.close()


def test_hits_that_do_not_count_any_more_leave_room_for_those_that_do(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for position in range(1, 31):
        store.commit([put(0, position, item("a", 1, "kite kite kite"))])
    store.commit([put(0, 31, *(item("b", number, "a kite among others") for number in range(20)))])
    with store.reading() as reader:
        assert len(reader.search(ITEMS, "kite")) == 20
        assert reader.search(ITEMS, "kite", limit=1) == [(0, ("a", 1))]
    store.close()


def test_what_nobody_may_ask_for_any_more_leaves_the_index(tmp_path: Path) -> None:
    store = opened(tmp_path, keep_seconds=0.0)
    for position in range(1, 12):
        store.commit([put(0, position, item("a", 1, f"title {position}"))])
    assert store._words["items"].searcher().num_docs < 11
    assert searched(store, "title") == [1]
    store.close()
