"""Allows one run of a job at a time: a file lock that is released when its process ends."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.model.errors.pipeline import JobBusy
from penstock.process_identity import try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def exclusive_run(lock: Path, what: str) -> Iterator[None]:
    """Holds the lock. Raises JobBusy if another process, or another run in this one, holds it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        if not try_lock(file):
            raise JobBusy(job=what, directory=lock.parent)
        yield
