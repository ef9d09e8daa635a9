"""One at a time: a lock that ends with its process, however that ends."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.model.errors.pipeline import JobBusy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def only_run(lock: Path, what: str) -> Iterator[None]:
    """Raises JobBusy while another process, or another run of this one, is within."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JobBusy(job=what, directory=lock.parent) from None
        yield
