"""A model of Kafka's follower: what a real broker does with each response of its leader.

After `AbstractFetcherThread` of Kafka 4.3: error 1 makes it ask for the leader's end and start, and truncate
or drop its log; a diverging epoch makes it truncate; a higher log start makes it delete its prefix.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.shadow.epoch_history import EpochHistory, EpochStart
from penstock.shadow.responses import (
    Diverge,
    FollowerFetch,
    LeaderView,
    Refuse,
    Serve,
    Timestamp,
    fetch_response,
    list_offsets_response,
)
from penstock.wire.error_codes import Code


@dataclass
class ModelFollower:
    """`log` has the epoch of each record by its offset."""

    id: int
    log: dict[int, int] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    deleted: set[int] = field(default_factory=set)  # records it had and discarded

    @property
    def last_epoch(self) -> int:
        return self.log[max(self.log)] if self.log else -1

    def fetch(self, view: LeaderView, leader_log: dict[int, int], epoch: int) -> Serve | Diverge | Refuse:
        request = FollowerFetch(self.id, epoch, self.end, self.last_epoch)
        response = fetch_response(view, request)
        if isinstance(response, Serve):
            self._append({o: e for o, e in sorted(leader_log.items()) if o >= self.end})
            self._delete_below(response.log_start)
        elif isinstance(response, Diverge):
            assert response.end.epoch >= 0, "a real follower would ignore it"
            self._truncate(response.end)
        elif response.code == Code.OFFSET_OUT_OF_RANGE:
            self._out_of_range(view, epoch)
        return response

    def _out_of_range(self, view: LeaderView, epoch: int) -> None:
        end = list_offsets_response(view, self.id, epoch, Timestamp.LATEST)
        if isinstance(end, Refuse):
            return
        if end.offset < self.end:
            self._truncate(end)
            return
        start = list_offsets_response(view, self.id, epoch, Timestamp.EARLIEST)
        if isinstance(start, EpochStart) and start.offset > self.end:
            self.deleted |= set(self.log)
            self.log.clear()
            self.start = self.end = start.offset

    def _append(self, records: dict[int, int]) -> None:
        self.log |= records
        if records:
            self.end = max(records) + 1

    def _truncate(self, end: EpochStart) -> None:
        gone = {offset for offset in self.log if offset >= end.offset}
        self.deleted |= gone
        self.log = {o: e for o, e in self.log.items() if o not in gone}
        self.end = min(self.end, end.offset)

    def _delete_below(self, start: int) -> None:
        gone = {offset for offset in self.log if offset < start}
        self.deleted |= gone
        self.log = {o: e for o, e in self.log.items() if o not in gone}
        self.start = max(self.start, start)


def history_of(log: dict[int, int]) -> EpochHistory:
    entries: list[EpochStart] = []
    for offset, epoch in sorted(log.items()):
        if not entries or entries[-1].epoch < epoch:
            entries.append(EpochStart(epoch, offset))
    return EpochHistory(tuple(entries))
