"""StateSnapshots: the newest copy that is whole and ahead, or the one before it, or none."""

from __future__ import annotations

import threading
import tracemalloc
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.olep import SnapshotBroken, StoreUnavailable
from penstock.olep.state_snapshot import SNAPSHOTS_KEPT, DirectoryStorage, StateSnapshots, _checksum
from penstock.olep.store.sqlite import SqliteStores, position_of
from tests.olep.test_store import APPLICATION, OTHER_TOPIC, PAIRS, ROW, TOPIC, batch

if TYPE_CHECKING:
    from pathlib import Path


class SnapshotHarness:
    """One machine that saves snapshots, and another that restores them."""

    def __init__(self, directory: Path) -> None:
        self.storage = DirectoryStorage(directory / "storage")
        self.here, self.there = SqliteStores(directory / "here"), SqliteStores(directory / "there")
        self.snapshots = StateSnapshots(self.storage, directory / "scratch")

    def save(self, *positions: int) -> None:
        store = self.here.open(APPLICATION, TOPIC, 0)
        store.claim()
        for position in positions:
            store.commit(batch(position, ROW._replace(right=position), start=store.position()), sent=0)
            self.snapshots.save(store, position, now=True)
        store.close()

    def restore(self, topic_id: str = TOPIC) -> int | None:
        return self.snapshots.restore(self.there, APPLICATION, topic_id, 0)

    def restored_position(self) -> tuple[str, int] | None:
        return position_of(self.there.path(APPLICATION, 0))


@pytest.fixture
def harness(tmp_path: Path) -> SnapshotHarness:
    return SnapshotHarness(tmp_path)


def test_the_newest_snapshot_is_restored_completely(harness: SnapshotHarness) -> None:
    harness.save(3, 5)
    assert (harness.restore(), harness.restored_position()) == (5, (TOPIC, 5))
    store = harness.there.open(APPLICATION, TOPIC, 0)
    assert (len([*store.scan(PAIRS)]), [entry.position for entry in store.unsent()]) == (2, [3, 5])
    store.close()


def test_only_the_newest_snapshots_are_kept(harness: SnapshotHarness) -> None:
    harness.save(1, 2, 3, 4)
    assert len(harness.storage.names("")) == SNAPSHOTS_KEPT


def test_a_damaged_snapshot_is_skipped_for_the_previous_one(harness: SnapshotHarness) -> None:
    harness.save(3, 5)
    newest = harness.storage.directory / harness.storage.names("")[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    assert (harness.restore(), harness.restored_position()) == (3, (TOPIC, 3))


@pytest.mark.parametrize("content", [b"", b"not a database" * 100])
def test_a_file_that_is_not_a_store_is_refused_even_with_a_valid_checksum(
    harness: SnapshotHarness, content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    name = f"pairs-0.{TOPIC}.{9:020d}.{sha256(content).hexdigest()[:32]}"
    harness.storage.put(name, file)
    with pytest.raises(SnapshotBroken):
        harness.snapshots._place(name, harness.there.path(APPLICATION, 0))
    assert harness.restore() is None


def test_a_file_that_is_ahead_is_left_alone(harness: SnapshotHarness) -> None:
    harness.save(3)
    store = harness.there.open(APPLICATION, TOPIC, 0)
    store.claim()
    store.commit(batch(8, start=store.position()), sent=0)
    store.close()
    assert (harness.restore(), harness.restored_position()) == (None, (TOPIC, 8))


def test_snapshots_of_another_topic_are_ignored(harness: SnapshotHarness) -> None:
    harness.save(3)
    assert harness.restore(OTHER_TOPIC) is None


def test_snapshots_are_not_saved_twice_at_a_position_nor_too_often(harness: SnapshotHarness) -> None:
    harness.save(3)
    (name,) = harness.storage.names("")
    before = (harness.storage.directory / name).stat().st_mtime_ns
    store = harness.here.open(APPLICATION, TOPIC, 0)
    harness.snapshots.save(store, 3, now=True)
    store.claim()
    store.commit(batch(4, start=store.position()), sent=0)
    harness.snapshots.save(store, 4)
    store.close()
    assert harness.storage.names("") == [name]
    assert (harness.storage.directory / name).stat().st_mtime_ns == before


def test_an_empty_storage_restores_nothing(harness: SnapshotHarness) -> None:
    assert harness.restore() is None


def test_a_snapshot_is_made_while_its_store_is_written_to(harness: SnapshotHarness) -> None:
    """In another thread, and of one position: the store may move on meanwhile."""
    copying, moved_on = threading.Event(), threading.Event()

    class SlowStorage(DirectoryStorage):
        def put(self, name: str, file: Path) -> None:
            copying.set()
            assert moved_on.wait(60)
            super().put(name, file)

    snapshots = StateSnapshots(SlowStorage(harness.storage.directory), harness.snapshots.scratch, 0.0)
    store = harness.here.open(APPLICATION, TOPIC, 0)
    store.claim()
    store.commit(batch(3, ROW), sent=0)
    snapshots.save(store, 3)
    assert copying.wait(60)
    store.commit(batch(5, start=3), sent=0)
    snapshots.save(store, 5)  # one at a time: the next is due when this one has ended
    moved_on.set()
    snapshots.close(store)
    assert harness.restore() == 3
    snapshots.save(store, 5)
    snapshots.close(store)
    store.close()
    assert harness.restore() == 5


def test_a_snapshot_that_fails_is_logged_and_made_again(
    harness: SnapshotHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: DirectoryStorage, name: str, file: Path) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(DirectoryStorage, "put", full)
        harness.save(3)
    assert (harness.restore(), caplog.messages) == (None, ["snapshot failed"])
    store = harness.here.open(APPLICATION, TOPIC, 0)
    harness.snapshots.save(store, 3, now=True)
    store.close()
    assert harness.restore() == 3


def test_a_large_snapshot_is_not_read_into_memory(harness: SnapshotHarness, tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(256 << 20)
    tracemalloc.start()
    try:
        _checksum(large)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


class Unreachable(DirectoryStorage):
    """A directory whose server does not respond."""

    def names(self, prefix: str) -> list[str]:
        raise OSError("stale file handle")


def test_without_a_file_the_copies_are_waited_for_and_with_one_they_are_not_needed(
    harness: SnapshotHarness,
) -> None:
    harness.save(3, 5)
    harness.snapshots.storage = Unreachable(harness.storage.directory)
    with pytest.raises(StoreUnavailable, match="stale file handle"):
        harness.restore()
    harness.snapshots.storage = harness.storage
    harness.restore()
    harness.snapshots.storage = Unreachable(harness.storage.directory)
    assert (harness.restore(), harness.restored_position()) == (None, (TOPIC, 5))


def test_a_restore_that_is_killed_leaves_no_file_without_its_write_ahead_log(
    harness: SnapshotHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.save(3, 5)
    path = harness.there.path(APPLICATION, 0)
    store = harness.there.open(APPLICATION, TOPIC, 0)  # has a write-ahead log as long as it is open

    def killed(self: Path, target: Path) -> None:
        del self
        raise KeyboardInterrupt(target)

    with monkeypatch.context() as patched:
        patched.setattr(type(path), "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            harness.restore()
    assert not path.exists()
    store.close()
    assert (harness.restore(), harness.restored_position()) == (5, (TOPIC, 5))
