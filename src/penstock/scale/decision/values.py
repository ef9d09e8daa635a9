"""Samples, the memory between verdicts, and verdicts: values only.

All groups that read a topic share one `Log` of its offsets. With ten thousand groups this saves
most of the memory.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NO_COMMIT = -1  # Kafka's value for a partition without a committed offset
NO_OWNER = -1


class GroupState(StrEnum):
    """Kafka's group states, as far as they change a decision."""

    STABLE = "Stable"
    EMPTY = "Empty"
    REBALANCING = "Rebalancing"
    DEAD = "Dead"

    @classmethod
    def of(cls, kafka_name: str) -> GroupState:
        """Preparing, completing, assigning and reconciling all count as rebalancing."""
        return _STATES.get(kafka_name.lower(), cls.REBALANCING)


_STATES = {"stable": GroupState.STABLE, "empty": GroupState.EMPTY, "dead": GroupState.DEAD}


def offsets(values: Sequence[int]) -> array[int]:
    """A compact array: eight bytes for each offset instead of a Python integer's thirty."""
    return array("q", values)


@dataclass(frozen=True, slots=True)
class Log:
    """The offsets of one topic at one moment. Index i is partition i."""

    topic_id: str  # changes when the topic is deleted and created again
    start: array[int]  # log start offset: records below were deleted by retention
    end: array[int]  # read-committed end offset


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one group in one topic. Index i is partition i."""

    committed: array[int]  # NO_COMMIT if the group never committed
    # Records completed past the committed offset, from the parallel consumer's offset map.
    completed_beyond: array[int] | None = None
    markers: array[int] | None = None  # offsets ahead that are transaction markers, not records
    owners: array[int] | None = None  # number of the owning member, or NO_OWNER


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of one group."""

    at: float  # seconds since the epoch, the sampler's clock
    state: GroupState
    members: int
    logs: Mapping[str, Log]
    progress: Mapping[str, Progress]
    generation: int = 0  # changes with each rebalance


class PartitionState(StrEnum):
    IDLE = "idle"
    KEEPING_UP = "keeping up"
    CATCHING_UP = "catching up"
    FALLING_BEHIND = "falling behind"
    STALLED = "stalled"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


class PartitionKey(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Memory:
    """What one verdict passes to the next. Stored with each sample, so that it survives a restart."""

    first_at: float | None = None  # time of the first verdict
    requested: int | None = None  # replicas requested last; None before the first verdict
    scaled_up_at: float | None = None
    scaled_down_at: float | None = None
    capacity: float | None = None  # records a second that one member handles
    measured_at: float | None = None  # of `capacity`, under backlog; None: it is only a lower bound


class Change(StrEnum):
    UP = "up"
    DOWN = "down"
    HOLD = "hold"


class VerdictSummary(NamedTuple):
    """What the service needs to answer KEDA for one watch; the sampler sends it."""

    received_at: float | None  # the newest sample, on this host's monotonic clock; None if there is none
    replicas: int | None  # requested; None if there is no verdict
    value: float
    active: bool
    missing: str | None  # "group" or a topic's name, if the last sample had none
    state: str  # of the group
    failure: str | None = None  # why the last round has no sample of it


class RuleResult(NamedTuple):
    """Whether one rule holds, with the numbers it compared."""

    rule: str  # "G4 persistent"
    holds: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The replicas to request, and why. `rule_results` are in the order of evaluation."""

    at: float
    change: Change
    replicas: int
    active: bool
    reason: str
    memory: Memory
    rule_results: tuple[RuleResult, ...] = ()
    states: Mapping[PartitionKey, PartitionState] = field(default_factory=dict)
    stuck: tuple[PartitionKey, ...] = ()
    lag: int = 0  # records, all partitions
    lag_seconds: float = 0.0  # of the worst partition that is not stuck
    value: float = 0.0  # the metric value for the HPA; see `hpa_metric`
