"""What a supervisor makes of what it sees of a node. Pure: time comes in.

    starting ──answers──▶ ready ◀──answers── unresponsive
        │                   │                     │
        └──── dies ─────────┴──────── dies ───────┘
                            ▼
                       restarting ──back-off over──▶ starting

    stopping: the supervisor is told to end, and ends them all

A node that lives but does not answer is only reported: killing it is for those who can tell a
slow disk from a dead one. A node that dies is started again, the more slowly the oftener it died.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

START_SECONDS_MAX = 90.0  # alive and silent for longer than this while starting: unresponsive
SILENCE_SECONDS_MAX = 6.0  # the same for a node that was ready
BACKOFF_SECONDS_FIRST = 0.5
BACKOFF_SECONDS_MAX = 30.0
CRASH_MEMORY_SECONDS = 300.0  # a crash counts towards the back-off for this long


class NodeState(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    UNRESPONSIVE = "unresponsive"
    RESTARTING = "restarting"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Watch:
    """What is known of one node. Times are of one monotonic clock."""

    state: NodeState
    since: float
    answered: float = 0.0  # when it last answered
    crashes: tuple[float, ...] = ()
    restarts: int = 0
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Observation:
    alive: bool
    answers: bool


def started(now: float) -> Watch:
    return Watch(NodeState.STARTING, since=now, answered=now)


def observed(watch: Watch, seen: Observation, now: float) -> Watch:
    """The next state. See `asks_to_start` for when the process is to be started."""
    if watch.state is NodeState.RESTARTING and seen.alive:  # somebody else was faster
        return replace(watch, state=NodeState.STARTING, since=now, answered=now)
    if watch.state is NodeState.RESTARTING:
        if now < watch.retry_at:
            return watch
        return replace(watch, state=NodeState.STARTING, since=now, answered=now, restarts=watch.restarts + 1)
    if not seen.alive:
        crashes = (*(at for at in watch.crashes if now - at < CRASH_MEMORY_SECONDS), now)
        retry_at = now + backoff_seconds(len(crashes))
        return replace(watch, state=NodeState.RESTARTING, since=now, crashes=crashes, retry_at=retry_at)
    if seen.answers:
        since = watch.since if watch.state is NodeState.READY else now
        return replace(watch, state=NodeState.READY, since=since, answered=now)
    patience = START_SECONDS_MAX if watch.state is NodeState.STARTING else SILENCE_SECONDS_MAX
    if watch.state is not NodeState.UNRESPONSIVE and now - watch.answered > patience:
        return replace(watch, state=NodeState.UNRESPONSIVE, since=now)
    return watch


def asks_to_start(before: Watch, after: Watch) -> bool:
    """Whether this change means: start the process. Never true while one was seen alive."""
    return after.restarts > before.restarts


def backoff_seconds(crashes: int) -> float:
    return min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_FIRST * 2.0 ** (crashes - 1))
