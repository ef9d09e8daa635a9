"""Copies of a partition's state, for an executor that takes it over on another machine.

An executor saves a copy of its store from time to time, and when it releases a partition. The executor
that takes over fetches the newest copy, if it is ahead of the local file, and reads the log from there.
State is a function of the log, so no separate changelog is needed. A damaged copy is skipped for the
previous one; without any copy, the log is read from its start.

Copies are made in a separate thread, from a second connection to the file, while the executor continues. A
copy that fails is logged, and made again the next time.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import time
from dataclasses import dataclass, field
from hashlib import file_digest
from threading import Thread
from typing import TYPE_CHECKING, Final, Protocol

from penstock.model import fault_points
from penstock.model.errors.olep import SnapshotBroken, StoreFailed, StoreUnavailable
from penstock.model.key_names import ERROR
from penstock.olep.store.sqlite import SqliteStore, SqliteStores, position_of

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.olep.application import Application
    from penstock.olep.store import Store, Stores

_logger = logging.getLogger("penstock.olep")
SNAPSHOTS_KEPT: Final = 2  # of each partition
SNAPSHOT_HALF = fault_points.declare("olep.snapshot.half", "a snapshot is written and not yet stored")


class SnapshotStorage(Protocol):
    """Where snapshots are stored: files by name. Implement it for an object store."""

    def put(self, name: str, file: Path) -> None:
        """Stores the file under the name, atomically."""

    def names(self, prefix: str) -> list[str]: ...

    def get(self, name: str, file: Path) -> None: ...

    def remove(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class DirectoryStorage:
    """A directory that all executors share."""

    directory: Path

    def put(self, name: str, file: Path) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        half = self.directory / f".{name}.{os.getpid()}.half"
        shutil.copyfile(file, half)
        with half.open("rb") as written:
            os.fsync(written.fileno())
        half.replace(self.directory / name)

    def names(self, prefix: str) -> list[str]:
        if not self.directory.is_dir():
            return []
        return sorted(each.name for each in self.directory.iterdir() if each.name.startswith(prefix))

    def get(self, name: str, file: Path) -> None:
        shutil.copyfile(self.directory / name, file)

    def remove(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)


@dataclass(slots=True)
class StateSnapshots:
    """Saves and restores snapshots of SQLite stores. PostgreSQL needs none: executors share it."""

    storage: SnapshotStorage
    scratch: Path
    every_seconds: float = 60.0
    _saved: dict[str, tuple[float, int]] = field(default_factory=dict)  # store → time, position
    _saving: dict[str, Thread] = field(default_factory=dict)  # store → the thread that copies it

    def save(self, store: Store, position: int, *, now: bool = False) -> None:
        """Starts a copy if the last one is old enough; if `now`, makes one and waits for it."""
        if not isinstance(store, SqliteStore):
            return
        saving = self._saving.get(store.name)
        if saving is not None and saving.is_alive() and not now:
            return
        self.close(store)
        at, last = self._saved.get(store.name, (0.0, -1))
        if position == last or not (now or time.monotonic() - at >= self.every_seconds):
            return
        self._saved[store.name] = (time.monotonic(), position)
        if now:
            self._save(store)
        else:
            thread = Thread(target=self._save, args=(store,), name="olep-snapshot")
            self._saving[store.name] = thread
            thread.start()

    def close(self, store: Store) -> None:
        """Waits for the copy of this store, if one was started."""
        if (saving := self._saving.pop(store.name, None)) is not None:
            saving.join()

    def _save(self, store: SqliteStore) -> None:
        try:
            self._copy(store)
        except (OSError, sqlite3.Error) as error:
            self._saved[store.name] = (time.monotonic(), -1)
            _logger.warning("snapshot failed", extra={"store": store.name, ERROR: str(error)})

    def _copy(self, store: SqliteStore) -> None:
        self.scratch.mkdir(parents=True, exist_ok=True)
        copy = self.scratch / f"{store.path.stem}.{os.getpid()}.copy"
        copy.unlink(missing_ok=True)
        try:
            store.backup(copy)
            fault_points.reach(SNAPSHOT_HALF)
            copied = position_of(copy)
            assert copied is not None, "the copy of an open store"
            topic_id, copied_position = copied
            prefix = _prefix(store.path.stem, topic_id)
            self.storage.put(f"{prefix}{copied_position:020d}.{_checksum(copy)}", copy)
            for old in self.storage.names(prefix)[:-SNAPSHOTS_KEPT]:
                self.storage.remove(old)
        finally:
            copy.unlink(missing_ok=True)

    def restore(self, stores: Stores, application: Application, topic_id: str, partition: int) -> int | None:
        """Replaces the store file by the newest usable copy if that is ahead; returns its position.

        Without a file and without the storage, the copies are waited for: raises StoreUnavailable."""
        if not isinstance(stores, SqliteStores):
            return None
        path = stores.path(application, partition)
        try:
            here = position_of(path) if path.exists() else None
        except sqlite3.Error as error:
            raise StoreFailed(store=str(path), reason=error) from error
        if here is not None and here[0] != topic_id:
            return None  # opening the store raises LogReplaced
        try:
            return self._restore_newest(path, topic_id, here)
        except OSError as error:
            if here is None:
                raise StoreUnavailable(store=f"the copies of {path.name}", reason=error) from error
            _logger.warning("copies not read", extra={"store": str(path), ERROR: str(error)})
            return None

    def _restore_newest(self, path: Path, topic_id: str, here: tuple[str, int] | None) -> int | None:
        for name in reversed(self.storage.names(_prefix(path.stem, topic_id))):
            try:
                position = int(name.rsplit(".", 2)[-2])
                if here is not None and position <= here[1]:
                    return None
                self._place(name, path)
            except (SnapshotBroken, ValueError):
                continue
            return position
        return None

    def _place(self, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        fetched = path.with_suffix(f".{os.getpid()}.fetched")
        try:
            self.storage.get(name, fetched)
            if _checksum(fetched) != name.rsplit(".", 1)[-1]:
                raise SnapshotBroken(name=name, reason="its checksum is wrong")
            try:
                if position_of(fetched) is None:
                    raise SnapshotBroken(name=name, reason="it contains no state")
            except sqlite3.Error as error:
                raise SnapshotBroken(name=name, reason=error) from error
            with fetched.open("rb") as copy:
                os.fsync(copy.fileno())
            # The file first: without its write-ahead log it may be damaged.
            for suffix in ("", "-wal", "-shm"):
                path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
            fetched.replace(path)
        finally:
            fetched.unlink(missing_ok=True)


def _prefix(stem: str, topic_id: str) -> str:
    return f"{stem}.{topic_id}."


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()[:32]
