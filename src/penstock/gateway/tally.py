"""What the workers of one gateway count together: memory that they share, a column for each of them.

A column is written by its worker alone and read by all, so there is no lock that a killed process could
keep, and whoever adds up the columns knows what holds for the gateway as a whole. What is counted of an
address or a tenant stands in a row that its hash leads to, a few to choose from; a row that counts no
connection makes way when there is no other. The hash is keyed, so nobody can aim at somebody's row.

Two workers that look in the same few microseconds may miss each other's last step. Counts are therefore
claimed first and looked at then: both may be refused, never are both let in. A rate or a wrong login may
go uncounted that way, at most once for each other worker.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

WORKERS_MAX: Final = 64
WORD_BYTES: Final = 8  # aligned, so that a reader sees a whole one, old or new
WAYS: Final = 16  # rows that a hash may lead to
ROWS: Final = 65_536  # of addresses and tenants in one column
USE_ROWS: Final = 16_384  # of tenants whose use is told
USES: Final = 5  # figures in one of those
TOTALS: Final = 8
OPEN: Final = 0
HALF_OPEN: Final = 1
FAILURES_MAX: Final = 0xFFFF  # in one word with the time at which they began
SECRET_BYTES: Final = 16

_COLUMN_WORDS: Final = TOTALS + ROWS * 4 + USE_ROWS * (1 + USES)


class Column:
    """One worker's part."""

    __slots__ = ("connections", "failures", "full_at", "keys", "totals", "use", "use_keys", "whole")

    def __init__(self, whole: memoryview) -> None:
        self.whole = whole
        words, numbers = whole.cast("Q"), whole.cast("d")
        at = iter(_starts((TOTALS, ROWS, ROWS, ROWS, ROWS, USE_ROWS, USE_ROWS * USES)))
        self.totals = words[next(at)]
        self.keys = words[next(at)]
        self.connections = words[next(at)]
        self.failures = words[next(at)]  # when they began, in milliseconds, and how many
        self.full_at = numbers[next(at)]  # when everything may be taken again at once
        self.use_keys = words[next(at)]
        self.use: memoryview[float] = numbers[next(at)]

    def find(self, key: int) -> int | None:
        """The row of a key."""
        start = key % (ROWS // WAYS) * WAYS
        near = self.keys[start : start + WAYS].tolist()
        return start + near.index(key) if key in near else None

    def make(self, key: int) -> int | None:
        """A row for a key that has none; None if all that it could be count connections."""
        start = key % (ROWS // WAYS) * WAYS
        near = self.keys[start : start + WAYS].tolist()
        if 0 in near:
            row = start + near.index(0)
        else:
            idle = [row for row in range(start, start + WAYS) if not self.connections[row]]
            if not idle:
                return None
            row = min(idle, key=lambda row: (self.failures[row] & FAILURES_MAX, self.full_at[row]))
            self.keys[row] = 0
        self.failures[row] = 0
        self.full_at[row] = 0.0
        self.keys[row] = key
        return row

    def find_use(self, key: int, *, make: bool = False) -> int | None:
        """Where the figures of a tenant's use begin."""
        start = key % (USE_ROWS // WAYS) * WAYS
        near = self.use_keys[start : start + WAYS].tolist()
        if key in near:
            return (start + near.index(key)) * USES
        if not make or 0 not in near:
            return None
        row = start + near.index(0)
        self.use_keys[row] = key
        return row * USES

    def reclaim(self) -> None:
        """Its worker is gone, and its connections with it. What was tried and failed stays known."""
        for part in (self.totals, self.connections, self.use_keys):
            part[:] = memoryview(bytes(part.nbytes)).cast("Q")
        self.use[:] = memoryview(bytes(self.use.nbytes)).cast("d")


class Tally:
    """All columns, as the worker `mine` sees them: others are read only."""

    def __init__(self, workers: int = 1) -> None:
        assert 1 <= workers <= WORKERS_MAX
        self.workers = workers
        # Of no file: processes that are forked from this one share it, and nobody else can open it.
        memory = memoryview(mmap.mmap(-1, workers * _COLUMN_WORDS * WORD_BYTES))
        size = _COLUMN_WORDS * WORD_BYTES
        self.columns = [Column(memory[n * size : (n + 1) * size]) for n in range(workers)]
        self._secret = os.urandom(SECRET_BYTES)
        self.sit(0)

    def sit(self, mine: int) -> None:
        """This process is that worker."""
        self.mine = self.columns[mine]
        self.others = [column for column in self.columns if column is not self.mine]

    def key(self, name: str) -> int:
        digest = hashlib.blake2b(name.encode(), digest_size=WORD_BYTES, key=self._secret).digest()
        return int.from_bytes(digest) or 1

    def row(self, key: int) -> int | None:
        """In our column, made if need be; None if there is no room."""
        found = self.mine.find(key)
        return self.mine.make(key) if found is None else found

    def total(self, which: int) -> int:
        return sum(column.totals[which] for column in self.columns)

    def connections(self, key: int) -> int:
        rows = ((column, column.find(key)) for column in self.columns)
        return sum(column.connections[row] for column, row in rows if row is not None)

    def full_at(self, key: int) -> float:
        """Each worker goes on from the latest that any of them wrote, so that is the one that counts."""
        rows = ((column, column.find(key)) for column in self.columns)
        return max((column.full_at[row] for column, row in rows if row is not None), default=0.0)

    def failures(self, key: int, since_ms: int) -> int:
        """Of those that began to be counted since then."""
        count = 0
        for column in self.columns:
            row = column.find(key)
            if row is not None:
                began_ms, failed = divmod(column.failures[row], FAILURES_MAX + 1)
                count += failed if began_ms >= since_ms else 0
        return count

    def fail(self, row: int, now_ms: int, since_ms: int) -> None:
        """One more, in a row of ours."""
        began_ms, failed = divmod(self.mine.failures[row], FAILURES_MAX + 1)
        if not failed or began_ms < since_ms:
            began_ms, failed = now_ms, 0
        self.mine.failures[row] = began_ms * (FAILURES_MAX + 1) + min(failed + 1, FAILURES_MAX)

    def tell_use(self, key: int, figures: Sequence[float]) -> bool:
        """What went through this worker so far; False if there is no room to say so."""
        at = self.mine.find_use(key, make=True)
        if at is None:
            return False
        for place, figure in enumerate(figures, at):
            self.mine.use[place] = figure
        return True

    def use_elsewhere(self, key: int) -> list[tuple[float, ...]]:
        """What went through each of the others."""
        found: list[tuple[float, ...]] = []
        for column in self.others:
            at = column.find_use(key)
            found.append(tuple(column.use[at : at + USES].tolist()) if at is not None else (0.0,) * USES)
        return found


def _starts(sizes: Sequence[int]) -> list[slice]:
    found, start = [], 0
    for size in sizes:
        found.append(slice(start, start + size))
        start += size
    return found
