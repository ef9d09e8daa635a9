"""Which position a snapshot may stand at: the argument, and the arithmetic.

A cut is a vector over partitions. Every view shows, at a cut, exactly the events below it, whatever
else it has applied since: rows carry the offsets they began and ended at. So several views agree at
a common cut by construction, and writers, views and readers wait for nobody. Two things remain.

*Never half a payment.* Partitions are cut independently, so of two events in two partitions a cut
may hold one. Nobody can choose cuts that never do: under load some payment is always between its
two accounts. Therefore both sides are made from one event (`Projection`), and one event is below a
cut or is not. Whatever the cut, every payment in it is whole, and money is conserved.

*Cause before effect.* Ann pays Bob, and with that money Bob pays Carl. A cut that holds the second
payment and not the first would show Bob below his limit, though he never was. Call an event whose
cause lies in another partition an arrival, and an event whose cause lies in its own partition a
fact. Bob's payment is a fact in his partition; whatever arrived there before its cause may be why it
was decided so. A cut is *consistent* if for every fact below it, each request of which something
had arrived before the fact's cause has its final event below the cut too. The payment that fed the
fact is then part of the snapshot.

Consistent cuts are closed under component-wise maximum, so below any cut there is a greatest one;
and since the log below a cut does not change, the greatest one only ever moves forward: a session
of snapshots is monotonic.

How old is it? A fact comes later in real time than what arrived before its cause, by at least one
turn of an executor, while the final event of the arrival was sent together with it, or is a few
turns away where a destination is asked first. So the greatest consistent cut stands a few turns
behind the views. A request that gets no final event (its partition is down) would hold it back: it
is forgotten after `patience` seconds. Payments stay whole even then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.model.errors.olep import EventUnreadable
from penstock.olep.event import DERIVED, split_derived

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.olep.event import Event

PATIENCE_SECONDS: Final = 1.0  # with a request that has arrived somewhere and is not final
_INDEX_BITS: Final = 16


class _Arrival(NamedTuple):
    offset: int
    request: str
    seen: float


class Causes:
    """Sees every event of a log, in the order of each partition, and finds consistent cuts.

    Holds only what lies above the last cut, and requests that are not final."""

    def __init__(self, topic_id: str, final: Collection[str], *, patience: float = PATIENCE_SECONDS) -> None:
        self._topic_id = topic_id
        self._final = frozenset(final)
        self._patience = patience
        self._finals: dict[str, tuple[int, int]] = {}  # request → where its final event stands
        self._arrivals: dict[int, deque[_Arrival]] = {}
        self._facts: dict[int, tuple[list[int], list[int]]] = {}  # offsets, and offsets of their causes

    def see(self, event: Event, now: float) -> None:
        if event.id[:1] != DERIVED:
            return
        try:
            stream, sequence = split_derived(event.id)
            topic_id, source = stream.partition(":")[2].rsplit(".", 1)
            source_partition = int(source)
        except (EventUnreadable, IndexError, ValueError):
            return  # the executor lists it; it caused nothing
        if topic_id != self._topic_id:
            return  # decided on another log: for this one it comes from outside
        at = event.partition
        if event.type in self._final:
            self._finals.setdefault(event.request, (at, event.offset))
        if source_partition != at:
            self._arrivals.setdefault(at, deque()).append(_Arrival(event.offset, event.request, now))
            return
        offsets, causes = self._facts.setdefault(at, ([], []))
        cause = sequence >> _INDEX_BITS
        if not causes or cause >= causes[-1]:  # a repeat stands out of order, and says nothing new
            offsets.append(event.offset)
            causes.append(cause)

    def greatest(self, limit: Mapping[int, int], now: float) -> dict[int, int]:
        """The greatest consistent cut that lies below `limit`, all of which has been seen."""
        for arrivals in self._arrivals.values():
            while arrivals and now - arrivals[0].seen > self._patience:
                arrivals.popleft()
        cut = dict(limit)
        trimmed = True
        while trimmed:
            trimmed = False
            for partition in cut:
                fact = self._first_unfounded(partition, cut)
                if fact is not None and fact < cut[partition]:
                    cut[partition] = fact
                    trimmed = True
        self._settle(cut)
        return cut

    def _first_unfounded(self, partition: int, cut: Mapping[int, int]) -> int | None:
        """The first fact that may rest on an arrival whose request is not final within the cut."""
        offsets, causes = self._facts.get(partition, ([], []))
        for arrival in self._arrivals.get(partition, ()):
            final = self._finals.get(arrival.request)
            if final is None or final[1] >= cut.get(final[0], 0):
                later = bisect_right(causes, arrival.offset)
                return offsets[later] if later < len(offsets) else None
        return None

    def _settle(self, cut: Mapping[int, int]) -> None:
        """Forgets what no later cut can be trimmed by."""
        for partition, arrivals in self._arrivals.items():
            while arrivals:
                final = self._finals.get(arrivals[0].request)
                if final is None or final[1] >= cut.get(final[0], 0):
                    break
                if arrivals[0].offset >= cut.get(partition, 0):
                    break
                arrivals.popleft()
        for partition, (offsets, causes) in self._facts.items():
            passed = bisect_right(offsets, cut.get(partition, 0) - 1)
            del offsets[:passed], causes[:passed]
        if len(self._finals) > 2 * sum(map(len, self._arrivals.values())) + 10_000:
            wanted = {each.request for arrivals in self._arrivals.values() for each in arrivals}
            self._finals = {
                request: place
                for request, place in self._finals.items()
                if request in wanted or place[1] >= cut.get(place[0], 0)
            }
