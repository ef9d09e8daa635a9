"""Build a group's history for tests: arrivals, consumption, commits and members over time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.scale.decision.partition_facts import GroupFacts, PartitionFacts, measure
from penstock.scale.decision.policy import Policy
from penstock.scale.decision.values import (
    NO_COMMIT,
    GroupState,
    Log,
    Memory,
    PartitionKey,
    Progress,
    Sample,
    Verdict,
    offsets,
)
from penstock.scale.decision.verdict import decide
from penstock.scale.decision.window import Window

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T0 = 1_700_000_000.0
INTERVAL = 10.0
TOPIC = "orders"
POLICY = Policy(group="billing", replicas_max=100)


@dataclass
class Scenario:
    """A group whose history a test describes; it is sampled and evaluated after each interval."""

    policy: Policy = POLICY
    partitions: int = 4
    members: int = 2
    state: GroupState = GroupState.STABLE
    generation: int = 1
    topic_id: str = "first"
    owned: bool = True  # the owners of partitions are known
    at: float = T0
    end: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    verdicts: list[Verdict | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end = self.end or [1000] * self.partitions
        self.committed = self.committed or list(self.end)
        self.start = self.start or [0] * self.partitions
        self.window = Window(self.policy, gap=3.5 * INTERVAL)

    def sample(self) -> Sample:
        owners = [index * self.members // self.partitions for index in range(self.partitions)]
        log = Log(self.topic_id, offsets(self.start), offsets(self.end))
        progress = Progress(
            offsets(self.committed), owners=offsets(owners) if self.members and self.owned else None
        )
        return Sample(self.at, self.state, self.members, {TOPIC: log}, {TOPIC: progress}, self.generation)

    def observe(self) -> Verdict | None:
        self.window.add(self.sample())
        verdict = decide(self.window, self.memory, interval=INTERVAL)
        if verdict is not None:
            self.memory = verdict.memory
        self.verdicts.append(verdict)
        return verdict

    def passes(
        self,
        seconds: float,
        *,
        arrive: float | Sequence[float] = 0,
        consume: float | Sequence[float] | None = None,
        step: float = INTERVAL,
    ) -> Scenario:
        """Simulates time at these rates (records a second for each partition); samples after each step."""
        arriving = self._each(arrive)
        consuming = arriving if consume is None else self._each(consume)
        until = self.at + seconds
        while self.at + step <= until + 1e-9:
            self.at += step
            for index in range(self.partitions):
                self.end[index] += round(arriving[index] * step)
                if self.committed[index] == NO_COMMIT:
                    continue
                room = self.end[index] - self.committed[index]
                self.committed[index] += min(max(room, 0), round(consuming[index] * step))
            self.observe()
        return self

    @property
    def last(self) -> Verdict:
        assert self.verdicts, "no sample yet"
        verdict = self.verdicts[-1]
        assert verdict is not None
        return verdict

    def changes(self) -> list[tuple[str, int]]:
        return [
            (each.change.value, each.replicas) for each in self.verdicts if each and each.change != "hold"
        ]

    def _each(self, rates: float | Sequence[float]) -> list[float]:
        return [float(rates)] * self.partitions if isinstance(rates, int | float) else list(rates)


def rule(verdict: Verdict, name: str) -> bool:
    """Whether one rule holds; fails if it was not evaluated."""
    return next(finding.holds for finding in verdict.rule_results if finding.rule.startswith(name))


CALM: PartitionFacts[float] = PartitionFacts(
    key=PartitionKey(TOPIC, 0), known_for=600, lag=100, age=5, lag_now=100, above_for=0, below_for=300,
    unmoved_for=0, quiet_for=0, arrival=20, consumed=20, backlog=100, slope=0, recent_change=0, age_slope=0,
    owner=0, shared_with=3,
)  # fmt: skip


def facts(**changed: object) -> PartitionFacts[float]:
    changed.setdefault("backlog", changed.get("lag", CALM.backlog))
    return CALM._replace(**changed)  # type: ignore[arg-type]  # tests name fields of the class


def facts_of(window: Window) -> GroupFacts:
    return measure([window]).groups[0]


def window_of(samples: Iterable[Sample], **changed: object) -> Window:
    window = Window(replace(POLICY, **changed), gap=3.5 * INTERVAL)  # type: ignore[arg-type]  # as above
    for sample in samples:
        window.add(sample)
    return window
