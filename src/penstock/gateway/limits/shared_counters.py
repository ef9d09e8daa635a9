"""Counters that the workers of one gateway share: memory with one column for each worker.

Only its worker writes a column and all workers read it, so there is no lock that a killed process could hold,
and the sum over columns is the gateway's total. An address or tenant has a row chosen by its hash, among a
few candidates; a row without connections is reused when there is no other. The hash is keyed, so an attacker
cannot target a row.

Two workers that read within the same few microseconds may miss each other's last write. So a count is
incremented first and checked afterwards: both may be refused, but never are both admitted. A rate or a failed
login may go uncounted that way, at most once for each other worker.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

WORKERS_MAX: Final = 64
WORD_BYTES: Final = 8  # aligned, so that a reader sees a whole word, old or new
WAYS: Final = 16  # candidate rows for a hash
ROWS: Final = 65_536  # of addresses and tenants in one column
USAGE_ROWS: Final = 16_384  # of tenants whose usage is shared
USAGE_COUNTERS: Final = 6  # per row
TOTALS: Final = 8
OPEN: Final = 0
HALF_OPEN: Final = 1
FAILURES_MAX: Final = 0xFFFF  # in one word with the time of the first failure
SECRET_BYTES: Final = 16

_COLUMN_WORDS: Final = TOTALS + ROWS * 7 + USAGE_ROWS * (1 + USAGE_COUNTERS)


class Column:
    """One worker's counters."""

    __slots__ = (
        "connections", "failures", "full_at", "half_open", "keys", "pending", "pending_until", "totals",
        "usage", "usage_keys",
    )  # fmt: skip

    def __init__(self, whole: memoryview) -> None:
        words, numbers = whole.cast("Q"), whole.cast("d")
        at = iter(_starts((TOTALS, *[ROWS] * 7, USAGE_ROWS, USAGE_ROWS * USAGE_COUNTERS)))
        self.totals = words[next(at)]
        self.keys = words[next(at)]
        self.connections = words[next(at)]
        self.half_open = words[next(at)]  # of the connections
        self.failures = words[next(at)]  # time of the first in milliseconds, and count
        self.full_at = numbers[next(at)]  # when the rate's whole burst is available again
        self.pending = words[next(at)]  # partitions that are being created
        self.pending_until = numbers[next(at)]  # when they no longer count
        self.usage_keys = words[next(at)]
        self.usage: memoryview[float] = numbers[next(at)]

    def find(self, key: int) -> int | None:
        """The row of a key."""
        start = key % (ROWS // WAYS) * WAYS
        slots = self.keys[start : start + WAYS].tolist()
        return start + slots.index(key) if key in slots else None

    def allocate(self, key: int) -> int | None:
        """A row for a new key; None if all its candidates count connections."""
        start = key % (ROWS // WAYS) * WAYS
        slots = self.keys[start : start + WAYS].tolist()
        if 0 in slots:
            row = start + slots.index(0)
        else:
            idle = [row for row in range(start, start + WAYS) if not self.connections[row]]
            if not idle:
                return None
            row = min(idle, key=lambda row: (self.failures[row] & FAILURES_MAX, self.full_at[row]))
            self.keys[row] = 0
        self.failures[row] = 0
        self.pending[row] = 0
        self.full_at[row] = 0.0
        self.keys[row] = key
        return row

    def find_usage(self, key: int, *, allocate: bool = False) -> int | None:
        """Where a tenant's usage counters begin."""
        start = key % (USAGE_ROWS // WAYS) * WAYS
        slots = self.usage_keys[start : start + WAYS].tolist()
        if key in slots:
            return (start + slots.index(key)) * USAGE_COUNTERS
        if not allocate or 0 not in slots:
            return None
        row = start + slots.index(0)
        self.usage_keys[row] = key
        return row * USAGE_COUNTERS

    def reclaim(self) -> None:
        """Clear the connections and usage of a dead worker. Rates and failed logins stay."""
        for part in (self.totals, self.connections, self.half_open, self.usage_keys):
            part[:] = memoryview(bytes(part.nbytes)).cast("Q")
        self.usage[:] = memoryview(bytes(self.usage.nbytes)).cast("d")


class SharedCounters:
    """All columns, as worker `own` sees them: the others are read-only."""

    def __init__(self, workers: int = 1) -> None:
        assert 1 <= workers <= WORKERS_MAX
        self.workers = workers
        # Anonymous memory: only processes forked from this one share it.
        memory = memoryview(mmap.mmap(-1, workers * _COLUMN_WORDS * WORD_BYTES))
        size = _COLUMN_WORDS * WORD_BYTES
        self.columns = [Column(memory[n * size : (n + 1) * size]) for n in range(workers)]
        self._secret = os.urandom(SECRET_BYTES)
        self.become(0)

    def become(self, own: int) -> None:
        """Make this process the worker with that index."""
        self.own = self.columns[own]
        self.others = [column for column in self.columns if column is not self.own]

    def key(self, name: str) -> int:
        digest = hashlib.blake2b(name.encode(), digest_size=WORD_BYTES, key=self._secret).digest()
        return int.from_bytes(digest) or 1

    def row(self, key: int) -> int | None:
        """A key's row in this worker's column, allocated if needed; None without room."""
        row = self.own.find(key)
        return self.own.allocate(key) if row is None else row

    def total(self, which: int) -> int:
        return sum(column.totals[which] for column in self.columns)

    def connections(self, key: int) -> int:
        rows = ((column, column.find(key)) for column in self.columns)
        return sum(column.connections[row] for column, row in rows if row is not None)

    def pending_elsewhere(self, key: int, now: float) -> int:
        """Partitions that other workers are creating."""
        rows = ((column, column.find(key)) for column in self.others)
        return sum(
            column.pending[row] for column, row in rows if row is not None and now < column.pending_until[row]
        )

    def half_open(self, key: int) -> int:
        rows = ((column, column.find(key)) for column in self.columns)
        return sum(column.half_open[row] for column, row in rows if row is not None)

    def full_at(self, key: int) -> float:
        """The latest value that any worker wrote: each continues from it."""
        rows = ((column, column.find(key)) for column in self.columns)
        return max((column.full_at[row] for column, row in rows if row is not None), default=0.0)

    def failures(self, key: int, since_ms: int) -> int:
        """Failed logins counted since then."""
        count = 0
        for column in self.columns:
            row = column.find(key)
            if row is not None:
                began_ms, failed = divmod(column.failures[row], FAILURES_MAX + 1)
                count += failed if began_ms >= since_ms else 0
        return count

    def fail(self, row: int, now_ms: int, since_ms: int) -> None:
        """Count a failed login in this worker's row."""
        began_ms, failed = divmod(self.own.failures[row], FAILURES_MAX + 1)
        if not failed or began_ms < since_ms:
            began_ms, failed = now_ms, 0
        self.own.failures[row] = began_ms * (FAILURES_MAX + 1) + min(failed + 1, FAILURES_MAX)

    def publish_usage(self, key: int, counters: Sequence[float]) -> bool:
        """Publish this worker's counters; False if there is no room."""
        at = self.own.find_usage(key, allocate=True)
        if at is None:
            return False
        for position, counter in enumerate(counters, at):
            self.own.usage[position] = counter
        return True

    def other_workers_usage(self, key: int) -> list[tuple[float, ...]]:
        """The published counters of each other worker."""
        usage: list[tuple[float, ...]] = []
        for column in self.others:
            at = column.find_usage(key)
            usage.append(
                tuple(column.usage[at : at + USAGE_COUNTERS].tolist())
                if at is not None
                else (0.0,) * USAGE_COUNTERS
            )
        return usage


def _starts(sizes: Sequence[int]) -> list[slice]:
    slices, start = [], 0
    for size in sizes:
        slices.append(slice(start, start + size))
        start += size
    return slices
