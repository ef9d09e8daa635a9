"""The window: lag, age, and where a partition's history restarts."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from penstock.scale.decision.values import NO_COMMIT, GroupState, Log, Memory, Progress, Sample, offsets
from penstock.scale.decision.verdict import decide, decide_all
from penstock.scale.decision.window import Window, add_samples
from tests.scale.scenarios import INTERVAL, POLICY, T0, TOPIC, facts_of, window_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def sample(
    at: float,
    end: list[int],
    committed: list[int],
    *,
    start: list[int] | None = None,
    topic_id: str = "first",
    completed_beyond: list[int] | None = None,
    markers: list[int] | None = None,
) -> Sample:
    log = Log(topic_id, offsets(start or [0] * len(end)), offsets(end))
    progress = Progress(
        offsets(committed),
        offsets(completed_beyond) if completed_beyond else None,
        offsets(markers) if markers else None,
    )
    return Sample(T0 + at, GroupState.STABLE, 1, {TOPIC: log}, {TOPIC: progress})


def lags(window: Window) -> list[float]:
    return [float(lag) for lag in window.newest.lag]


def test_lag_is_what_lies_between_commit_and_end() -> None:
    assert lags(window_of([sample(0, [100, 50], [90, 50])])) == [10, 0]


def test_records_deleted_by_retention_do_not_count() -> None:
    assert lags(window_of([sample(0, [100], [10], start=[70])])) == [30]


def test_lag_is_never_negative_when_the_commit_is_read_after_the_end() -> None:
    assert lags(window_of([sample(0, [100], [105])])) == [0]


def test_records_completed_beyond_the_commit_do_not_count() -> None:
    assert lags(window_of([sample(0, [100], [10], completed_beyond=[60])])) == [30]


def test_transaction_markers_do_not_count() -> None:
    """KEDA issue 5675: with KEDA, a marker at the end is a lag of one that never goes away."""
    assert lags(window_of([sample(0, [100], [99], markers=[1])])) == [0]


def test_lag_without_a_commit_depends_on_the_reset_policy() -> None:
    given = sample(0, [100], [NO_COMMIT], start=[40])

    assert math.isnan(lags(window_of([given]))[0])
    assert lags(window_of([given], reset_policy="earliest")) == [60]


def test_age_is_read_from_the_history_of_end_offsets() -> None:
    window = window_of([sample(10 * n, [100 * n], [350]) for n in range(4, 7)])
    assert window.newest.age[0] == pytest.approx(25.0)  # older than the window: extrapolated

    window = window_of([sample(10 * n, [100 * n], [min(100 * n, 350)]) for n in range(7)])

    assert window.newest.age[0] == pytest.approx(25.0)


def test_age_beyond_the_window_is_extrapolated_at_its_mean_rate() -> None:
    window = window_of([sample(10 * n, [1000 + 100 * n], [500]) for n in range(4)])

    assert window.newest.age[0] == pytest.approx(30 + 50)


def test_age_grows_while_nothing_arrives() -> None:
    window = window_of([sample(0, [100], [100]), sample(10, [200], [150]), sample(20, [200], [150])])

    assert window.newest.age[0] == pytest.approx(15.0)  # offset 150 was appended at 5 s


def restarted(window: Window) -> list[bool]:
    return [bool(started == window.at[0]) for started in window.since.started]


@pytest.mark.parametrize(
    ("what", "second", "restarts"),
    [
        ("nothing changed", sample(10, [110, 110], [100, 100]), [False, False]),
        (
            "topic deleted and created again",
            sample(10, [110, 110], [100, 100], topic_id="second"),
            [True, True],
        ),
        ("created again and shorter", sample(10, [5, 110], [100, 100]), [True, False]),
        ("offsets reset to an earlier point", sample(10, [110, 110], [20, 100]), [True, False]),
        ("retention overtook the group", sample(10, [110, 110], [90, 100], start=[105, 0]), [False, False]),
    ],
)
def test_a_partitions_history_restarts_where_numbers_stop_being_comparable(
    what: str, second: Sample, restarts: list[bool]
) -> None:
    window = window_of([sample(0, [100, 100], [90, 95]), second])

    assert restarted(window) == restarts, what


def test_records_deleted_unread_are_lost_not_consumed() -> None:
    window = window_of(
        [
            sample(0, [100, 100], [90, 90]),
            sample(10, [110, 110], [90, 100], start=[105, 0]),
            sample(20, [120, 120], [110, 110], start=[108, 0]),
        ]
    )

    assert window.newest.lost.tolist() == [15 + 3, 0]
    assert [each.consumed for each in facts_of(window).partitions] == [2 / 20, 20 / 20]


def test_added_partitions_start_their_own_history() -> None:
    window = window_of([sample(0, [100], [90]), sample(10, [110, 7], [95, 7])])

    assert restarted(window) == [False, True]
    assert len(window.at) == 2
    assert [str(key) for key in window.partitions()] == [f"{TOPIC}/0", f"{TOPIC}/1"]


def test_commits_for_fewer_partitions_than_the_topic_has_are_padded() -> None:
    given = sample(0, [100, 100], [90])

    assert lags(window_of([given]))[0] == 10
    assert math.isnan(lags(window_of([given]))[1])


@pytest.mark.parametrize("at", [-5.0, 10.0, 10 + 3.5 * INTERVAL + 1], ids=["back", "same moment", "gap"])
def test_a_clock_jump_or_a_gap_restarts_the_window(at: float) -> None:
    window = window_of([sample(0, [100], [90]), sample(10, [110], [95]), sample(at, [120], [99])])

    assert len(window.at) == 1


def test_rows_older_than_the_window_are_dropped() -> None:
    short = {"sustain": 20, "low_seconds": 20, "idle": 20, "warm_up": 20, "objective": 20, "settle": 20}
    window = window_of([sample(10 * n, [n], [n]) for n in range(20)], **short)

    assert len(window.history) == 7
    assert len(window.at) == 3
    assert restarted(window) == [False]
    assert window.since.started.tolist() == [T0]


def test_only_the_topics_of_the_policy_count() -> None:
    other = Log("x", offsets([0]), offsets([9]))
    given = sample(0, [100], [90])
    both = Sample(
        given.at,
        given.state,
        1,
        {**given.logs, "refunds": other},
        {**given.progress, "refunds": Progress(offsets([0]))},
    )

    assert lags(window_of([both])) == [10, 9]
    assert lags(window_of([both], topics=("refunds",))) == [9]
    assert lags(window_of([both], topics=("gone",))) == []


def random_samples(random: Random, count: int) -> Iterator[Sample]:
    """Samples of a group that lags, restarts, loses records, grows and rebalances at random."""
    end = [1000] * random.randrange(1, 6)
    committed = [random.choice([1000, 400, NO_COMMIT]) for _ in end]
    start, topic_id, members, at = [0] * len(end), "first", random.randrange(4), T0
    for number in range(count):
        at += random.choice([10.0] * 20 + [9.0, 13.0, 60.0])
        for index in range(len(end)):
            end[index] += random.randrange(2000)
            if committed[index] != NO_COMMIT and members:
                committed[index] = min(end[index], committed[index] + random.randrange(2200))
            if random.random() < 0.05:
                committed[index] = random.choice([end[index], max(committed[index] - 300, 0)])
            if random.random() < 0.02:
                start[index] = end[index] - 10
        if random.random() < 0.03:
            end, committed, start = [*end, 5], [*committed, NO_COMMIT], [*start, 0]
        if random.random() < 0.02:
            topic_id, end, committed, start = str(number), [3] * len(end), [0] * len(end), [0] * len(end)
        members = random.randrange(4) if random.random() < 0.05 else members
        owners = offsets([index % members for index in range(len(end))]) if members else None
        progress = Progress(offsets(committed), owners=owners)
        logs = {TOPIC: Log(topic_id, offsets(start), offsets(end))}
        yield Sample(at, GroupState.STABLE, members, logs, {TOPIC: progress}, members)


@pytest.mark.parametrize("seed", range(5))
def test_groups_evaluated_together_get_the_verdicts_they_get_alone(seed: int) -> None:
    """They differ in policy, partitions and length of history, and some have no sample in a round."""
    random, rounds = Random(seed), 40
    choices: list[dict[str, Any]] = [
        {}, {"smoothing": "mean"}, {"smoothing_samples": 5, "reset_policy": "earliest"},
        {"lag_seconds_threshold": 20.0, "settle": 30.0}, {"smoothing_samples": 1, "stall": 20.0},
    ]  # fmt: skip
    policies = [replace(POLICY, **random.choice(choices)) for _ in range(8)]
    samples = [list(random_samples(random, rounds)) for _ in policies]
    alone, together = ([Window(each, gap=3.5 * INTERVAL) for each in policies] for _ in range(2))
    memories = [Memory()] * len(policies)

    for number in range(rounds):
        chosen = [index for index in range(len(policies)) if random.random() < 0.9]
        add_samples([together[index] for index in chosen], [samples[index][number] for index in chosen])
        verdicts = decide_all(
            [together[index] for index in chosen], [memories[index] for index in chosen],
            [INTERVAL] * len(chosen),
        )  # fmt: skip

        for index, verdict in zip(chosen, verdicts):
            alone[index].add(samples[index][number])
            assert verdict == decide(alone[index], memories[index], interval=INTERVAL)
            memories[index] = memories[index] if verdict is None else verdict.memory
