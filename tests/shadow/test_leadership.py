from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.metadata_image import PartitionId, PartitionState
from penstock.model.shadow_ids import SHADOW_IDS
from penstock.shadow.following import abandoned
from penstock.shadow.leadership import LAG_SECONDS_MAX, Leadership
from penstock.shadow.partition import LedPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.shadow.partition import RawBatch

SHADOW = SHADOW_IDS[0]
STATE = PartitionState((SHADOW, 1, 2), (SHADOW, 1, 2), SHADOW, 4, 9)
UNFENCED = {1: 11, 2: 12}


def test_the_high_watermark_is_the_lowest_end_of_real_in_sync_replicas() -> None:
    term = Leadership(STATE, 0)
    term.fetched(1, 50, 50, 0.0)
    assert term.high_watermark == 0, "the end of broker 2 is not known"
    assert term.fetched(2, 30, 50, 0.0)
    assert term.high_watermark == 30


def test_the_shadow_alone_never_raises_the_high_watermark() -> None:
    term = Leadership(replace(STATE, isr=(SHADOW,)), 5)
    term.fetched(1, 50, 50, 0.0)
    assert (term.ready, term.high_watermark) == (False, 5)


def test_followers_that_were_all_fenced_are_served_and_admitted_again() -> None:
    """On a busy machine the sessions of all brokers end; the controller leaves the shadow alone in sync."""
    term = Leadership(STATE, 0)
    for replica in (1, 2):
        term.fetched(replica, 50, 60, 0.0, broker_epoch=UNFENCED[replica])
    term.update(replace(STATE, isr=(SHADOW,), partition_epoch=10), 0.0)
    assert (term.ready, term.truncated) == (True, False)
    term.fetched(1, 60, 60, 1.0, broker_epoch=21)
    assert term.high_watermark == 50, "it stands still while no real replica is in sync"
    term.fetched(2, 40, 60, 1.0, broker_epoch=22)
    isr = term.next_isr(60, 1.0, {1: 21, 2: 22})
    assert isr == (SHADOW, 1), "broker 2 lacks records below the high watermark"
    term.request(isr)
    term.fetched(1, 60, 60, 2.0, broker_epoch=21)
    assert term.high_watermark == 50, "not admitted yet"
    assert term.update(replace(STATE, isr=(SHADOW, 1), partition_epoch=11), 0.0)
    assert term.high_watermark == 60


def test_a_new_term_without_real_in_sync_replicas_begins_with_the_known_high_watermark() -> None:
    """The shadow's session ended too. A shadow that knows no high watermark serves nothing."""
    alone = replace(STATE, isr=(SHADOW,), leader_epoch=6)
    partition = LedPartition(PartitionId(UUID(int=3), 0), "orders", 0, 60, no_older)
    partition.begin_term(alone)
    assert not partition.view().ready
    partition.begin_term(STATE)
    assert partition.leadership is not None
    for replica in (1, 2):
        partition.leadership.fetched(replica, 50, 60, 0.0)
    partition.end_term()
    partition.begin_term(alone)
    assert (partition.view().ready, partition.high_watermark) == (True, 50)
    partition.begin_term(replace(STATE, leader_epoch=8))
    assert not partition.view().ready, "the ends of in-sync replicas are not known in this term"


def test_a_follower_that_caught_up_is_admitted_in_its_present_epoch() -> None:
    term = Leadership(replace(STATE, isr=(SHADOW, 1)), 0)
    term.fetched(1, 50, 50, 0.0, broker_epoch=11)
    term.fetched(2, 50, 50, 0.0, broker_epoch=5)
    assert term.next_isr(50, 1.0, UNFENCED) is None, "it fetched before it restarted"
    term.fetched(2, 50, 50, 1.0, broker_epoch=12)
    assert term.next_isr(50, 2.0, UNFENCED) == (SHADOW, 1, 2)


def test_a_fenced_follower_is_not_admitted() -> None:
    term = Leadership(replace(STATE, isr=(SHADOW, 1)), 0)
    term.fetched(1, 50, 50, 0.0, broker_epoch=11)
    term.fetched(2, 50, 50, 0.0, broker_epoch=12)
    assert term.next_isr(50, 1.0, {1: 11}) is None


def test_a_slow_follower_leaves_unless_it_is_the_last_real_one() -> None:
    term = Leadership(STATE, 0)
    term.fetched(1, 50, 50, 0.0)
    term.fetched(2, 10, 50, 0.0)
    later = LAG_SECONDS_MAX + 1
    assert term.next_isr(50, later, UNFENCED) == (SHADOW, 1)
    alone = Leadership(replace(STATE, isr=(SHADOW, 2)), 0)
    alone.fetched(2, 10, 50, 0.0)
    assert alone.next_isr(50, later, UNFENCED) is None


@given(st.lists(st.tuples(st.sampled_from((1, 2)), st.integers(0, 100)), max_size=30))
def test_the_high_watermark_never_falls_nor_passes_an_in_sync_end(fetches: list[tuple[int, int]]) -> None:
    term = Leadership(STATE, 0)
    highest: dict[int, int] = {}
    before = 0
    for replica, offset in fetches:
        highest[replica] = max(offset, highest.get(replica, 0))
        term.fetched(replica, offset, 100, 0.0)
        assert before <= term.high_watermark <= min(highest.get(1, 0), highest.get(2, 0))
        before = term.high_watermark


