"""Where a run begins: from checkpoint, table and topic, or not at all, with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors.pipeline import CheckpointForeign, RecordsLost, TableBehind, TopicReplaced
from penstock.pipeline.ledger import (
    Checkpoint,
    Commit,
    Offsets,
    Start,
    TopicFacts,
    behind,
    is_done,
    where_to_start,
)

TOPIC = TopicFacts("orders", "id-1", start={0: 0, 1: 5}, end={0: 100, 1: 50})
LAST = Commit("orders", "q1", 3, "orders", "id-1", {0: 10, 1: 5}, {0: 40, 1: 20})
CHECKPOINT = Checkpoint("q1", committed=3, planned=3, end={0: 40, 1: 20})
offsets = st.dictionaries(st.integers(0, 9), st.integers(0, 1 << 40), min_size=1)


def begin(
    checkpoint: Checkpoint | None, last: Commit | None, topic: TopicFacts = TOPIC, loss: bool = False
) -> Start:
    return where_to_start("orders", topic, checkpoint, last, table="shop.orders", accept_loss=loss)


def test_a_job_that_never_ran_begins_where_the_topic_does() -> None:
    assert begin(None, None) == Start({0: 0, 1: 5})


def test_a_checkpoint_goes_on_by_itself() -> None:
    assert begin(CHECKPOINT, LAST).offsets is None


def test_a_lost_checkpoint_is_made_good_from_the_table() -> None:
    assert begin(None, LAST) == Start({0: 40, 1: 20})


def test_a_new_partition_is_read_from_its_beginning() -> None:
    grown = replace(TOPIC, start={**TOPIC.start, 2: 0}, end={**TOPIC.end, 2: 9})

    assert begin(None, LAST, grown).offsets == {0: 40, 1: 20, 2: 0}


def test_a_crash_before_the_checkpoint_knew_is_no_reason_to_stop() -> None:
    assert begin(replace(CHECKPOINT, committed=2), LAST).offsets is None


def test_a_checkpoint_of_another_query_is_refused() -> None:
    with pytest.raises(CheckpointForeign) as raised:
        begin(replace(CHECKPOINT, query="q2"), LAST)

    assert "q2" in str(raised.value)


def test_a_new_checkpoint_that_finished_nothing_is_made_anew() -> None:
    fresh = Checkpoint("q2", committed=-1, planned=0)

    assert begin(fresh, LAST) == Start({0: 40, 1: 20}, discard=True)


@pytest.mark.parametrize("last", [None, replace(LAST, batch=2)])
def test_a_table_behind_its_checkpoint_is_refused(last: Commit | None) -> None:
    with pytest.raises(TableBehind):
        begin(CHECKPOINT, last)


def test_a_topic_made_anew_is_refused() -> None:
    with pytest.raises(TopicReplaced):
        begin(CHECKPOINT, LAST, replace(TOPIC, id="id-2"))


def test_records_that_retention_took_are_named_and_passed_over_only_when_told() -> None:
    overtaken = replace(TOPIC, start={0: 60, 1: 5})

    with pytest.raises(RecordsLost) as raised:
        begin(CHECKPOINT, LAST, overtaken)

    assert "partition 0 offsets 40 to 59" in str(raised.value)
    assert begin(CHECKPOINT, LAST, overtaken, loss=True).lost == {0: (40, 60)}
    assert begin(None, LAST, overtaken, loss=True).offsets == {0: 60, 1: 20}


def test_lag_counts_from_what_is_done_or_from_the_beginning() -> None:
    assert behind(TOPIC, {0: 40}) == 60 + 45


@given(offsets, offsets, st.integers(0, 1 << 40))
def test_a_commit_says_of_itself_all_that_it_is(start: Offsets, end: Offsets, batch: int) -> None:
    commit = Commit("orders", "q1", batch, "orders", "id", start, end)

    assert Commit.of({**commit.properties(), "operation": "append"}) == commit
    assert Commit.of({"operation": "replace"}) is None


@given(st.integers(0, 9), st.integers(-1, 9))
def test_a_batch_is_done_if_the_table_has_it_or_a_later_one(batch: int, newest: int) -> None:
    found = replace(LAST, batch=newest) if newest >= 0 else None

    assert is_done(replace(LAST, batch=batch), found) == (newest >= batch)
