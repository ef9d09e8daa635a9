"""Where a run starts, from checkpoint, table and topic, and the reasons to refuse it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors.pipeline import (
    CheckpointMismatch,
    PositionMoved,
    RecordsLost,
    TableBehind,
    TopicReplaced,
)
from penstock.pipeline.lake.ledger import (
    Checkpoint,
    Commit,
    Offsets,
    Start,
    TopicOffsets,
    is_committed,
    lag,
    resolve_start,
)

TOPIC = TopicOffsets("orders", "id-1", start={0: 0, 1: 5}, end={0: 100, 1: 50})
LAST = Commit("orders", "q1", 3, "orders", "id-1", {0: 10, 1: 5}, {0: 40, 1: 20})
CHECKPOINT = Checkpoint("q1", committed=3, planned=3, end={0: 40, 1: 20})
offsets = st.dictionaries(st.integers(0, 9), st.integers(0, 1 << 40), min_size=1)


def start(
    checkpoint: Checkpoint | None,
    last: Commit | None,
    topic: TopicOffsets = TOPIC,
    loss: bool = False,
    own: Commit | None = None,
) -> Start:
    return resolve_start("orders", topic, checkpoint, last, own=own, table="shop.orders", accept_loss=loss)


def test_a_job_s_first_run_starts_at_the_beginning_of_the_topic() -> None:
    assert start(None, None) == Start({0: 0, 1: 5})


def test_a_checkpoint_decides_where_to_resume() -> None:
    assert start(CHECKPOINT, LAST).offsets is None


def test_without_a_checkpoint_the_table_decides_where_to_resume() -> None:
    assert start(None, LAST) == Start({0: 40, 1: 20})


def test_a_new_partition_is_read_from_its_beginning() -> None:
    grown = replace(TOPIC, start={**TOPIC.start, 2: 0}, end={**TOPIC.end, 2: 9})

    assert start(None, LAST, grown).offsets == {0: 40, 1: 20, 2: 0}


def test_a_crash_between_table_and_checkpoint_is_no_obstacle() -> None:
    assert start(replace(CHECKPOINT, committed=2), LAST).offsets is None


def test_a_checkpoint_of_another_query_is_refused() -> None:
    with pytest.raises(CheckpointMismatch) as raised:
        start(replace(CHECKPOINT, query="q2"), LAST)

    assert "q2" in str(raised.value)


def test_a_foreign_checkpoint_without_a_finished_batch_is_discarded() -> None:
    fresh = Checkpoint("q2", committed=-1, planned=0)

    assert start(fresh, LAST) == Start({0: 40, 1: 20}, discard=True)


def test_after_a_run_with_another_checkpoint_has_continued_the_table_decides_where_to_resume() -> None:
    elsewhere = replace(LAST, query="q2", batch=0, start=LAST.end, end={0: 70, 1: 20})

    assert start(CHECKPOINT, elsewhere, own=LAST) == Start({0: 70, 1: 20}, discard=True)
    with pytest.raises(TableBehind):
        start(CHECKPOINT, elsewhere, own=replace(LAST, batch=2))


@pytest.mark.parametrize("last", [None, replace(LAST, batch=2)])
def test_a_table_behind_its_checkpoint_is_refused(last: Commit | None) -> None:
    with pytest.raises(TableBehind):
        start(CHECKPOINT, last)


def test_a_recreated_topic_is_refused() -> None:
    with pytest.raises(TopicReplaced):
        start(CHECKPOINT, LAST, replace(TOPIC, id="id-2"))


def test_records_that_retention_removed_are_reported_and_skipped_only_on_request() -> None:
    overtaken = replace(TOPIC, start={0: 60, 1: 5})

    with pytest.raises(RecordsLost) as raised:
        start(CHECKPOINT, LAST, overtaken)

    assert "partition 0 offsets 40 to 59" in str(raised.value)
    assert start(CHECKPOINT, LAST, overtaken, loss=True).lost == {0: (40, 60)}
    assert start(None, LAST, overtaken, loss=True).offsets == {0: 60, 1: 20}


def test_lag_counts_from_the_position_or_the_beginning() -> None:
    assert lag(TOPIC, {0: 40}) == 60 + 45


@given(offsets, offsets, st.integers(0, 1 << 40))
def test_a_commit_survives_its_snapshot_summary(first: Offsets, end: Offsets, batch: int) -> None:
    commit = Commit("orders", "q1", batch, "orders", "id", first, end)

    assert Commit.of({**commit.properties(), "operation": "append"}) == commit
    assert Commit.of({"operation": "replace"}) is None


@given(st.integers(0, 9), st.integers(-1, 9))
def test_a_batch_is_committed_if_the_table_has_it_or_a_later_one(batch: int, newest: int) -> None:
    last = replace(LAST, batch=newest) if newest >= 0 else None
    delivered = replace(LAST, batch=batch, start=LAST.end if newest < batch else LAST.start)

    assert is_committed(delivered, last, table="shop.orders") == (newest >= batch)


@pytest.mark.parametrize("query", ["q1", "q2"])
@pytest.mark.parametrize("position", [{0: 10, 1: 5}, {0: 39, 1: 20}, {0: 41, 1: 20}, {1: 20}])
def test_a_batch_that_does_not_start_where_the_table_ends_is_refused(query: str, position: Offsets) -> None:
    delivered = replace(LAST, query=query, batch=4, start=position, end={0: 90, 1: 90})

    with pytest.raises(PositionMoved):
        is_committed(delivered, LAST, table="shop.orders")


def test_a_batch_may_skip_what_the_run_was_allowed_to_lose_and_nothing_else() -> None:
    delivered = replace(LAST, batch=4, start={0: 60, 1: 20}, end={0: 90, 1: 90})

    assert not is_committed(delivered, LAST, table="shop.orders", lost={0: (40, 60)})
    with pytest.raises(PositionMoved):
        is_committed(delivered, LAST, table="shop.orders", lost={0: (30, 60)})


def test_a_batch_may_start_a_new_partition() -> None:
    delivered = replace(LAST, batch=4, start={**LAST.end, 2: 0}, end={0: 90, 1: 90, 2: 5})

    assert not is_committed(delivered, LAST, table="shop.orders")
