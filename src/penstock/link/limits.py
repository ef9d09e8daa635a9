"""What limits a link: bytes a second from the source, and the disks of the destination.

Mirrors are not tiered, so a source with much history could fill the destination's disks. Mirroring stops
before, and continues when there is space again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.admin.log_dirs import LogDir

USED_MAX: Final = 0.85  # of a log directory: mirroring stops
USED_AGAIN: Final = 0.80  # it continues below
BURST_SECONDS: Final = 1.0


@dataclass(slots=True)
class RateLimit:
    """A budget of bytes that refills; a fetch may overdraw it, and the next one waits for that long."""

    bytes_per_second: float | None = None  # None: no limit
    _left: float = 0.0
    _at: float | None = None  # monotonic

    def wait_seconds(self, now: float) -> float:
        """Until the next fetch may start."""
        if self.bytes_per_second is None:
            return 0.0
        self._refill(now)
        return max(0.0, -self._left / self.bytes_per_second)

    def spend(self, size: int, now: float) -> None:
        if self.bytes_per_second is not None:
            self._refill(now)
            self._left -= size

    def _refill(self, now: float) -> None:
        assert self.bytes_per_second is not None
        limit = self.bytes_per_second * BURST_SECONDS
        elapsed = now - self._at if self._at is not None else BURST_SECONDS
        self._left = min(limit, self._left + elapsed * self.bytes_per_second)
        self._at = now


def full_disk(directories: Mapping[int, Sequence[LogDir]], *, stopped: bool) -> str:
    """Why mirroring must not continue; empty if it may."""
    used = [
        (1 - one.usable_bytes / one.total_bytes, broker, one.path)
        for broker, listed in directories.items()
        for one in listed
        if one.total_bytes > 0 and one.usable_bytes >= 0
    ]
    ratio, broker, path = max(used, default=(0.0, -1, ""))
    if ratio <= (USED_AGAIN if stopped else USED_MAX):
        return ""
    return f"{path} of broker {broker} is {ratio:.0%} full"
