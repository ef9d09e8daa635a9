"""Followers' progress, the high watermark and the in-sync replicas of a partition that a shadow leads.

The shadow stores nothing, so it never counts: the high watermark is the lowest end of the real in-sync
replicas, and stands still while there is none. A replica whose admission was requested counts already: the
controller may have committed it, and elect it, before the shadow learns of it. The shadow never removes the
last real in-sync replica. The controller does, when all of them are fenced: then the shadow serves them with
the high watermark that it knows, and admits those that have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.metadata_image import PartitionState

LAG_SECONDS_MAX: Final = (
    30.0  # Kafka's replica.lag.time.max.ms: a slower follower leaves the in-sync replicas
)


@dataclass(slots=True)
class Follower:
    end: int
    caught_up_at: float  # monotonic; when it last had everything
    fetched_at: float
    leader_end: int  # at that fetch
    broker_epoch: int = -1  # of its last fetch


class Leadership:
    """One term of leadership. It is ready once the end of every real in-sync replica is known.

    `established`: the high watermark is known. While no real replica is in sync, that is enough."""

    def __init__(self, state: PartitionState, high_watermark: int, *, established: bool = False) -> None:
        self.state = state
        self.followers: dict[int, Follower] = {}
        self.high_watermark = high_watermark
        self.established = established
        self._admitting: frozenset[int] = frozenset()
        self._added_at: dict[int, float] = {}  # replicas that were added in this term

    @property
    def in_sync(self) -> tuple[int, ...]:
        """The real in-sync replicas."""
        return tuple(replica for replica in self.state.isr if not is_shadow(replica))

    @property
    def ready(self) -> bool:
        if not self.in_sync:
            return self.established
        return all(replica in self.followers for replica in self.in_sync)

    @property
    def ends(self) -> dict[int, int]:
        return {replica: follower.end for replica, follower in self.followers.items()}

    def learn(self, replica: int, end: int, now: float) -> None:
        """A follower's end from its own log, before it has fetched from us."""
        self.followers.setdefault(replica, Follower(end, now, now, end))

    def fetched(
        self,
        replica: int,
        offset: int,
        log_end: int,
        now: float,
        *,
        broker_epoch: int = -1,
        received_at: float | None = None,
    ) -> bool:
        """A follower has everything below `offset`; true if that raised the high watermark.

        A request that was received before the replica was added is about an earlier log of it."""
        received = now if received_at is None else received_at
        if replica not in self.state.replicas or received < self._added_at.get(replica, received):
            return False
        follower = self.followers.get(replica)
        if follower is None:
            follower = self.followers[replica] = Follower(offset, now, now, log_end)
        if offset >= log_end:
            follower.caught_up_at = now
        elif offset >= follower.leader_end:
            # A log that grows all the time: it has what the leader had at its fetch before (as Kafka counts).
            follower.caught_up_at = max(follower.caught_up_at, follower.fetched_at)
        follower.end = offset
        follower.fetched_at = now
        follower.leader_end = log_end
        follower.broker_epoch = broker_epoch
        return self._raise_watermark()

    def update(self, state: PartitionState, now: float) -> bool:
        """New replicas or in-sync replicas of the same term; true if that raised the high watermark.

        A replica that is removed and added again has another log: what the first one had does not count."""
        assert state.leader_epoch == self.state.leader_epoch
        for replica in set(self.followers) - set(state.replicas):
            del self.followers[replica]
        for replica in set(state.replicas) - set(self.state.replicas):
            self._added_at[replica] = now
        if state.partition_epoch != self.state.partition_epoch:
            self._admitting = frozenset()
        self.state = state
        return self._raise_watermark()

    def request(self, isr: Sequence[int]) -> None:
        """These in-sync replicas are requested, and may be committed at any time."""
        self._admitting = frozenset(isr) - frozenset(self.state.isr)

    def rejected(self) -> None:
        """The controller refused the request: what was to be admitted does not count."""
        self._admitting = frozenset()

    @property
    def truncated(self) -> bool:
        """Whether every real in-sync replica has been served, so none has records that must go."""
        return (
            bool(self.in_sync)
            and self.ready
            and all(self.followers[one].broker_epoch >= 0 for one in self.in_sync)
        )

    def next_isr(self, log_end: int, now: float, brokers: Mapping[int, int]) -> tuple[int, ...] | None:
        """The in-sync replicas to request, or None if they may stay.

        `brokers` are the epochs of the unfenced ones. A follower must have fetched in its present epoch
        to be admitted: what it had before a restart may be gone (KIP-903)."""
        admitted = {
            replica
            for replica in self.state.replicas
            if replica not in self.state.isr
            and not is_shadow(replica)
            and (follower := self.followers.get(replica)) is not None
            and follower.end >= self.high_watermark
            and follower.broker_epoch == brokers.get(replica)
            and now - follower.fetched_at < LAG_SECONDS_MAX
        }
        slow = {replica for replica in self.in_sync if self._is_slow(replica, log_end, now)}
        if not set(self.in_sync) - slow | admitted:
            slow = set()
        if not admitted and not slow:
            # A request without a response is repeated without what it would have admitted.
            return self.state.isr if self._admitting else None
        return tuple(
            r for r in self.state.replicas if (r in self.state.isr and r not in slow) or r in admitted
        )

    def last_fetch(self, replica: int) -> float | None:
        """When this replica last fetched, or its end was learned; None if neither happened in this term."""
        follower = self.followers.get(replica)
        return follower.fetched_at if follower is not None else None

    def _is_slow(self, replica: int, log_end: int, now: float) -> bool:
        follower = self.followers.get(replica)
        return (
            follower is not None and follower.end < log_end and now - follower.caught_up_at > LAG_SECONDS_MAX
        )

    def _raise_watermark(self) -> bool:
        if not self.in_sync or not self.ready:
            return False
        self.established = True
        lowest = min(self.followers[replica].end for replica in (*self.in_sync, *self._admitting))
        if lowest <= self.high_watermark:
            return False
        self.high_watermark = lowest
        return True