def test_a_replica_whose_admission_is_requested_counts_for_the_high_watermark() -> None:
    """The controller may have committed it, and elect it, before the shadow reads that."""
    term = Leadership(replace(STATE, isr=(SHADOW, 1)), 0)
    term.fetched(1, 50, 50, 0.0, broker_epoch=11)
    term.fetched(2, 50, 50, 0.0, broker_epoch=12)
    isr = term.next_isr(50, 1.0, UNFENCED)
    assert isr == (SHADOW, 1, 2)
    term.request(isr)
    term.fetched(1, 90, 90, 1.0, broker_epoch=11)
    assert term.high_watermark == 50, "broker 2 has no more"
    term.update(replace(STATE, isr=(SHADOW, 1), partition_epoch=STATE.partition_epoch + 1), 0.0)
    assert term.high_watermark == 90, "it was not admitted"


def test_a_refused_admission_does_not_count() -> None:
    term = Leadership(replace(STATE, isr=(SHADOW, 1)), 0)
    term.fetched(1, 50, 50, 0.0, broker_epoch=11)
    term.fetched(2, 50, 50, 0.0, broker_epoch=12)
    term.request((SHADOW, 1, 2))
    term.rejected()
    assert term.fetched(1, 90, 90, 1.0, broker_epoch=11)
    assert term.high_watermark == 90


def test_a_request_without_a_response_is_repeated_without_a_replica_that_has_gone() -> None:
    term = Leadership(replace(STATE, isr=(SHADOW, 1)), 0)
    term.fetched(1, 50, 50, 0.0, broker_epoch=11)
    term.fetched(2, 50, 50, 0.0, broker_epoch=12)
    term.request((SHADOW, 1, 2))
    assert term.next_isr(50, 1.0, {1: 11}) == (SHADOW, 1)
    term.request((SHADOW, 1))
    assert term.next_isr(50, 1.0, {1: 11}) is None


async def no_older(_offset: int, _bytes_max: int) -> Sequence[RawBatch]:
    return ()


def led(index: int, fetched_at: dict[int, float]) -> LedPartition:
    partition = LedPartition(PartitionId(UUID(int=3), index), "orders", 0, 0, no_older)
    partition.leadership = Leadership(STATE, 0)
    for replica, at in fetched_at.items():
        partition.leadership.fetched(replica, 0, 0, at)
    return partition


def test_a_partition_that_a_follower_gave_up_is_recognized_by_the_others_that_it_fetches() -> None:
    fine, given_up = led(0, {1: 100.0, 2: 100.0}), led(1, {1: 100.0, 2: 40.0})
    assert abandoned([fine, given_up], 100.0, 40.0) == [given_up]
    # A follower that fetches nothing is down: a new epoch would not help.
    assert abandoned([led(0, {1: 100.0, 2: 40.0}), led(1, {1: 100.0, 2: 40.0})], 100.0, 40.0) == []


def test_a_replica_that_is_added_again_is_in_sync_only_with_its_new_log() -> None:
    term = Leadership(replace(STATE, replicas=(SHADOW, 1, 2)), 0)
    for replica in (1, 2):
        term.fetched(replica, 50, 50, 0.0, broker_epoch=UNFENCED[replica])
    dropped = replace(STATE, replicas=(SHADOW, 1), isr=(SHADOW, 1), partition_epoch=10)
    term.update(dropped, 1.0)
    term.fetched(2, 50, 50, 1.5, broker_epoch=UNFENCED[2], received_at=0.9)
    term.update(replace(dropped, replicas=(SHADOW, 1, 2), partition_epoch=11), 2.0)
    assert term.next_isr(50, 2.0, UNFENCED) is None, "what it had before counts"
    # A request about the earlier log that has waited here.
    term.fetched(2, 50, 50, 2.5, broker_epoch=UNFENCED[2], received_at=1.9)
    assert term.next_isr(50, 2.5, UNFENCED) is None, "a request from before counts"
    term.fetched(2, 0, 50, 3.0, broker_epoch=UNFENCED[2], received_at=2.9)
    assert term.next_isr(50, 3.0, UNFENCED) is None, "it is behind"
    term.fetched(2, 50, 50, 4.0, broker_epoch=UNFENCED[2], received_at=3.9)
    assert term.next_isr(50, 4.0, UNFENCED) == (SHADOW, 1, 2)


def test_a_follower_that_keeps_up_with_a_growing_log_stays_in_sync() -> None:
    """At each fetch it has what the leader had at the fetch before, and never everything."""
    term = Leadership(STATE, 0)
    for second in range(int(3 * LAG_SECONDS_MAX)):
        term.fetched(1, 100 * second, 100 * second + 50, float(second))
        term.fetched(2, 50 * second, 100 * second + 50, float(second))
    assert term.next_isr(10_000, 3 * LAG_SECONDS_MAX, UNFENCED) == (SHADOW, 1)
