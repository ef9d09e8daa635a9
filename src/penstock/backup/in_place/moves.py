"""The next move of a restore in place, from what a partition is now. Pure.

A log start never falls on a real broker, so a replica gets its prefix back only as a new replica of a leader
that has it. The shadow leads while one replica is rebuilt; that one leads then, and the others are rebuilt
from it by Kafka's own replication. Only the first part stops producers.

Each move follows from the present state alone, so a process that takes over needs nothing else, and a broker
that dies in between changes what follows. No move leaves fewer than `needed` real replicas in sync.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Observation:
    """One partition, as the metadata log and its replicas have it."""

    original: tuple[int, ...]  # its replicas before the restore
    restored_start: int
    needed: int  # real in-sync replicas that are always kept
    shadow: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int  # −1: none
    adding: frozenset[int]
    removing: frozenset[int]
    live: frozenset[int]  # real brokers that are not fenced
    starts: Mapping[int, int] = field(default_factory=dict)  # the log start of each broker that has a log

    @property
    def real(self) -> tuple[int, ...]:
        return real_of(self.replicas)

    @property
    def in_sync(self) -> tuple[int, ...]:
        return real_of(self.isr)

    @property
    def moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def settled(self) -> tuple[int, ...]:
        """Real replicas that are not still being added: a reassignment to them completes at once."""
        return tuple(one for one in self.real if one not in self.adding or one in self.isr)

    @property
    def has_shadow(self) -> bool:
        return self.shadow in self.replicas

    @property
    def shadow_leads(self) -> bool:
        return self.leader == self.shadow

    @property
    def restored(self) -> tuple[int, ...]:
        """In-sync replicas that have the restored records, in the order of the replicas."""
        return tuple(one for one in self.real if one in self.in_sync and self.has_prefix(one))

    def has_prefix(self, broker: int) -> bool:
        return broker in self.starts and self.starts[broker] <= self.restored_start


@dataclass(frozen=True, slots=True)
class Wait:
    """Until the state has changed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Follow:
    """The shadow fetches from the leader until it is in sync."""


@dataclass(frozen=True, slots=True)
class Place:
    """Reassign the partition; the first replica is the preferred leader."""

    replicas: tuple[int, ...]
    dropped: int = -1  # the replica that is rebuilt next


@dataclass(frozen=True, slots=True)
class Elect:
    """Elect the first replica, which is in sync."""

    leader: int


@dataclass(frozen=True, slots=True)
class Done:
    """The partition has its original replicas and leader again."""


Move = Wait | Follow | Place | Elect | Done


def next_move(state: Observation, *, undo: bool = False) -> Move:
    """The next move; with `undo`, back to the original replicas without the restored records."""
    if state.leader < 0:
        return Wait("the partition has no leader")
    if undo:
        return _undo(state)
    if state.restored:
        return _complete(state)
    return _rebuild_first(state) if state.shadow_leads else _let_shadow_lead(state)


def _undo(state: Observation) -> Move:
    if state.has_shadow:
        return Place(state.settled)
    return _waits(state) or _tidy(state)


def _let_shadow_lead(state: Observation) -> Move:
    """A real broker leads, and no replica has the prefix."""
    if len(state.in_sync) < state.needed and state.has_shadow:
        return Place(state.settled)  # an in-sync shadow would count as a copy, and it is none
    if state.moving:
        return Follow() if state.has_shadow and state.shadow not in state.isr else _moving(state)
    if (missing := _missing(state)) or len(state.real) < state.needed:
        return _add(state, missing or _spare(state))
    if set(state.real) - set(state.in_sync):
        return Wait(f"replicas {_listed(set(state.real) - set(state.in_sync))} are not in sync")
    if not state.has_shadow:
        return Place((*state.real, state.shadow))
    if state.shadow not in state.isr:
        return Follow()
    if state.replicas[0] != state.shadow:
        return Place((state.shadow, *state.real))
    return Elect(state.shadow)


def _rebuild_first(state: Observation) -> Move:
    """The shadow leads: one replica is dropped, or a broker added, and fetches everything from it."""
    if len(state.in_sync) < state.needed:
        return Place(state.settled)  # real brokers lead, and everything begins again
    behind = [one for one in state.real if one not in state.in_sync]
    if state.moving or any(one not in state.starts or state.has_prefix(one) for one in behind):
        return Wait(f"replicas {_listed(behind)} are rebuilt from the backup")
    if behind:
        return _drop(state, behind[-1])
    if candidates := _missing(state) or _spare(state):
        return _add(state, candidates)
    if len(state.in_sync) > state.needed:
        return _drop(state, state.in_sync[-1])
    return Wait("no broker is free for another replica")


def _complete(state: Observation) -> Move:
    """A replica has the prefix: it leads, and the others are rebuilt from it."""
    first = state.restored[0]
    rest = tuple(one for one in state.settled if one != first)
    if state.has_shadow:
        return Place((first, *rest))  # this also makes it the leader
    if state.leader not in state.restored:
        if state.moving:
            return _moving(state)
        return Elect(first) if state.replicas[0] == first else Place((first, *rest))
    if (waiting := _waits(state)) is not None:
        return waiting
    if missing := _missing(state):
        return _add(state, missing)
    old = [one for one in state.real if not state.has_prefix(one)]
    if not old:
        return _tidy(state)
    if unknown := [one for one in old if one not in state.starts]:
        return Wait(f"replicas {_listed(unknown)} do not respond")
    if len(set(state.in_sync) - {old[-1]}) >= state.needed:
        return _drop(state, old[-1])
    return _add(state, _spare(state))


def _tidy(state: Observation) -> Move:
    """The original replicas, in their order, led by the first."""
    if missing := _missing(state):
        return _add(state, missing)
    if lost := set(state.original) - set(state.real):
        return Wait(f"brokers {_listed(lost)} are away")
    if state.replicas != state.original:
        return Place(state.original)
    first = state.original[0]
    return Elect(first) if state.leader != first and first in state.isr else Done()


def _waits(state: Observation) -> Wait | None:
    if state.moving:
        return _moving(state)
    behind = set(state.real) - set(state.in_sync)
    return Wait(f"replicas {_listed(behind)} are not in sync") if behind else None


def _moving(state: Observation) -> Wait:
    return Wait(f"replicas {_listed(set(state.replicas) - set(state.isr))} are added")


def _missing(state: Observation) -> tuple[int, ...]:
    return tuple(one for one in state.original if one not in state.replicas and one in state.live)


def _spare(state: Observation) -> tuple[int, ...]:
    return tuple(sorted(state.live - set(state.replicas)))


def _add(state: Observation, brokers: Sequence[int]) -> Move:
    """Add a replica. Its broker must have deleted the old log first: otherwise it would keep it."""
    if not brokers:
        return Wait("no broker is free for another replica")
    ready = [one for one in brokers if one not in state.starts]
    if not ready:
        return Wait(f"brokers {_listed(brokers)} delete the old log")
    return Place((*_leader_first(state), ready[0]))


def _drop(state: Observation, broker: int) -> Place:
    return Place(tuple(one for one in _leader_first(state) if one != broker), dropped=broker)


def _leader_first(state: Observation) -> tuple[int, ...]:
    return (state.leader, *(one for one in state.replicas if one != state.leader))


def real_of(replicas: Collection[int]) -> tuple[int, ...]:
    return tuple(one for one in replicas if not is_shadow(one))


def _listed(brokers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(brokers)))
