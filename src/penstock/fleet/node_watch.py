"""The state machine that decides when a node is restarted. Pure: time is an argument.

    starting ──responds─▶ ready ◀─responds── unresponsive
        │                   │                     │
        └──── dies ─────────┴──────── dies ───────┘
                            ▼
                       restarting ──back-off over──▶ starting

    any ──ordered to stop──▶ stopping ──dies──▶ held ──ordered to run──▶ starting

    stopping: by an order, or because the supervisor is stopping all nodes

A node that is alive but does not respond is only reported: the supervisor cannot distinguish a slow disk
from a dead one, so it does not kill it. A node that dies is restarted, with a back-off that grows with
the number of recent crashes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from penstock.model.backoff import Backoff

START_SECONDS_MAX = 90.0  # alive and silent for longer than this while starting: unresponsive
SILENCE_SECONDS_MAX = 6.0  # the same for a node that was ready
BACKOFF = Backoff(0.5, 30.0)
CRASH_MEMORY_SECONDS = 300.0  # a crash counts towards the back-off for this long


class NodeState(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    UNRESPONSIVE = "unresponsive"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    HELD = "held"  # stopped by an order


@dataclass(frozen=True, slots=True)
class Watch:
    """What is known about one node. Times are monotonic."""

    state: NodeState
    since: float
    responded_at: float = 0.0  # when it last responded
    crashes: tuple[float, ...] = ()
    restarts: int = 0
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Observation:
    alive: bool
    responds: bool
    held: bool = False  # an order demands that this process ends


def new_watch(now: float) -> Watch:
    return Watch(NodeState.STARTING, since=now, responded_at=now)


def next_watch(watch: Watch, observation: Observation, now: float) -> Watch:
    """The watch after an observation. `should_start` decides whether to start the process."""
    if observation.held:
        state = NodeState.STOPPING if observation.alive else NodeState.HELD
        return watch if watch.state is state else replace(watch, state=state, since=now)
    if watch.state in (NodeState.STOPPING, NodeState.HELD):  # the order is to run
        restarts = watch.restarts if observation.alive else watch.restarts + 1
        return replace(watch, state=NodeState.STARTING, since=now, responded_at=now, restarts=restarts)
    if watch.state is NodeState.RESTARTING and observation.alive:  # started by another supervisor
        return replace(watch, state=NodeState.STARTING, since=now, responded_at=now)
    if watch.state is NodeState.RESTARTING:
        if now < watch.retry_at:
            return watch
        return replace(
            watch, state=NodeState.STARTING, since=now, responded_at=now, restarts=watch.restarts + 1
        )
    if not observation.alive:
        crashes = (*(at for at in watch.crashes if now - at < CRASH_MEMORY_SECONDS), now)
        retry_at = now + BACKOFF.seconds(len(crashes))
        return replace(watch, state=NodeState.RESTARTING, since=now, crashes=crashes, retry_at=retry_at)
    if observation.responds:
        since = watch.since if watch.state is NodeState.READY else now
        return replace(watch, state=NodeState.READY, since=since, responded_at=now)
    patience = START_SECONDS_MAX if watch.state is NodeState.STARTING else SILENCE_SECONDS_MAX
    if watch.state is not NodeState.UNRESPONSIVE and now - watch.responded_at > patience:
        return replace(watch, state=NodeState.UNRESPONSIVE, since=now)
    return watch


def should_start(before: Watch, after: Watch) -> bool:
    """Whether this change requires starting the process. Never true while one is alive."""
    return after.restarts > before.restarts
