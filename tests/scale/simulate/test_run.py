"""The simulator: the consumer group, the traces, and short runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.model.errors.scale import TraceInvalid
from penstock.model.errors.settings import ExtraMissing
from penstock.scale.decision.policy import Policy
from penstock.scale.decision.values import GroupState
from penstock.scale.simulate import traces
from penstock.scale.simulate.group import ConsumerGroup
from penstock.scale.simulate.plot import draw
from penstock.scale.simulate.run import KedaArm, Outcome, PersistentArm, Scaler, run
from penstock.scale.simulate.score import pressure_episodes, score
from penstock.scale.simulate.traces import Trace

if TYPE_CHECKING:
    from pathlib import Path

POLICY = Policy(group="orders", replicas_max=24)
NO_SCALE_DOWN = Policy(group="orders", replicas_max=24, cool_down=7200)  # longer than the traces


def flat(rate: float, seconds: int, *, replicas: int, partitions: int = 24) -> Trace:
    arrivals = np.full((seconds, partitions), rate / partitions)
    return Trace("flat", "", arrivals, replicas, np.full(seconds, 100.0))


def played(group: ConsumerGroup, seconds: int) -> ConsumerGroup:
    for second in range(seconds):
        group.step(second)
    return group


def test_a_member_handles_its_capacity_and_no_more() -> None:
    group = played(ConsumerGroup(flat(1000, 60, replicas=4)), 60)

    assert group.position.sum() == pytest.approx(60 * 400)


def test_unused_capacity_goes_to_other_partitions() -> None:
    trace = flat(0, 60, replicas=1, partitions=4)
    trace.arrivals[:, 0] = 200
    trace.arrivals[:, 1] = 10

    group = played(ConsumerGroup(trace), 60)

    assert group.position[1] == pytest.approx(600)
    assert group.position[0] == pytest.approx(60 * 90)


def test_new_pods_start_and_then_stop_the_group_for_the_rebalance() -> None:
    group = ConsumerGroup(flat(1000, 100, replicas=4))
    group.step(0)
    group.scale(6, 0)
    for second in range(1, 31):
        group.step(second)
    during = group.sample(0.0, 30)
    position = group.position.sum()
    group.step(31)

    assert (during.members, during.state) == (6, GroupState.REBALANCING)
    assert group.position.sum() == position


def test_committed_lag_is_at_least_the_true_lag() -> None:
    group = played(ConsumerGroup(flat(240, 61, replicas=4)), 61)

    assert group.lag().sum() > 0
    assert (group.end - group.position).sum() == pytest.approx(0, abs=1e-6)


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = traces.bursts(7, 0.2), traces.bursts(7, 0.2)

    assert np.array_equal(first.arrivals, second.arrivals)
    assert not np.array_equal(first.arrivals, traces.bursts(8, 0.2).arrivals)


def test_every_scenario_has_a_trace() -> None:
    names = [trace.name for trace in traces.trace_set(1, 0.05)]

    assert names == [
        "steady", "daily cycle", "bursts", "step", "slow leak",
        "hot partition", "poison partition", "broker blip", "redeploy",
    ]  # fmt: skip


def events(outcome: Outcome) -> list[int]:
    return [int(count) for count in outcome.replicas[np.flatnonzero(np.diff(outcome.replicas)) + 1]]


def test_bursts_that_drain_by_themselves_cause_no_scaling_up() -> None:
    outcome = run(traces.bursts(3, 0.4), PersistentArm(NO_SCALE_DOWN))

    assert events(outcome) == []


def test_a_step_is_scaled_in_time_and_reverted_after_it() -> None:
    trace = traces.step(3, 1.2)
    outcome = run(trace, PersistentArm(POLICY))

    result = score(outcome, POLICY.objective)

    assert result.late_minutes == 0
    assert result.flaps == 0
    assert outcome.replicas[-1] <= 6
    assert result.events < score(run(trace, KedaArm(500, 0)), POLICY.objective).events / 3


def test_a_poison_partition_does_not_scale_up_while_it_is_poisoned() -> None:
    trace = traces.poison_partition(3, 0.6)
    begin, until = trace.poisoned[0][1:]
    outcome = run(trace, PersistentArm(NO_SCALE_DOWN))

    assert outcome.replicas[begin:until].max() <= outcome.replicas[begin]
    assert run(trace, KedaArm(500, 0)).replicas[begin:until].max() == 24


def test_a_run_without_scaling_distinguishes_pressure_from_bursts() -> None:
    bursts, step = run(traces.bursts(3, 0.4), Scaler()), run(traces.step(3, 0.5), Scaler())

    assert pressure_episodes(bursts, 500, 120) == []
    assert len(pressure_episodes(step, 500, 120)) == 1


def test_flaps_are_changes_reverted_within_ten_minutes() -> None:
    trace = flat(0, 3000, replicas=2)
    replicas = np.full(3000, 2)
    replicas[100:400] = 4  # up, down within 300 s: one flap
    replicas[1500:2300] = 4  # up and down again 800 s later: none
    still = np.zeros(3000)

    result = score(Outcome(trace, "x", replicas, replicas, still, still, still), 120)

    assert (result.events, result.flaps) == (4, 1)
    assert result.replica_minutes == pytest.approx(replicas.sum() / 60)


def test_a_recorded_trace_is_read_by_second_or_by_partition(tmp_path: Path) -> None:
    by_second, by_partition = tmp_path / "total.csv", tmp_path / "split.csv"
    by_second.write_text("second,arrived\n0,240\n2,24\n")
    by_partition.write_text("second,partition,arrived\n0,0,5\n1,2,7\n")

    total = traces.recorded(by_second, replicas=2, capacity=50.0)
    split = traces.recorded(by_partition, replicas=2, capacity=50.0)

    assert total.arrivals.sum(axis=1).tolist() == [240, 0, 24]
    assert split.arrivals.tolist() == [[5, 0, 0], [0, 0, 7]]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a,b\n1,2\n", 1),
        ("", 1),
        ("second,arrived\n", 2),
        ("second,arrived\n0,5\nx,5\n", 3),
        ("second,arrived\n0,-5\n", 2),
        ("second,arrived\n0,nan\n", 2),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)

    with pytest.raises(TraceInvalid, match=f"line {line}:"):
        traces.recorded(path, replicas=1, capacity=1.0)


def test_drawing_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    still = np.zeros(10)
    outcome = Outcome(flat(0, 10, replicas=1), "x", still.astype(int), still.astype(int), still, still, still)

    with pytest.raises(ExtraMissing, match="matplotlib"):
        draw([outcome], 120, tmp_path / "out.png")
