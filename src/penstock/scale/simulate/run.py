"""Play one trace with one scaler, an HPA and a consumer group, second by second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.scale.decision.hpa_metric import TARGET
from penstock.scale.decision.values import Memory
from penstock.scale.decision.verdict import decide
from penstock.scale.decision.window import Window
from penstock.scale.simulate.group import ConsumerGroup
from penstock.scale.simulate.hpa import DEFAULT_DOWN, DEFAULT_UP, SYNC_SECONDS, Autoscaler, ScalingRules
from penstock.scale.simulate.keda import KafkaTrigger

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.scale.decision.policy import Policy
    from penstock.scale.decision.values import Verdict
    from penstock.scale.simulate.traces import Trace

SAMPLE_SECONDS: Final = 10
EPOCH: Final = 1_700_000_000.0


class Scaler:
    """A scaler in the simulation: it may observe the group each second, and answers the HPA.

    This one never scales: it shows what the load does by itself, to distinguish pressure from noise.
    """

    name = "no scaler"
    target = TARGET

    def observe(self, group: ConsumerGroup, second: int, *, seen: bool) -> None:
        """Called each second; `seen` unless the brokers are unreachable."""

    def value(self, group: ConsumerGroup, *, seen: bool) -> float | None:
        return None

    def autoscaler(self, minimum: int, maximum: int) -> Autoscaler:
        return Autoscaler(minimum, maximum)


class KedaArm(Scaler):
    """KEDA's kafka scaler, with a stabilization window for scaling up; down the HPA's default."""

    def __init__(self, threshold: int, window: int) -> None:
        self.name = f"KEDA kafka, window {window} s"
        self.trigger = KafkaTrigger(threshold)
        self.target = float(threshold)
        self.window = window

    def value(self, group: ConsumerGroup, *, seen: bool) -> float | None:
        return self.trigger.value(group.lag().tolist()) if seen else None

    def autoscaler(self, minimum: int, maximum: int) -> Autoscaler:
        down = ScalingRules(max(DEFAULT_DOWN.window, self.window), DEFAULT_DOWN.steps)
        return Autoscaler(minimum, maximum, ScalingRules(self.window, DEFAULT_UP.steps), down)


class PersistentArm(Scaler):
    """This scaler. It does its own stabilization, so the HPA's windows are off, as in `deploy/keda`."""

    def __init__(self, policy: Policy, interval: int = SAMPLE_SECONDS) -> None:
        self.name = "persistent lag"
        self.policy = policy
        self.interval = interval
        self.window = Window(policy, gap=3.5 * interval)
        self.memory = Memory()
        self.verdict: Verdict | None = None
        self.verdicts: list[Verdict] = []

    def observe(self, group: ConsumerGroup, second: int, *, seen: bool) -> None:
        if second % self.interval or not seen:
            return
        self.window.add(group.sample(EPOCH + second, second))
        self.verdict = decide(self.window, self.memory, interval=self.interval)
        if self.verdict is not None:
            self.memory = self.verdict.memory
            self.verdicts.append(self.verdict)

    def value(self, group: ConsumerGroup, *, seen: bool) -> float | None:
        return self.verdict.value if seen and self.verdict is not None else None

    def autoscaler(self, minimum: int, maximum: int) -> Autoscaler:
        return Autoscaler(minimum, maximum, DEFAULT_UP, ScalingRules(0, DEFAULT_DOWN.steps))


@dataclass(frozen=True)
class Outcome:
    """The result of a run, one value for each second."""

    trace: Trace
    arm: str
    replicas: NDArray[np.int64]  # desired by the Deployment
    members: NDArray[np.int64]
    lag: NDArray[np.float64]  # true lag, records, all partitions
    worst: NDArray[np.float64]  # true lag of the worst consumable partition, records
    age: NDArray[np.float64]  # seconds the oldest record waited


def run(trace: Trace, scaler: Scaler, *, minimum: int = 1, maximum: int = 24) -> Outcome:
    """Plays the whole trace; scaler and HPA have the same replica limits."""
    group = ConsumerGroup(trace)
    hpa = scaler.autoscaler(minimum, maximum)
    count = trace.seconds
    replicas, members = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    lag, worst, age = np.zeros(count), np.zeros(count), np.zeros(count)
    unreachable = np.zeros(count, dtype=np.bool_)
    for begin, until in trace.unreachable:
        unreachable[begin:until] = True
    for second in range(count):
        group.step(second)
        seen = not unreachable[second]
        scaler.observe(group, second, seen=seen)
        if second % SYNC_SECONDS == SYNC_SECONDS - 1:
            desired = hpa.sync(second, group.replicas, scaler.value(group, seen=seen), scaler.target)
            if desired != group.replicas:
                group.scale(desired, second)
        replicas[second], members[second] = group.replicas, group.members
        waiting = group.end - group.position
        lag[second], age[second] = float(waiting.sum()), group.age
        worst[second] = float(waiting[group.consumable(second)].max())
    return Outcome(trace, scaler.name, replicas, members, lag, worst, age)
