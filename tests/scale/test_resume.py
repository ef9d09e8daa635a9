"""The resume property: an instance that is replaced at any point changes no verdict.

A simulated group follows the requested replicas. Instances write to one journal. At random steps the
instance dies at a named point and another continues, whose clock is wrong by days. From then on every
verdict must equal that of a run without the failure.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scale.decision.values import GroupState, Log, offsets
from penstock.scale.sampler.cluster import ClusterSampler
from penstock.scale.sampler.process import HISTORY_SECONDS
from penstock.scale.sampler.records import Sampled, decoded, encoded
from penstock.scale.sampler.source import GroupSnapshot, Position
from penstock.scale.watched_groups import WatchedGroups
from tests.scale.scenarios import INTERVAL, T0, TOPIC

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.model.errors import PenstockError
    from penstock.scale.decision.values import Verdict
    from penstock.scale.watched_groups import Watch

PARTITIONS = 12
METADATA = {"group": "billing", "topic": TOPIC, "minReplicas": "0", "maxReplicas": "12"}
START_STEPS = 3  # from a request until replicas run
POINTS = ("before sampling", "before publishing", "before evaluating", "after evaluating")


@dataclass
class Group:
    """Consumers of 100 records a second each, as a `LagSource`."""

    at: float = T0
    members: int = 2
    end: float = 1000.0  # of each partition
    committed: float = 1000.0
    requests: list[int] = field(default_factory=list)

    def passes(self, arrive: float) -> None:
        self.at += INTERVAL
        if len(self.requests) >= START_STEPS:
            self.members = self.requests[-START_STEPS]
        self.end += arrive * INTERVAL
        self.committed = min(self.end, self.committed + 100 * self.members / PARTITIONS * INTERVAL)

    async def groups(
        self, names: Collection[str], *, share: bool
    ) -> dict[str, GroupSnapshot | PenstockError]:
        positions = {TOPIC: {index: Position(int(self.committed)) for index in range(PARTITIONS)}}
        owners = {TOPIC: {index: index * self.members // PARTITIONS for index in range(PARTITIONS)}}
        state = GroupState.STABLE if self.members else GroupState.EMPTY
        snapshot = GroupSnapshot(state, self.members, self.members, positions, owners if self.members else {})
        return dict.fromkeys(names, snapshot)

    async def logs(self, topics: Collection[str]) -> dict[str, Log | PenstockError]:
        log = Log("one", offsets([0] * PARTITIONS), offsets([int(self.end)] * PARTITIONS))
        return dict.fromkeys(topics, log)

    async def markers(self, topic: str, partition: int, begin: int, end: int) -> int:
        return 0


class Instance:
    """One scaler: its watches, and a clock that shows `offset` more than the broker's."""

    def __init__(self, name: str, group: Group, journal: list[tuple[bytes, float]], offset: float) -> None:
        self.group = group
        self.offset = offset
        self.watches = WatchedGroups({"default": INTERVAL})
        self.watch: Watch = self.watches.admit("shop/billing", METADATA, self.clock())
        self.sampler = ClusterSampler("default", group, self.watches, instance=name, interval=INTERVAL)
        for data, appended_at in journal:
            if appended_at > journal[-1][1] - HISTORY_SECONDS:
                self.read(data, appended_at, live=False)

    def clock(self) -> float:
        return self.group.at + self.offset

    def read(self, data: bytes, appended_at: float, *, live: bool) -> None:
        record = decoded(data, appended_at)
        assert isinstance(record, Sampled)
        self.watches.take(record, self.clock() if live else None)


async def play(load: list[float], failures: Mapping[int, tuple[str, float]]) -> list[Verdict | None]:
    """The verdict after each step; `failures` gives the point and the next clock's offset, by step."""
    group, journal = Group(), list[tuple[bytes, float]]()
    instance = Instance("0", group, journal, 0.0)
    verdicts: list[Verdict | None] = []
    for step, arrive in enumerate(load):
        group.passes(arrive)
        point, offset = failures.get(step, ("", 0.0))
        if point == "before sampling":
            instance = Instance(str(step), group, journal, offset)
        parts = await instance.sampler.round(step, instance.clock)
        if point == "before publishing":
            instance = Instance(str(step), group, journal, offset)
            parts = await instance.sampler.round(step, instance.clock)
        appended = [(encoded(part, instance.clock()), group.at) for part in parts]
        journal += appended
        if point == "before evaluating":
            instance = Instance(str(step), group, journal, offset)
            instance.watch.remembered()
        else:
            for data, appended_at in appended:
                instance.read(data, appended_at, live=True)
        verdict = instance.watch.verdict
        verdicts.append(verdict)
        if verdict is not None:
            group.requests.append(verdict.replicas if verdict.active else 0)
        if point == "after evaluating":
            instance = Instance(str(step), group, journal, offset)
    return verdicts


def outcome(verdict: Verdict | None) -> object:
    """Without the texts: they have the length of the history, which a new instance reads only in part."""
    if verdict is None:
        return None
    return verdict.change, verdict.replicas, verdict.value, verdict.active, verdict.memory, verdict.states


phases = st.lists(
    st.tuples(st.integers(6, 40), st.sampled_from([0, 5, 20, 40, 70, 95, 150])), min_size=1, max_size=3
)
days = st.floats(-3 * 86_400, 3 * 86_400).map(lambda offset: round(offset, 3))


@given(phases, st.dictionaries(st.integers(0, 90), st.tuples(st.sampled_from(POINTS), days), max_size=5))
def test_an_instance_that_is_replaced_at_any_point_changes_no_verdict(
    given_phases: list[tuple[int, int]], failures: dict[int, tuple[str, float]]
) -> None:
    load = [float(arrive) for steps, arrive in given_phases for _ in range(steps)]

    undisturbed = asyncio.run(play(load, {}))
    disturbed = asyncio.run(play(load, failures))

    assert [outcome(each) for each in disturbed] == [outcome(each) for each in undisturbed]


@pytest.mark.parametrize("point", POINTS)
def test_a_scale_up_under_way_survives_an_instance_whose_clock_is_wrong(point: str) -> None:
    load = [10.0] * 20 + [40.0] * 40 + [10.0] * 100

    undisturbed = asyncio.run(play(load, {}))
    for step in range(20, 44, 4):
        disturbed = asyncio.run(play(load, {step: (point, 3600.0), step + 1: (point, 0.0)}))
        assert [outcome(each) for each in disturbed] == [outcome(each) for each in undisturbed], step

    replicas = [each.replicas for each in undisturbed if each is not None]
    assert max(replicas) > replicas[0]
    assert replicas[-1] < max(replicas)
