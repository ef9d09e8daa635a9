"""Plans as records, their states, and what changed since they were made."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from penstock.balance.executing import Observation, PartitionState
from penstock.balance.plan_document import (
    MOVES_MAX,
    Names,
    Origin,
    PlanDocument,
    PlanDocuments,
    PlannedMove,
    PlanProgress,
    PlanState,
    document_of,
    new_document,
    new_plan_id,
    require_current,
)
from penstock.balance.planner import Action, ActionKind, Plan
from penstock.model.errors import PenstockError
from penstock.model.errors.balance import (
    PlanAlreadyRun,
    PlanNotRunning,
    PlanOfAnotherCluster,
    PlanStale,
    RateTooLow,
)
from penstock.model.schema import EVENT_BYTES_MAX

ORIGIN = Origin("plan-7hq2mz", "pkc-000001", 1_000, "operator/root", "balance")
MOVE = PlannedMove("orders", "t1", 0, (1, 2, 3), (4, 2, 3), "disk", "move from 1 to 4", 10, 5.0, 4.0)


def document(*moves: PlannedMove) -> PlanDocument:
    return new_document(moves or (MOVE,), ORIGIN)


def folded(*documents: PlanDocument) -> PlanDocuments:
    plans = PlanDocuments()
    for one in documents:
        for key, value in one.records():
            plans.apply(key, value)
    return plans


def seen(*states: tuple[str, int, PartitionState]) -> Observation:
    return Observation({(topic, number): state for topic, number, state in states}, frozenset({1, 2, 3, 4}))


def partition(*replicas: int, topic_id: str = "t1") -> PartitionState:
    return PartitionState(topic_id, replicas, replicas, replicas[0])


def test_a_plan_is_read_back_as_it_was_written() -> None:
    made = document(MOVE, replace(MOVE, partition=1))
    header = replace(made.header, progress=PlanProgress(1, 2, 3, 4.0, "x")).with_dropped({1: "gone"})

    actual = folded(replace(made, header=header)).document(ORIGIN.id)

    assert actual is not None
    assert actual.moves == made.moves
    assert actual.header == replace(header, chunks=1)
    assert actual.header.dropped_moves == {1: "gone"}


def test_a_large_plan_is_several_records_below_the_limit_with_the_header_last() -> None:
    made = document(*(replace(MOVE, topic="t" * 249, partition=n) for n in range(5_000)))

    records = made.records()

    assert len(records) > 2
    assert max(len(value) for _, value in records) < EVENT_BYTES_MAX
    assert records[-1][0] == b"plan/plan-7hq2mz"
    plans = PlanDocuments()
    for key, value in records[1:]:
        plans.apply(key, value)
    assert plans.document(ORIGIN.id) is None  # a chunk is missing
    plans.apply(*records[0])
    whole = plans.document(ORIGIN.id)
    assert whole is not None
    assert whole.moves == made.moves


def test_a_plan_whose_writer_died_before_the_header_can_be_deleted() -> None:
    plans = PlanDocuments()
    for key, value in document().records()[:-1]:
        plans.apply(key, value)

    assert plans.tombstones(ORIGIN.id)
    for key in plans.tombstones(ORIGIN.id):
        plans.apply(key, None)
    assert plans.tombstones(ORIGIN.id) == []


def test_a_planners_plan_becomes_a_document_with_names() -> None:
    action = Action(ActionKind.MOVE, "disk", 0, 0, 2, (0, 1), (2, 1), 8.0, 5.0, 4.0)
    plan = Plan((action,), ("disk",), ("load",), (), partial=False, totals=np.zeros((3, 7)))

    made = document_of(plan, Names([("orders", "t1", 7)], [101, 102, 103]), ORIGIN)

    move = made.moves[0]
    assert (move.name, move.before, move.after, move.bytes) == ("orders-7", (101, 102), (103, 102), 8)
    assert "broker 101" in move.reason
    assert "broker 103" in move.reason
    assert made.header.goals_skipped == ("load",)
    assert made.header.size_bytes == 8
    longer = replace(plan, actions=(action,) * (MOVES_MAX + 1))
    cut = document_of(longer, Names([("orders", "t1", 7)], [101, 102, 103]), ORIGIN)
    assert (len(cut.moves), cut.header.partial) == (MOVES_MAX, True)


def test_a_plan_runs_once() -> None:
    running = document().header.started(2_000)

    assert running.state is PlanState.RUNNING
    with pytest.raises(PlanAlreadyRun) as refused:
        running.started(3_000)
    assert "running" in str(refused.value)


def test_a_plan_of_another_cluster_is_refused() -> None:
    with pytest.raises(PlanOfAnotherCluster) as refused:
        document().header.started(2_000, cluster="pkc-999999")

    assert {"pkc-000001", "pkc-999999"} <= set(str(refused.value).replace(",", " ").split())


def test_a_plan_that_has_not_begun_is_cancelled_at_once_and_a_running_one_cancels() -> None:
    header = document().header

    assert header.cancelled(2_000, roll_back=True).state is PlanState.CANCELLED
    cancelling = header.started(2_000).cancelled(3_000, roll_back=True)
    assert (cancelling.state, cancelling.roll_back) == (PlanState.CANCELLING, True)
    assert cancelling.cancelled(4_000, roll_back=False).roll_back  # sent again, it does not change its mind
    with pytest.raises(PlanNotRunning):
        replace(header, state=PlanState.DONE).cancelled(5_000, roll_back=False)


def test_a_pace_below_one_megabyte_a_second_is_refused() -> None:
    header = document().header

    assert header.paced(2_000, 2e6).rate == 2e6
    with pytest.raises(RateTooLow) as refused:
        header.paced(2_000, 999_999)
    assert "999999" in str(refused.value)
    with pytest.raises(PlanNotRunning):
        replace(header, state=PlanState.DONE).paced(2_000, 2e6)


@pytest.mark.parametrize(
    ("now", "brokers", "change"),
    [
        (seen(), {1, 2, 3, 4}, "orders-0 does not exist"),
        (seen(("orders", 0, partition(1, 2, 3, topic_id="t2"))), {1, 2, 3, 4}, "orders was created again"),
        (seen(("orders", 0, partition(3, 2, 1))), {1, 2, 3, 4}, "[3, 2, 1], not [1, 2, 3]"),
        (seen(("orders", 0, partition(1, 2, 3))), {1, 2, 3}, "broker 4 is down"),
    ],
)
def test_the_error_of_a_stale_plan_names_what_changed(
    now: Observation, brokers: set[int], change: str
) -> None:
    with pytest.raises(PlanStale) as refused:
        require_current(document(), now, brokers)

    assert change in str(refused.value)


def test_a_stale_plan_counts_changes_that_it_does_not_name() -> None:
    with pytest.raises(PenstockError) as refused:
        require_current(document(*(replace(MOVE, partition=n) for n in range(10))), seen(), {1, 2, 3, 4})

    assert "and 7 more" in str(refused.value)


def test_a_plan_is_current_while_its_partitions_are_as_planned() -> None:
    require_current(document(), seen(("orders", 0, partition(1, 2, 3))), {1, 2, 3, 4})


def test_ids_of_plans() -> None:
    plan = new_plan_id(random.Random(1).choice)

    assert plan.startswith("plan-")
    assert len(plan) == len("plan-xxxxxx")
