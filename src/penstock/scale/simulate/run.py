"""One trace through one arm: a scaler, an HPA and a consumer group, second by second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from penstock.scale.encoding import TARGET
from penstock.scale.simulate.group import ConsumerGroup
from penstock.scale.simulate.hpa import DEFAULT_DOWN, DEFAULT_UP, SYNC_SECONDS, Autoscaler, Direction
from penstock.scale.simulate.keda import KafkaTrigger
from penstock.scale.values import Memory
from penstock.scale.verdict import decide
from penstock.scale.window import Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.scale.policy import Policy
    from penstock.scale.simulate.traces import Trace
    from penstock.scale.values import Verdict

SAMPLE_SECONDS: Final = 10
EPOCH: Final = 1_700_000_000.0


class Scaler(Protocol):
    """What an arm is made of: it may look each second, and answers when the HPA asks."""

    name: str
    target: float

    def look(self, group: ConsumerGroup, second: int, *, seen: bool) -> None: ...

    def value(self, group: ConsumerGroup, *, seen: bool) -> float | None: ...

    def autoscaler(self, minimum: int, maximum: int) -> Autoscaler: ...


class Still:
    """Nobody scales: what the load would do by itself. Tells real pressure from noise."""

    name = "no scaler"
    target = TARGET

    def look(self, group: ConsumerGroup, second: int, *, seen: bool) -> None:
        """It does not care."""

    def value(self, group: ConsumerGroup, *, seen: bool) -> float | None:
        return None

    def autoscaler(self, minimum: int, maximum: int) -> Autoscaler:
        return Autoscaler(minimum, maximum)


class KedaArm:
    """KEDA's kafka scaler, with a stabilisation window for scaling up; down the HPA's default."""

    def __init__(self, threshold: int, window: int) -> None:
        self.name = f"KEDA kafka, window {window} s"
        self.trigger = KafkaTrigger(threshold)
        self.target = float(threshold)
        self.window = window

    def look(self, group: ConsumerGroup, second: int, *, seen: bool) -> None:
        """It has no history."""

    def value(self, group: ConsumerGroup, *, seen: bool) -> float | None:
        return self.trigger.value(group.lag().tolist()) if seen else None

    def autoscaler(self, minimum: int, maximum: int) -> Autoscaler:
        down = Direction(max(DEFAULT_DOWN.window, self.window), DEFAULT_DOWN.steps)
        return Autoscaler(minimum, maximum, Direction(self.window, DEFAULT_UP.steps), down)


class PersistentArm:
    """Ours. It stabilises by itself, so the HPA's windows are off, as in `deploy/keda`."""

    target = TARGET

    def __init__(self, policy: Policy, interval: int = SAMPLE_SECONDS) -> None:
        self.name = "persistent lag"
        self.policy = policy
        self.interval = interval
        self.window = Window(policy, gap=3.5 * interval)
        self.memory = Memory()
        self.verdict: Verdict | None = None
        self.verdicts: list[Verdict] = []
        self._sampled_at = -(10**9)

    def look(self, group: ConsumerGroup, second: int, *, seen: bool) -> None:
        if second % self.interval or not seen:
            return
        self.window.add(group.sample(EPOCH + second, second))
        self._sampled_at = second
        self.verdict = decide(self.window, self.memory, interval=self.interval)
        if self.verdict is not None:
            self.memory = self.verdict.memory
            self.verdicts.append(self.verdict)

    def value(self, group: ConsumerGroup, *, seen: bool) -> float | None:
        return self.verdict.value if seen and self.verdict is not None else None

    def autoscaler(self, minimum: int, maximum: int) -> Autoscaler:
        return Autoscaler(minimum, maximum, DEFAULT_UP, Direction(0, DEFAULT_DOWN.steps))


@dataclass(frozen=True)
class Outcome:
    """What happened, one value a second."""

    trace: Trace
    arm: str
    replicas: NDArray[np.int64]  # that the Deployment wanted
    members: NDArray[np.int64]
    lag: NDArray[np.float64]  # records, all partitions, true
    worst: NDArray[np.float64]  # records, the worst partition that can be consumed
    age: NDArray[np.float64]  # seconds the oldest record waited


def run(trace: Trace, scaler: Scaler, *, minimum: int = 1, maximum: int = 24) -> Outcome:
    """Plays the whole trace. KEDA's limits and the HPA's come from the same ScaledObject."""
    group = ConsumerGroup(trace)
    hpa = scaler.autoscaler(minimum, maximum)
    count = trace.seconds
    replicas, members = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    lag, worst, age = np.zeros(count), np.zeros(count), np.zeros(count)
    unseen = np.zeros(count, dtype=np.bool_)
    for begin, until in trace.unseen:
        unseen[begin:until] = True
    for second in range(count):
        group.step(second)
        seen = not unseen[second]
        scaler.look(group, second, seen=seen)
        if second % SYNC_SECONDS == SYNC_SECONDS - 1:
            wanted = hpa.sync(second, group.replicas, scaler.value(group, seen=seen), scaler.target)
            if wanted != group.replicas:
                group.scale(wanted, second)
        replicas[second], members[second] = group.replicas, group.members
        waiting = group.end - group.position
        lag[second], age[second] = float(waiting.sum()), group.age
        worst[second] = float(waiting[group.consumable(second)].max())
    return Outcome(trace, scaler.name, replicas, members, lag, worst, age)
