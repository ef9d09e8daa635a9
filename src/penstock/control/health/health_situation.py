"""What the registry shows about a cluster whose brokers are judged and mitigated. Pure.

The control plane and the simulator ask the same questions, and so decide alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.control.health import mitigations
from penstock.control.health.health_settings import action_modes, held, mode_of
from penstock.control.health.interventions import conflict, open_interventions, zones_of
from penstock.health.mitigation import Abilities, Situation
from penstock.model.entities import Actor, BrokerStatus, OpenIntervention
from penstock.model.ids import BrokerId

if TYPE_CHECKING:
    from penstock.control.registry import Registry
    from penstock.health.detector import Verdict
    from penstock.model.entities import PhysicalCluster


def restarted_on_purpose(registry: Registry, cluster: str, now_ms: int) -> frozenset[int]:
    """By health or by a roll: what such a broker shows is expected."""
    every = mitigations.of_cluster(registry, cluster).values()
    brokers = {int(each.broker) for each in every if mitigations.restarts(each, now_ms)}
    for intervention in open_interventions(registry, cluster, now_ms):
        if intervention.actor is Actor.ROLL:
            brokers |= {int(broker) for broker in intervention.brokers}
    return frozenset(brokers)


def filled_or_emptied(registry: Registry, cluster: str) -> frozenset[int]:
    """They may be slow."""
    moves = {BrokerStatus.JOINING, BrokerStatus.LEAVING}
    states = registry.broker_states(cluster).items()
    return frozenset(int(broker) for broker, state in states if moves & set(state.statuses))


def situation_of(
    registry: Registry,
    physical: PhysicalCluster,
    verdict: Verdict,
    abilities: Abilities,
    hurt: float | None,
    now_ms: int,
) -> Situation:
    """`hurt` is the share of client probes that suffer at best."""
    every = mitigations.of_cluster(registry, physical.id)
    return Situation(
        verdict,
        mode_of(physical),
        {broker: mitigations.as_open(each, hurt, now_ms) for broker, each in every.items()},
        abilities,
        held(registry, physical.id, now_ms),
        mitigations.acted(registry, physical.id, now_ms),
        mitigations.given_up(registry, physical.id, now_ms),
        _interventions(registry, physical, now_ms),
        action_modes(physical),
    )


def _interventions(registry: Registry, physical: PhysicalCluster, now_ms: int) -> dict[int, str]:
    """Brokers that other interventions exclude, and why."""
    current = open_interventions(registry, physical.id, now_ms)
    blocked = {}
    for each in physical.brokers:
        broker = BrokerId(int(each.id))
        key = mitigations.intervention_key(int(broker))
        zones = zones_of(physical, (broker,))
        request = OpenIntervention(Actor.HEALTH, key, "", now_ms, brokers=(broker,), zones=zones)
        others = [other for other in current if (other.actor, other.key) != (Actor.HEALTH, key)]
        if (refusal := conflict(request, others)) is not None:
            blocked[int(broker)] = f"{refusal[0]} ({refusal[1]})"
    return blocked
