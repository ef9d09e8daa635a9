"""Partitions reserved before they are created, so that simultaneous requests cannot exceed a limit together.

A reservation counts until the broker refuses the partitions, or until every broker's metadata shows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PENDING_SECONDS: Final = 60.0  # for the broker's response; then the outcome is in its metadata
# From a response until every broker's metadata shows the change. A broker that is further behind has lost its
# session (`broker.session.timeout.ms`) and gets no requests.
SETTLED_SECONDS: Final = 10.0


class Reservations:
    """Partitions of one tenant that this worker is creating, or has just created, by topic."""

    __slots__ = ("_created", "_pending")

    def __init__(self) -> None:
        self._pending: dict[str, tuple[int, int, float]] = {}  # partitions in all, new ones, until when
        self._created: dict[str, tuple[int, float]] = {}  # partitions in all, until when

    def total(self, present: Mapping[str, tuple[int, int]], now: float) -> int:
        """The number of partitions that exist or are reserved."""
        self._expire(now)
        total = sum(count for count, _ in present.values())
        for name in self._pending.keys() | self._created.keys():
            count = max(self._pending.get(name, (0,))[0], self._created.get(name, (0,))[0])
            total += max(0, count - present.get(name, (0, 0))[0])
        return total

    def _expire(self, now: float) -> None:
        self._pending = {name: entry for name, entry in self._pending.items() if now < entry[-1]}
        self._created = {name: entry for name, entry in self._created.items() if now < entry[-1]}

    @property
    def pending(self) -> int:
        """New partitions whose creation has no response yet."""
        return sum(more for _, more, _ in self._pending.values())

    def is_pending(self, name: str) -> bool:
        return name in self._pending

    def count(self, name: str) -> int:
        """How many partitions a topic got here lately."""
        return self._created.get(name, (0,))[0]

    def reserve(self, name: str, count: int, more: int, now: float) -> None:
        self._pending[name] = (count, more, now + PENDING_SECONDS)

    def created(self, name: str, now: float) -> None:
        entry = self._pending.pop(name, None)
        if entry is not None:
            self._created[name] = (max(entry[0], self.count(name)), now + SETTLED_SECONDS)

    def release(self, name: str) -> None:
        """The partitions were not created."""
        self._pending.pop(name, None)

    def deleted(self, name: str) -> None:
        self._created.pop(name, None)
