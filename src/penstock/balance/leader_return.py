"""Which leaders return to their preferred brokers, and when.

After a restart a broker leads nothing: Kafka's own return of leaders (`auto.leader.rebalance.enable`) is off
in local fleets, because it ignores whether the broker keeps up. Leadership returns only to a broker all of
whose replicas have been in sync for a while. Internal topics come last, since a new leader of those makes
groups and transactions wait (KIP-1358 proposes the same order). The executor's budget makes it gradual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.balance.plan_document import PlannedMove

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.balance.executing import Observation

CAUGHT_UP_SECONDS: Final = 30.0  # before a broker leads again
RETURNS_MAX: Final = 5_000  # in one round


def caught_up(seen: Observation, before: Mapping[int, float], now: float) -> dict[int, float]:
    """Live brokers all of whose replicas are in sync, and since when."""
    behind = {
        broker
        for state in seen.partitions.values()
        for broker in state.replicas
        if broker not in state.isr and broker not in state.adding
    }
    return {broker: before.get(broker, now) for broker in seen.alive - behind}


def returning(
    seen: Observation,
    since: Mapping[int, float],
    now: float,
    may_lead: Callable[[int], bool] = lambda _: True,
) -> list[PlannedMove]:
    """Partitions to elect leaders for, as moves that change no replica."""
    ready = {
        broker
        for broker, at in since.items()
        if now - at >= CAUGHT_UP_SECONDS and broker in seen.alive and may_lead(broker)
    }
    moves = [
        PlannedMove(
            topic,
            state.topic_id,
            number,
            state.replicas,
            state.replicas,
            goal="leaders",
            reason=f"leadership returns to broker {state.replicas[0]}",
        )
        for (topic, number), state in seen.partitions.items()
        if not state.reassigning and state.leader != state.replicas[0] and state.replicas[0] in ready
    ]
    moves = [move for move in moves if can_return(move, seen)]
    return sorted(moves, key=lambda m: (is_internal(m.topic), m.topic, m.partition))[:RETURNS_MAX]


def can_return(move: PlannedMove, seen: Observation) -> bool:
    state = seen.partitions.get((move.topic, move.partition))
    return state is not None and move.after[0] in seen.alive and move.after[0] in state.isr


def is_internal(topic: str) -> bool:
    return topic.startswith("_")
