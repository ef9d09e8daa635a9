"""No response makes a follower discard records, unless the source deleted or truncated them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shadow.epoch_history import EpochHistory, EpochStart
from penstock.shadow.responses import (
    Diverge,
    FollowerFetch,
    LeaderView,
    Refuse,
    Serve,
    Timestamp,
    Truncation,
    epoch_end_response,
    fetch_response,
    list_offsets_response,
)
from penstock.wire.error_codes import Code
from tests.shadow.follower_model import ModelFollower, history_of

EPOCH = 7
VIEW = LeaderView(
    leads=True, leader_epoch=EPOCH, start=10, end=50, high_watermark=40,
    epochs=EpochHistory((EpochStart(3, 10), EpochStart(7, 30))),
)  # fmt: skip


@st.composite
def logs(draw: st.DrawFn, first: int = 0) -> dict[int, int]:
    """Epochs by offset: rising, with gaps."""
    log: dict[int, int] = {}
    offset, epoch = first, 0
    for _ in range(draw(st.integers(0, 12))):
        offset += draw(st.integers(1, 3))
        epoch += draw(st.integers(0, 1))
        log[offset] = epoch
    return log


@given(logs(), st.integers(0, 12), st.integers(0, 30), st.data())
def test_a_follower_keeps_every_record_that_its_leader_has(
    leader_log: dict[int, int], had: int, start: int, data: st.DataObject
) -> None:
    end = max(leader_log, default=-1) + 1
    start = min(start, end)
    # A follower holds a prefix of the leader's log, or records that the leader does not have.
    prefix = dict(sorted(leader_log.items())[:had])
    extra = data.draw(logs(max(prefix, default=0))) if data.draw(st.booleans()) else {}
    held = prefix | {
        o: e + 100 for o, e in extra.items() if o not in leader_log and o > max(prefix, default=-1)
    }
    follower = ModelFollower(1, dict(held), 0, max(held, default=-1) + 1)
    visible = {offset: epoch for offset, epoch in leader_log.items() if offset >= start}
    watermark = max(start, data.draw(st.integers(0, end)))
    view = LeaderView(
        leads=True, leader_epoch=200, start=start, end=end, high_watermark=watermark,
        epochs=history_of(leader_log), acknowledged={1: follower.end},
    )  # fmt: skip
    for _ in range(3):
        follower.fetch(view, visible, 200)
    lost = {offset for offset in follower.deleted if offset >= start}
    assert not lost, "only records below the source's start may go"


@given(logs(), st.data())
def test_a_recorded_truncation_removes_exactly_what_diverged(
    shared: dict[int, int], data: st.DataObject
) -> None:
    point = max(shared, default=-1) + 1
    tail = {o: e + 50 for o, e in data.draw(logs(point)).items() if o >= point}
    new = {o: e + 90 for o, e in data.draw(logs(point)).items() if o >= point}
    follower = ModelFollower(1, shared | tail, 0, max(shared | tail, default=-1) + 1)
    leader_log = shared | new
    view = LeaderView(
        leads=True, leader_epoch=200, start=0, end=max(leader_log, default=-1) + 1,
        high_watermark=0, epochs=history_of(leader_log), acknowledged={1: follower.end},
        truncation=Truncation(89, point),
    )  # fmt: skip
    for _ in range(4):
        follower.fetch(view, leader_log, 200)
    assert follower.deleted <= set(tail)
    assert {o: e for o, e in follower.log.items() if o < point} == shared


@pytest.mark.parametrize(
    ("view", "code"),
    [
        (LeaderView(False, EPOCH, 10, 50, 40), Code.NOT_LEADER_OR_FOLLOWER),
        (LeaderView(True, EPOCH + 1, 10, 50, 40), Code.UNKNOWN_LEADER_EPOCH),
        (LeaderView(True, EPOCH - 1, 10, 50, 40), Code.UNKNOWN_LEADER_EPOCH),
        (LeaderView(True, EPOCH, 10, 50, 40, ready=False), Code.UNKNOWN_LEADER_EPOCH),
    ],
    ids=["another broker leads", "the follower is behind", "the shadow is behind", "ends are not known"],
)
def test_a_shadow_that_does_not_know_enough_decides_nothing(view: LeaderView, code: Code) -> None:
    fetch = fetch_response(view, FollowerFetch(1, EPOCH, 20, 3))
    offsets = list_offsets_response(view, 1, EPOCH, Timestamp.LATEST)
    epochs = epoch_end_response(view, 1, EPOCH, 3)
    assert fetch == offsets == epochs == Refuse(code)


def test_a_follower_in_range_gets_records_and_a_start_not_above_its_end() -> None:
    assert fetch_response(VIEW, FollowerFetch(1, EPOCH, 30, 3)) == Serve(30, 10, 40)


def test_an_empty_follower_starts_at_the_leaders_start() -> None:
    assert fetch_response(VIEW, FollowerFetch(1, EPOCH, 0)) == Refuse(Code.OFFSET_OUT_OF_RANGE)
    assert list_offsets_response(VIEW, 1, EPOCH, Timestamp.EARLIEST) == EpochStart(3, 10)


def test_a_follower_with_more_than_the_leader_is_never_truncated() -> None:
    response = fetch_response(VIEW, FollowerFetch(1, EPOCH, 60, 7))
    assert isinstance(response, Refuse)
    assert response.code == Code.UNKNOWN_LEADER_EPOCH
    assert response.guarded


def test_a_recorded_truncation_ends_where_both_logs_agree() -> None:
    truncated = LeaderView(True, EPOCH, 10, 30, 30, VIEW.epochs.truncated(30), truncation=Truncation(6, 30))
    assert fetch_response(truncated, FollowerFetch(1, EPOCH, 45, 5)) == Diverge(EpochStart(3, 30))


def test_offsets_below_what_a_follower_acknowledged_are_withheld() -> None:
    view = LeaderView(True, EPOCH, 10, 50, 40, VIEW.epochs, acknowledged={1: 55})
    assert isinstance(list_offsets_response(view, 1, EPOCH, Timestamp.LATEST), Refuse)
    assert isinstance(epoch_end_response(view, 1, EPOCH, 7), Refuse)


def test_a_tiered_offset_does_not_exist() -> None:
    assert list_offsets_response(VIEW, 1, EPOCH, Timestamp.LATEST_TIERED) == EpochStart(-1, -1)


def test_an_unknown_timestamp_is_refused() -> None:
    assert list_offsets_response(VIEW, 1, EPOCH, 12345) == Refuse(Code.UNSUPPORTED_VERSION)


def test_a_recorded_truncation_does_not_cover_later_epochs() -> None:
    truncated = LeaderView(True, EPOCH, 10, 40, 30, VIEW.epochs, truncation=Truncation(6, 30))
    assert fetch_response(truncated, FollowerFetch(1, EPOCH, 45, 5)) == Diverge(EpochStart(3, 30))
    later = fetch_response(truncated, FollowerFetch(1, EPOCH, 45, 7))
    assert isinstance(later, Refuse)
    assert later.guarded
    ends = LeaderView(
        True, EPOCH, 10, 40, 30, VIEW.epochs, truncation=Truncation(6, 30), acknowledged={1: 45}
    )
    assert epoch_end_response(ends, 1, EPOCH, 5) == EpochStart(3, 30)
    assert isinstance(epoch_end_response(ends, 1, EPOCH, 7), Refuse)


def test_what_no_in_sync_replica_had_goes_from_a_replica_that_was_away() -> None:
    """Its records of an earlier term were acknowledged to no one. Later epochs stay protected."""
    view = replace(VIEW, end=60, epochs=EpochHistory((EpochStart(3, 10), EpochStart(7, 40))))
    away = FollowerFetch(1, EPOCH, 45, 3)
    assert isinstance(fetch_response(view, away), Refuse)
    view = replace(view, leftover=Truncation(6, 40))
    assert fetch_response(view, away) == Diverge(EpochStart(3, 40))
    lower = replace(view, epochs=EpochHistory((EpochStart(3, 10), EpochStart(7, 39))))
    assert isinstance(fetch_response(lower, away), Refuse), "an in-sync replica had this record"
    assert isinstance(fetch_response(view, FollowerFetch(1, EPOCH, 70, 7)), Refuse)
