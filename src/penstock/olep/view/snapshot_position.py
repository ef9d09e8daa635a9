"""Finds the newest consistent position: one at which a snapshot shows every cause of what it shows.

A position is a vector of offsets, one for each partition. At a position, a view shows exactly the events
below it, whatever it has applied since, because rows carry the offsets at which they start and end. So
several views agree at a common position, and neither writers, views nor readers wait for one another. Two
problems remain.

*Never half a payment.* Partitions advance independently, so of two events in two partitions a position may
include one. No choice of positions avoids this: under load, some payment is always between its two
accounts. Therefore a projection makes both sides from one event (`Projection`). An event is below a
position or it is not, so every payment in every snapshot is whole and money is conserved.

*Cause before effect.* Ann paid Bob, and with that money Bob paid Carl. A position that includes the second
payment and not the first would show Bob below his limit, though he never was. Call an event whose cause is
in another partition an arrival, and an event whose cause is in the same partition a local event. Bob's
payment is a local event of his partition; any arrival before its cause may be the reason for the decision.
A position is *consistent* if this holds for every local event below it: each request with an arrival
before the event's cause also has its final event below the position. So the payment that funded Bob's is
part of the snapshot.

Consistent positions are closed under component-wise maximum, so below any position there is a greatest
consistent one. The log below a position does not change, so the greatest one only moves forward: a session
of snapshots is monotonic.

How old is it? A local event comes after the arrivals before its cause by at least one round of an executor.
The final event of an arrival was sent together with it, or follows a few rounds later if a destination must
agree first. So the greatest consistent position is a few rounds behind the views. A request without a
final event, because its partition is down, would block it. Such a request is ignored after `patience`
seconds; payments are whole even then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.model.errors.olep import EventUnreadable
from penstock.olep.deduplication import split_derived
from penstock.olep.event import DERIVED

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.olep.event import Event

PATIENCE_SECONDS: Final = 1.0  # how long a request without a final event may delay snapshots
_INDEX_BITS: Final = 16


class _Arrival(NamedTuple):
    offset: int
    request: str
    seen: float


class CausalityTracker:
    """Observes every event of a log, in the order of each partition, and finds consistent positions.

    Stores only events above the last position, and requests without a final event."""

    def __init__(self, topic_id: str, final: Collection[str], *, patience: float = PATIENCE_SECONDS) -> None:
        self._topic_id = topic_id
        self._final = frozenset(final)
        self._patience = patience
        self._finals: dict[str, tuple[int, int]] = {}  # request → (partition, offset) of its final event
        self._arrivals: dict[int, deque[_Arrival]] = {}
        self._local: dict[int, tuple[list[int], list[int]]] = {}  # offsets, and offsets of their causes

    def observe(self, event: Event, now: float) -> None:
        if event.id[:1] != DERIVED:
            return
        try:
            stream, sequence = split_derived(event.id)
            topic_id, source = stream.partition(":")[2].rsplit(".", 1)
            source_partition = int(source)
        except (EventUnreadable, IndexError, ValueError):
            return  # the executor rejects it; it causes nothing
        if topic_id != self._topic_id:
            return  # caused by another log: external to this one
        at = event.partition
        if event.type in self._final:
            self._finals.setdefault(event.request, (at, event.offset))
        if source_partition != at:
            self._arrivals.setdefault(at, deque()).append(_Arrival(event.offset, event.request, now))
            return
        offsets, causes = self._local.setdefault(at, ([], []))
        cause = sequence >> _INDEX_BITS
        if not causes or cause >= causes[-1]:  # a repeat is out of order and adds nothing
            offsets.append(event.offset)
            causes.append(cause)

    def greatest_consistent(self, limit: Mapping[int, int], now: float) -> dict[int, int]:
        """The greatest consistent position at or below `limit`, up to which all events were observed."""
        for arrivals in self._arrivals.values():
            while arrivals and now - arrivals[0].seen > self._patience:
                arrivals.popleft()
        position = dict(limit)
        lowered = True
        while lowered:
            lowered = False
            for partition in position:
                event = self._first_unsupported(partition, position)
                if event is not None and event < position[partition]:
                    position[partition] = event
                    lowered = True
        self._forget(position)
        return position

    def _first_unsupported(self, partition: int, position: Mapping[int, int]) -> int | None:
        """The first local event that may depend on an arrival whose request is not final below `position`."""
        offsets, causes = self._local.get(partition, ([], []))
        for arrival in self._arrivals.get(partition, ()):
            final = self._finals.get(arrival.request)
            if final is None or final[1] >= position.get(final[0], 0):
                later = bisect_right(causes, arrival.offset)
                return offsets[later] if later < len(offsets) else None
        return None

    def _forget(self, position: Mapping[int, int]) -> None:
        """Forgets events that cannot restrict any later position."""
        for partition, arrivals in self._arrivals.items():
            while arrivals:
                final = self._finals.get(arrivals[0].request)
                if final is None or final[1] >= position.get(final[0], 0):
                    break
                if arrivals[0].offset >= position.get(partition, 0):
                    break
                arrivals.popleft()
        for partition, (offsets, causes) in self._local.items():
            passed = bisect_right(offsets, position.get(partition, 0) - 1)
            del offsets[:passed], causes[:passed]
        if len(self._finals) > 2 * sum(map(len, self._arrivals.values())) + 10_000:
            needed = {each.request for arrivals in self._arrivals.values() for each in arrivals}
            self._finals = {
                request: final
                for request, final in self._finals.items()
                if request in needed or final[1] >= position.get(final[0], 0)
            }
