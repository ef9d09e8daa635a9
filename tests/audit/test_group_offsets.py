"""Committed offsets against the logs: what is reported, and what only looks wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from penstock.audit.group_offsets import ROUND_SECONDS, Commit, GroupCollector, GroupWatch
from penstock.audit.metadata_history import MetadataHistory
from penstock.audit.sweep import LogRange, Sweeper
from penstock.kafka.admin import group_offsets, groups
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.groups import GroupListing, GroupType
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.broker_errors import broker_error
from penstock.model.durability import Group, partition_subject
from tests.audit.history import PLACEMENT

if TYPE_CHECKING:
    import pytest

    from penstock.kafka.client import Client

KEY = ("AAAAAAAAAAAAAAAAAAAAAQ", 0)
SUBJECT = partition_subject(*KEY)
PLACE = ("billing", KEY)


def rounds(*observed: tuple[int, LogRange], members: bool = True) -> list[Group]:
    """Each round: the committed offset, and the log then."""
    watch, before, reported = GroupWatch(), dict[Any, LogRange](), list[Group]()
    for offset, range_ in observed:
        after = {KEY: range_}
        for subject, facts in watch.judge({PLACE: Commit(offset, members)}, before or after, after):
            assert subject == SUBJECT
            assert isinstance(facts, Group)
            reported.append(facts)
        before = after
    return reported


def test_a_log_that_ends_below_what_a_group_has_read_is_reported_once() -> None:
    whole, cut = LogRange(0, 100), LogRange(0, 60)

    assert rounds((90, whole), (90, cut), (90, cut), (90, cut)) == [Group("billing", 90, 90, 0, 60)]
    assert rounds((90, whole), (90, cut), (60, cut)) == [], "reset before it was certain"


def test_an_offset_that_the_log_never_had_is_not_a_loss() -> None:
    """Of an earlier topic with the same name, or made up."""
    log = LogRange(0, 10)

    assert rounds((5000, log), (5000, log), (5000, log), (4, log), (4, log)) == []


def test_records_that_a_running_group_has_not_read_and_that_are_gone_are_reported() -> None:
    whole, trimmed = LogRange(0, 100), LogRange(50, 100)

    assert rounds((20, whole), (20, trimmed), (20, trimmed), (20, trimmed)) == [
        Group("billing", 20, 20, 50, 100)
    ]
    assert rounds((20, whole), (20, trimmed), (20, trimmed), members=False) == []


def test_a_group_at_the_start_or_the_end_of_the_log_is_fine() -> None:
    assert rounds(*[(100, LogRange(100, 100))] * 3) == []
    assert rounds(*[(0, LogRange(0, 0))] * 3) == []


def test_an_offset_that_falls_and_stays_lower_is_reported_once() -> None:
    log = LogRange(0, 100)

    assert rounds((80, log), (30, log), (40, log), (45, log)) == [Group("billing", 40, 80, 0, 100)]
    assert rounds((80, log), (30, log), (85, log)) == []


def test_offsets_are_judged_by_starts_from_before_and_ends_from_after_they_were_read() -> None:
    """Between the two, the log grew, the group followed, and retention deleted what it had read."""
    watch = GroupWatch()
    for _ in range(3):
        before, after = {KEY: LogRange(0, 50)}, {KEY: LogRange(70, 100)}
        assert watch.judge({PLACE: Commit(60, True)}, before, after) == []


def test_groups_and_topics_that_are_gone_are_forgotten() -> None:
    watch, log = GroupWatch(), {KEY: LogRange(0, 100)}
    watch.judge({PLACE: Commit(80, True)}, log, log)
    watch.judge({PLACE: Commit(30, True)}, log, log)
    watch.judge({}, {}, {})

    assert watch == GroupWatch()


async def test_a_round_reads_every_group_and_leaves_out_one_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offsets = {"billing": 90, "broken": 0, "shares": 0}

    async def list_all(_: object) -> dict[str, GroupListing]:
        types = {"shares": GroupType.SHARE}
        return {
            name: GroupListing(name, types.get(name, GroupType.CONSUMER), "Stable", "", 1) for name in offsets
        }

    async def committed(_: object, group: str) -> dict[TopicPartition, CommittedOffset]:
        assert group != "shares"
        if group == "broken":
            raise broker_error("OffsetFetch", 16, None, "group 'broken'")
        unknown = {TopicPartition("deleted", 0): CommittedOffset(7)}
        return unknown | {TopicPartition("orders", 0): CommittedOffset(offsets[group])}

    monkeypatch.setattr(groups, "list_all", list_all)
    monkeypatch.setattr(group_offsets, "committed", committed)
    history = MetadataHistory(names={KEY[0]: "orders"}, partitions={KEY: PLACEMENT})
    sweeper, collector, client = Sweeper(), GroupCollector(), cast("Client", SimpleNamespace())
    reported = []
    for number in range(12):
        sweeper.sweeps += 1
        sweeper.ranges = {KEY: LogRange(0, 100 if number < 3 else 60)}
        reported += await collector.collect(client, history, sweeper, number * ROUND_SECONDS)

    assert reported == [(SUBJECT, Group("billing", 90, 90, 0, 60))]
