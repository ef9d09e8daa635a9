"""Snapshots: how the state of a partition moves to a machine that does not have its file.

An executor puts a copy of its store on a shelf now and then, and when it gives a partition up.
Whoever takes over fetches the newest copy that is ahead of what it has, and reads the log from
there: the log itself is the changelog, since state is a function of it. A copy that is broken is
passed over for the one before; with none at all the log is read from its start.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Protocol

from penstock.model import faults
from penstock.model.errors.olep import SnapshotBroken
from penstock.olep.store.sqlite import SqliteStore, SqliteStores, position_of

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.olep.application import Application
    from penstock.olep.store import Store, Stores

KEPT: Final = 2  # copies of each partition
SNAPSHOT_HALF = faults.declare("olep.snapshot.half", "a copy is written and not yet on the shelf")


class Shelf(Protocol):
    """Where copies lie: names and files. An object store needs these four calls."""

    def put(self, name: str, file: Path) -> None:
        """Stores the file under the name, whole or not at all."""

    def names(self, prefix: str) -> list[str]: ...

    def get(self, name: str, file: Path) -> None: ...

    def remove(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class DirectoryShelf:
    """A directory that all executors can reach."""

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
class Snapshots:
    """The policy: when to copy, and which copy to trust. For SQLite stores; PostgreSQL needs none."""

    shelf: Shelf
    scratch: Path
    every_seconds: float = 60.0
    _kept: dict[str, tuple[float, int]] = field(default_factory=dict)  # store → when, position

    def keep(self, store: Store, position: int, *, now: bool = False) -> None:
        if not isinstance(store, SqliteStore):
            return
        at, last = self._kept.get(store.name, (0.0, -1))
        if position == last or not (now or time.monotonic() - at >= self.every_seconds):
            return
        self.scratch.mkdir(parents=True, exist_ok=True)
        copy = self.scratch / f"{store.path.stem}.{os.getpid()}.copy"
        copy.unlink(missing_ok=True)
        try:
            store.backup(copy)
            faults.reach(SNAPSHOT_HALF)
            found = position_of(copy)
            assert found is not None, "the copy of an open store"
            topic_id, held = found
            prefix = _prefix(store.path.stem, topic_id)
            self.shelf.put(f"{prefix}{held:020d}.{_checksum(copy)}", copy)
            for old in self.shelf.names(prefix)[:-KEPT]:
                self.shelf.remove(old)
        finally:
            copy.unlink(missing_ok=True)
        self._kept[store.name] = (time.monotonic(), position)

    def restore(self, stores: Stores, application: Application, topic_id: str, partition: int) -> int | None:
        """Puts the newest usable copy in place if it is ahead; returns its position."""
        if not isinstance(stores, SqliteStores):
            return None
        path = stores.path(application, partition)
        here = position_of(path) if path.exists() else None
        if here is not None and here[0] != topic_id:
            return None  # opening it says that the log was replaced
        for name in reversed(self.shelf.names(_prefix(path.stem, topic_id))):
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
            self.shelf.get(name, fetched)
            if _checksum(fetched) != name.rsplit(".", 1)[-1]:
                raise SnapshotBroken(name=name, reason="its checksum is wrong")
            try:
                if position_of(fetched) is None:
                    raise SnapshotBroken(name=name, reason="it holds no state")
            except sqlite3.Error as error:
                raise SnapshotBroken(name=name, reason=error) from error
            for left in (f"{path}-wal", f"{path}-shm"):
                path.with_name(left.rsplit("/", 1)[-1]).unlink(missing_ok=True)
            fetched.replace(path)
        finally:
            fetched.unlink(missing_ok=True)


def _prefix(stem: str, topic_id: str) -> str:
    return f"{stem}.{topic_id}."


def _checksum(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()[:32]
