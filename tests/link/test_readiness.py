"""What a dry run of a promotion shows, and what prevents one."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.transactions import Producer
from penstock.link.readiness import GroupReadiness, TopicReadiness, blockers, topic_readiness, unread_records
from penstock.link.states import State

NOW_MS = 1_000_000_000
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
READY = TopicReadiness("orders", 2, 0, 0, 0, None)


def producer(number: int, seconds: float, *, open_since: int | None = None) -> Producer:
    """One that wrote so long ago."""
    return Producer(number, 0, 5, NOW_MS - int(seconds * 1000), 0, open_since)


def row(**values: Any) -> dict[str, Any]:
    return {"state": State.MIRRORING, "at_ms": NOW_MS - 2_000, "failed": {}, "problems": {}} | values


def test_a_topic_shows_its_lag_and_those_that_still_write() -> None:
    producers = [producer(7, 3), producer(7, 4), producer(8, 400), producer(9, 900, open_since=11)]
    assert topic_readiness(
        "orders", {FIRST: 100, SECOND: 50}, {FIRST: 90, SECOND: 60}, producers, [NOW_MS - 3_000, -1], NOW_MS
    ) == TopicReadiness("orders", 2, 10, 1, 1, 3.0)


def test_the_lag_of_a_partition_that_is_not_mirrored_is_unknown() -> None:
    shown = topic_readiness("orders", {FIRST: 100, SECOND: 50}, {FIRST: 90}, [], [-1, -1], NOW_MS)
    assert (shown.lag, shown.last_record_seconds) == (None, None)


def test_a_partition_without_an_offset_is_unread_from_its_start() -> None:
    ranges = {FIRST: (10, 100), SECOND: (20, 50), TopicPartition("other", 0): (0, 70)}
    assert unread_records({FIRST: 90}, ranges) == 10 + 30
    assert unread_records({FIRST: 5, SECOND: 60}, ranges) == 90 + 0
    assert unread_records({TopicPartition("unknown", 0): 3}, ranges) is None


def test_lag_and_producers_prevent_no_promotion() -> None:
    busy = TopicReadiness("orders", 2, 10_000, 3, 5, 0.1)
    assert blockers(row(), [busy], [GroupReadiness("billing", "Stable", 9, blocked=False)], NOW_MS) == ()


@pytest.mark.parametrize(
    ("shown", "topic", "group", "reason"),
    [
        (row(state=State.PAUSED), READY, None, "the link is paused"),
        (row(at_ms=NOW_MS - 60_000), READY, None, "not reported for 60 s"),
        (row(failed={"orders-0": "damaged"}), READY, None, "orders-0 has stopped: damaged"),
        (row(problems={"acls": "denied"}), READY, None, "problem with acls: denied"),
        (row(), TopicReadiness("orders", 2, None, 0, 0, None), None, "not mirrored completely"),
        (row(), READY, GroupReadiness("billing", "Empty", 0, blocked=True), "billing has members"),
    ],
    ids=["paused", "no process", "stopped", "problem", "not mirrored", "group on both sides"],
)
def test_what_prevents_a_promotion_is_named(
    shown: dict[str, Any], topic: TopicReadiness, group: GroupReadiness | None, reason: str
) -> None:
    (only,) = blockers(shown, [topic], [group] if group is not None else [], NOW_MS)
    assert reason in only
