"""Guarded responses to followers.

Six responses make a real broker discard records when they are wrong: `LogStartOffset` and
`DivergingEpoch` in a Fetch response, errors 1 and 109, ListOffsets and OffsetForLeaderEpoch. All of them
are decided here, from what the leader has and what the follower is known to hold. A response that could
discard a record without a recorded truncation is withheld: the follower gets UNKNOWN_LEADER_EPOCH (75),
waits and asks again.

  - Error 74 is never sent. It makes a follower abandon the partition until the next leader epoch, and a
    follower with an old epoch learns of the new one from the metadata log anyway.
  - Error 109 is never sent: what a shadow leads is not tiered.
  - `LogStartOffset` is never above the high watermark or the follower's own end.
  - A truncation is recorded with the leader epoch of the records that must go. Later ones are protected
    again.
  - What a replica has beyond every in-sync replica when a term begins was never below a high watermark: a
    leftover, which goes as with any leader. Otherwise the replica could never be in sync again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.shadow.epoch_history import NO_EPOCH, NO_EPOCHS, EpochHistory, EpochStart
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_OFFSET: Final = -1


class Timestamp(IntEnum):
    """Special timestamps of ListOffsets."""

    LATEST = -1
    EARLIEST = -2
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class Truncation(NamedTuple):
    """Records of leader epochs up to `epoch`, from `offset` on, must go."""

    epoch: int
    offset: int

    def covers(self, last_epoch: int, end: int) -> bool:
        """Whether a log that ends with `last_epoch` may be truncated to `end`."""
        return 0 <= last_epoch <= self.epoch and end >= self.offset


@dataclass(frozen=True, slots=True)
class LeaderView:
    """What the shadow has and knows of one partition."""

    leads: bool  # as the metadata log has it
    leader_epoch: int
    start: int
    end: int
    high_watermark: int
    epochs: EpochHistory = NO_EPOCHS
    ready: bool = True  # the end of every real in-sync replica is known
    acknowledged: Mapping[int, int] = field(default_factory=dict)  # replica → its end, as last known
    truncation: Truncation | None = None  # recorded in the lineage
    leftover: Truncation | None = None  # what no in-sync replica had when the shadow began to lead

    def allows(self, last_epoch: int, end: int) -> bool:
        """Whether a log that ends with `last_epoch` may be truncated to `end`."""
        return any(
            one is not None and one.covers(last_epoch, end) for one in (self.truncation, self.leftover)
        )


@dataclass(frozen=True, slots=True)
class FollowerFetch:
    replica: int
    leader_epoch: int
    offset: int  # the follower's end
    last_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class Serve:
    """Records from `offset` on."""

    offset: int
    log_start: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class Diverge:
    """The follower truncates to `end.offset`."""

    end: EpochStart


@dataclass(frozen=True, slots=True)
class Refuse:
    """An error code; `guarded` states which precondition would have been broken."""

    code: Code
    guarded: str = ""


_LATER: Final = Refuse(Code.UNKNOWN_LEADER_EPOCH)


def fetch_response(view: LeaderView, request: FollowerFetch) -> Serve | Diverge | Refuse:
    refused = _refusal(view, request.leader_epoch)
    if refused is not None:
        return refused
    assert view.start <= view.high_watermark, "a log start above the high watermark deletes records"
    shared = view.epochs.end_of(request.last_epoch, view.end).offset if request.last_epoch >= 0 else view.end
    if request.offset > shared:
        return _beyond(view, request, shared)
    if request.offset < view.start:
        # The follower has nothing from our start on: it drops what the source has deleted.
        return Refuse(Code.OFFSET_OUT_OF_RANGE)
    log_start = min(view.start, request.offset)
    return Serve(request.offset, log_start, min(view.high_watermark, view.end))


def list_offsets_response(
    view: LeaderView, replica: int, leader_epoch: int, timestamp: int
) -> EpochStart | Refuse:
    """An epoch and an offset. Followers ask for the end and the start after error 1."""
    refused = _refusal(view, leader_epoch)
    if refused is not None:
        return refused
    if timestamp == Timestamp.LATEST:
        end = view.end if replica >= 0 else view.high_watermark
        if replica >= 0 and view.acknowledged.get(replica, 0) > end:
            return Refuse(Code.UNKNOWN_LEADER_EPOCH, "the follower's end is above ours")
        return EpochStart(view.epochs.at(end - 1) if end > view.start else view.leader_epoch, end)
    if timestamp in (Timestamp.EARLIEST, Timestamp.EARLIEST_LOCAL):
        epoch = view.epochs.at(view.start)
        return EpochStart(epoch if epoch >= 0 else view.leader_epoch, view.start)
    if timestamp in (Timestamp.LATEST_TIERED, Timestamp.EARLIEST_PENDING_UPLOAD):
        return EpochStart(NO_EPOCH, NO_OFFSET)
    return Refuse(Code.UNSUPPORTED_VERSION)


def epoch_end_response(view: LeaderView, replica: int, leader_epoch: int, epoch: int) -> EpochStart | Refuse:
    """The end of an epoch, to which the follower truncates."""
    refused = _refusal(view, leader_epoch)
    if refused is not None:
        return refused
    end = view.epochs.end_of(epoch, view.end)
    if view.acknowledged.get(replica, 0) > end.offset and not view.allows(epoch, end.offset):
        return Refuse(Code.UNKNOWN_LEADER_EPOCH, "the epoch ends below what the follower acknowledged")
    return end


def _refusal(view: LeaderView, leader_epoch: int) -> Refuse | None:
    if not view.leads:
        return Refuse(Code.NOT_LEADER_OR_FOLLOWER)
    if not view.ready or (leader_epoch >= 0 and leader_epoch != view.leader_epoch):
        return _LATER
    return None


def _beyond(view: LeaderView, request: FollowerFetch, shared: int) -> Diverge | Refuse:
    """It has records that we do not have: only a recorded truncation removes them, or they are a leftover."""
    if not view.allows(request.last_epoch, shared):
        return Refuse(Code.UNKNOWN_LEADER_EPOCH, "the follower has records that the leader does not have")
    epoch = view.epochs.end_of(request.last_epoch, view.end).epoch
    # A follower ignores a diverging epoch below 0. With no epoch in common, its last one ends there.
    return Diverge(EpochStart(epoch if epoch >= 0 else request.last_epoch, shared))
