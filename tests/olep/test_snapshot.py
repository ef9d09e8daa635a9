"""Snapshots: the newest copy that is whole and ahead, or the one before it, or none."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.olep import SnapshotBroken
from penstock.olep.snapshot import KEPT, DirectoryShelf, Snapshots
from penstock.olep.store.sqlite import SqliteStores, position_of
from tests.olep.test_stores import APPLICATION, OTHER_TOPIC, PAIRS, ROW, TOPIC, batch

if TYPE_CHECKING:
    from pathlib import Path


class Ground:
    """A machine that keeps snapshots, and another that restores them."""

    def __init__(self, directory: Path) -> None:
        self.shelf = DirectoryShelf(directory / "shelf")
        self.here, self.there = SqliteStores(directory / "here"), SqliteStores(directory / "there")
        self.snapshots = Snapshots(self.shelf, directory / "scratch")

    def kept(self, *positions: int) -> None:
        store = self.here.open(APPLICATION, TOPIC, 0)
        store.claim()
        for position in positions:
            store.commit(batch(position, ROW._replace(right=position)), sent=0)
            self.snapshots.keep(store, position, now=True)
        store.close()

    def restored(self, topic_id: str = TOPIC) -> int | None:
        return self.snapshots.restore(self.there, APPLICATION, topic_id, 0)

    def held(self) -> tuple[str, int] | None:
        return position_of(self.there.path(APPLICATION, 0))


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def test_the_newest_copy_is_restored_with_all_it_held(ground: Ground) -> None:
    ground.kept(3, 5)
    assert (ground.restored(), ground.held()) == (5, (TOPIC, 5))
    store = ground.there.open(APPLICATION, TOPIC, 0)
    assert (len([*store.scan(PAIRS)]), [entry.position for entry in store.unsent()]) == (2, [3, 5])
    store.close()


def test_only_the_newest_copies_are_kept(ground: Ground) -> None:
    ground.kept(1, 2, 3, 4)
    assert len(ground.shelf.names("")) == KEPT


def test_a_broken_copy_is_passed_over_for_the_one_before(ground: Ground) -> None:
    ground.kept(3, 5)
    newest = ground.shelf.directory / ground.shelf.names("")[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    assert (ground.restored(), ground.held()) == (3, (TOPIC, 3))


@pytest.mark.parametrize("content", [b"", b"not a database" * 100])
def test_what_is_no_store_is_refused_even_with_a_right_checksum(
    ground: Ground, content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    name = f"pairs-0.{TOPIC}.{9:020d}.{sha256(content).hexdigest()[:32]}"
    ground.shelf.put(name, file)
    with pytest.raises(SnapshotBroken):
        ground.snapshots._place(name, ground.there.path(APPLICATION, 0))
    assert ground.restored() is None


def test_a_file_that_is_ahead_is_left_alone(ground: Ground) -> None:
    ground.kept(3)
    store = ground.there.open(APPLICATION, TOPIC, 0)
    store.claim()
    store.commit(batch(8), sent=0)
    store.close()
    assert (ground.restored(), ground.held()) == (None, (TOPIC, 8))


def test_copies_of_another_topic_are_not_for_us(ground: Ground) -> None:
    ground.kept(3)
    assert ground.restored(OTHER_TOPIC) is None


def test_nothing_is_copied_twice_at_one_position_nor_too_often(ground: Ground) -> None:
    ground.kept(3)
    (name,) = ground.shelf.names("")
    before = (ground.shelf.directory / name).stat().st_mtime_ns
    store = ground.here.open(APPLICATION, TOPIC, 0)
    ground.snapshots.keep(store, 3, now=True)
    store.claim()
    store.commit(batch(4), sent=0)
    ground.snapshots.keep(store, 4)
    store.close()
    assert ground.shelf.names("") == [name]
    assert (ground.shelf.directory / name).stat().st_mtime_ns == before


def test_an_empty_shelf_restores_nothing(ground: Ground) -> None:
    assert ground.restored() is None
