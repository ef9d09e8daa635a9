"""What is sampled, what is remembered, and what comes out: values only.

A sample is one look at one group. Offsets of one topic are the same for every group that reads
it, so they are held once (`Log`) and shared; with ten thousand groups that is most of the memory.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NO_COMMIT = -1  # Kafka's own value for "this group never committed here"
NO_OWNER = -1


class GroupState(StrEnum):
    """Kafka's group states, as far as they change a decision."""

    STABLE = "Stable"
    EMPTY = "Empty"
    REBALANCING = "Rebalancing"
    DEAD = "Dead"

    @classmethod
    def of(cls, kafka_name: str) -> GroupState:
        """Preparing, completing, assigning and reconciling are all one thing here: moving."""
        return _STATES.get(kafka_name.lower(), cls.REBALANCING)


_STATES = {"stable": GroupState.STABLE, "empty": GroupState.EMPTY, "dead": GroupState.DEAD}


def offsets(values: Sequence[int]) -> array[int]:
    """Eight bytes an offset instead of a Python integer's thirty-odd."""
    return array("q", values)


@dataclass(frozen=True, slots=True)
class Log:
    """The partitions of one topic at one moment. Position i belongs to partition i."""

    incarnation: str  # the topic's id; a new one means deleted and created again
    start: array[int]  # log start: what lies below was deleted by retention
    end: array[int]  # read-committed end


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one group is in one topic. Position i belongs to partition i."""

    committed: array[int]  # NO_COMMIT where it never committed
    beyond: array[int] | None = None  # completed past the committed offset (the parallel consumer's map)
    markers: array[int] | None = None  # offsets still ahead that are transaction markers, not records
    owners: array[int] | None = None  # number of the member that owns the partition, or NO_OWNER


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one group."""

    at: float  # seconds since the epoch, the sampler's clock
    state: GroupState
    members: int
    logs: Mapping[str, Log]
    progress: Mapping[str, Progress]
    generation: int = 0  # grows with each rebalance, where Kafka tells


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
    """What one verdict hands to the next. Stored beside each sample, so a restart keeps it."""

    begun_at: float | None = None  # the first verdict
    asked: int | None = None  # replicas asked for last; None before the first verdict
    raised_at: float | None = None
    lowered_at: float | None = None
    capacity: float | None = None  # records a second that one replica was seen to handle
    learned_at: float | None = None  # when it was last measured under backlog; until then a lower bound


class Change(StrEnum):
    UP = "up"
    DOWN = "down"
    HOLD = "hold"


class Standing(NamedTuple):
    """All that an answer to KEDA needs of one watch: what the sampler's process tells the service's."""

    at: float  # of the newest sample
    replicas: int | None  # asked for; None: there is no verdict
    value: float
    active: bool
    missing: str | None  # "group" or a topic's name, when the last look found none
    state: str  # the group's


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule's answer, with the numbers it looked at."""

    rule: str  # "G5 persistent"
    holds: bool
    because: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is asked for, and why. `findings` are in the order in which the rules were asked."""

    at: float
    change: Change
    replicas: int
    active: bool
    reason: str
    memory: Memory
    findings: tuple[Finding, ...] = ()
    states: Mapping[PartitionKey, PartitionState] = field(default_factory=dict)
    stuck: tuple[PartitionKey, ...] = ()
    lag: int = 0  # records, all partitions
    lag_seconds: float = 0.0  # the worst partition that is not stuck
    value: float = 0.0  # what the HPA is told; see `encoding`
