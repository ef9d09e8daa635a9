"""Makes plans: reads a physical cluster, builds the planner's model of it, and stores the planner's answer.

Replicas and log sizes come from the cluster, traffic from its load history, loads from the observation, and
cells, tenants and broker states from the registry. Without the load and the traffic of every broker, only
goals that the Admin API suffices for run. A broker that does not report its disks is given nothing, and a
partition that is being reassigned, or whose tenant moves, stays as it is. So do the topics of an adopted
cluster that are neither tenants' nor the platform's.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from penstock.balance import planner
from penstock.balance.actions import Purpose, Request
from penstock.balance.cluster_model import BrokerFacts, ClusterFacts, Traffic, build
from penstock.balance.cluster_observation import observe
from penstock.balance.goals import GOALS, TOPIC_SPREAD
from penstock.balance.plan_document import Names
from penstock.control.cluster_placement import require_capability
from penstock.control.health.broker_states import broker_of
from penstock.control.health.probe_tenants import is_checker
from penstock.control.load.load_history import read_recent
from penstock.fleet.adopted.capabilities import Capability
from penstock.kafka.admin import log_dirs
from penstock.kafka.admin.partitions import TopicPartition
from penstock.model.entities import BrokerStatus, ClusterState, LogicalCluster, PhysicalCluster
from penstock.model.errors import PenstockError
from penstock.model.errors.balance import (
    BrokerTakesNothing,
    CellUnknown,
    ClusterTooLarge,
    ClusterUnobserved,
    GoalUnknown,
    PlanTopicUnknown,
)
from penstock.model.ids import BrokerId, tenant_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from penstock.balance.cluster_model import NamedModel
    from penstock.balance.executing import Observation
    from penstock.balance.plan_document import PlanDocument, PlanDocuments, PlannedMove
    from penstock.balance.planner import Plan
    from penstock.control.physical.cluster_access import Clusters
    from penstock.control.registry import Registry
    from penstock.kafka.client import Client
    from penstock.model.entities import BrokerState
    from penstock.model.events import BrokerLoad

PLAN_SECONDS: Final = 20.0  # then the plan so far is returned, marked as partial
DISKS_SECONDS_MAX: Final = 10.0  # a broker that does not report its disks by then is given nothing
PARTITIONS_PER_CALL: Final = 5_000  # whose sizes one response lists
REPLICAS_MAX: Final = 3_000_000  # of a cluster that is planned: a million take about 1 GB
PLATFORM_TOPICS: Final = "_penstock."
GOAL_NAMES: Final = (*(goal.name for goal in GOALS), TOPIC_SPREAD)

log = structlog.get_logger("penstock.control")


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a plan is requested for."""

    cluster: str  # physical cluster
    purpose: Purpose = Purpose.BALANCE
    broker: int | None = None  # to relieve, fill, empty or demote, whatever its state
    leaving: frozenset[int] = frozenset()  # brokers to be emptied, besides those with the state `leaving`
    cell: str | None = None
    goals: tuple[str, ...] = ()  # none: all
    topics_excluded: frozenset[str] = frozenset()
    tenants_excluded: frozenset[str] = frozenset()  # ids
    moves_max: int | None = None
    bytes_max: float | None = None
    resting: frozenset[tuple[str, int]] = frozenset()  # partitions that stay


class Disks(NamedTuple):
    """What one broker stores. −1: not reported."""

    total_bytes: int
    usable_bytes: int
    sizes: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class ClusterReading:
    """What a physical cluster reports."""

    seen: Observation
    disks: Mapping[int, Disks]  # by broker; without those that did not respond
    rates: Mapping[int, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)  # by broker and topic


@dataclass(frozen=True, slots=True)
class RegisteredCluster:
    """What the control plane knows of a physical cluster."""

    physical: PhysicalCluster
    tenants: Mapping[str, LogicalCluster]  # by id
    states: Mapping[BrokerId, BrokerState]
    loads: Sequence[BrokerLoad] = ()


@dataclass(frozen=True)
class ModelledCluster:
    reading: ClusterReading
    named: NamedModel
    metrics: bool  # loads and traffic of every broker are known

    @property
    def names(self) -> Names:
        named, states = self.named, self.reading.seen.partitions
        ids = {topic: state.topic_id for (topic, _), state in states.items()}
        rows = zip(named.model.topics.tolist(), named.numbers.tolist(), strict=True)
        partitions = [(named.topics[topic], ids[named.topics[topic]], number) for topic, number in rows]
        return Names(partitions, [int(broker) for broker in named.model.brokers.ids], named.cells)


class Proposals(Protocol):
    """The stored plans; `PlanService` is one."""

    @property
    def documents(self) -> PlanDocuments: ...
    async def propose_moves(
        self, moves: Sequence[PlannedMove], *, cluster: str, actor: str, purpose: str
    ) -> PlanDocument: ...
    async def propose(
        self, plan: Plan, names: Names, *, cluster: str, actor: str, purpose: str
    ) -> PlanDocument: ...


class PlanMaker:
    """Makes plans for the physical clusters of one control plane."""

    def __init__(
        self,
        registry: Callable[[], Registry],
        loads: Callable[[], Mapping[str, tuple[BrokerLoad, ...]]],
        read: Callable[[str], Awaitable[ClusterReading]],
        plans: Callable[[], Proposals],
    ) -> None:
        self._registry, self._loads, self._read, self._plans = registry, loads, read, plans
        self.seconds: dict[str, float] = {}  # that the last plan of each cluster took

    async def propose(self, request: PlanRequest, actor: str) -> PlanDocument:
        """Makes a plan and stores it, to be run later."""
        plans, began = self._plans(), time.monotonic()  # another control plane may be the active one
        self._check(request)
        if request.purpose is Purpose.RESTORE:
            moves = await self._returning(request, plans.documents)
            return await plans.propose_moves(
                moves, cluster=request.cluster, actor=actor, purpose=str(request.purpose)
            )
        plan, names = await self.plan(request, await self.modelled(request), began)
        return await plans.propose(
            plan, names, cluster=request.cluster, actor=actor, purpose=str(request.purpose)
        )

    def loads(self, cluster: str) -> dict[int, float]:
        """The loads of a cluster's brokers that are known now."""
        known = self._loads().get(cluster, ())
        return {int(each.broker): each.load for each in known if each.load is not None}

    async def modelled(self, request: PlanRequest) -> ModelledCluster:
        """The cluster as it is now."""
        registry = self._registry()
        physical = registry.need(PhysicalCluster, request.cluster)
        if not physical.brokers:
            raise ClusterUnobserved(cluster=physical.id, reason="it has no registered broker")
        reading = await self._read(physical.id)
        replicas = sum(len(state.replicas) for state in reading.seen.partitions.values())
        if replicas > REPLICAS_MAX:
            raise ClusterTooLarge(cluster=physical.id, replicas=replicas, replicas_max=REPLICAS_MAX)
        known = RegisteredCluster(
            physical,
            {each.id: each for each in registry.all(LogicalCluster) if each.cluster == physical.id},
            registry.broker_states(physical.id),
            self._loads().get(physical.id, ()),
        )
        return await asyncio.to_thread(_modelled, known, reading, request)

    async def plan(self, request: PlanRequest, known: ModelledCluster, began: float) -> tuple[Plan, Names]:
        made = await asyncio.to_thread(_plan, request, known, began + PLAN_SECONDS)
        self.seconds[request.cluster] = time.monotonic() - began
        return made

    async def _returning(self, request: PlanRequest, documents: PlanDocuments) -> list[PlannedMove]:
        assert request.broker is not None
        state = self._registry().broker_states(request.cluster).get(BrokerId(request.broker))
        if state is not None and not state.leads:
            return []  # another component has demoted it, too
        reading = await self._read(request.cluster)
        return returning_leadership(documents, reading.seen, request.cluster, request.broker)

    def _check(self, request: PlanRequest) -> None:
        physical = self._registry().need(PhysicalCluster, request.cluster)
        require_capability(physical, Capability.REASSIGNMENTS, "balancing")
        for goal in request.goals:
            if goal not in GOAL_NAMES:
                raise GoalUnknown(goal=goal, known=", ".join(GOAL_NAMES))
        if request.broker is not None:
            broker_of(physical, request.broker)
            state = self._registry().broker_states(physical.id).get(BrokerId(request.broker))
            if request.purpose is Purpose.FILL and state is not None and not state.takes_load:
                states = ", ".join(state.statuses)
                raise BrokerTakesNothing(broker=request.broker, states=states)
        if request.cell is not None and physical.cell(request.cell) is None:
            known = ", ".join(cell.id for cell in physical.cells) or "none"
            raise CellUnknown(cluster=physical.id, cell=request.cell, known=known)


def returning_leadership(
    documents: PlanDocuments, seen: Observation, cluster: str, broker: int
) -> list[PlannedMove]:
    """Undoes what plans that demoted a broker changed, except where replicas have moved since."""
    demotions = [
        header
        for header in documents.headers.values()
        if header.cluster == cluster and header.purpose == Purpose.DEMOTE and header.state.ended
    ]
    moves: dict[tuple[str, int], PlannedMove] = {}
    for header in sorted(demotions, key=lambda each: each.changed_ms, reverse=True):
        document = documents.document(header.id)
        for move in () if document is None else document.moves:
            key = move.topic, move.partition
            now = seen.partitions.get(TopicPartition(*key))
            same = now is not None and now.topic_id == move.topic_id and now.replicas == move.after
            if move.before[0] == broker and same and key not in moves:
                reason = f"leadership returns to broker {broker}"
                moves[key] = replace(move, before=move.after, after=move.before, goal="leads", reason=reason)
    return list(moves.values())


def reader(clusters: Clusters) -> Callable[[str], Awaitable[ClusterReading]]:
    async def read(cluster: str) -> ClusterReading:
        if not clusters.has(cluster):
            raise ClusterUnobserved(cluster=cluster, reason="it has not been reached yet")
        return await read_cluster(clusters.client(cluster))

    return read


async def read_cluster(client: Client) -> ClusterReading:
    seen = await observe(client)
    held: dict[int, list[TopicPartition]] = {broker: [] for broker in sorted(seen.alive)}
    for key, state in seen.partitions.items():
        for broker in state.replicas:
            if broker in held:
                held[broker].append(TopicPartition(*key))
    disks = await asyncio.gather(*(_disks(client, broker, keys) for broker, keys in held.items()))
    return ClusterReading(
        seen,
        {broker: each for broker, each in zip(held, disks, strict=True) if each is not None},
        (await read_recent(client)).rates,
    )


async def _disks(client: Client, broker: int, partitions: Sequence[TopicPartition]) -> Disks | None:
    """In calls of a bounded size, which together take a bounded time."""
    sizes: dict[tuple[str, int], int] = {}
    total = usable = -1
    try:
        async with asyncio.timeout(DISKS_SECONDS_MAX):
            for first in range(0, max(len(partitions), 1), PARTITIONS_PER_CALL):
                page = partitions[first : first + PARTITIONS_PER_CALL]
                dirs = (await log_dirs.describe(client, [broker], partitions=page))[broker]
                for each in dirs:
                    sizes |= {key: replica.size_bytes for key, replica in each.replicas.items()}
                if dirs and all(each.total_bytes >= 0 and each.usable_bytes >= 0 for each in dirs):
                    total = sum(each.total_bytes for each in dirs)
                    usable = sum(each.usable_bytes for each in dirs)
    except (TimeoutError, PenstockError) as failure:
        log.warning("disks not read", broker=broker, error=str(failure) or "no response in time")
        return None
    return Disks(total, usable, sizes)


@dataclass(frozen=True, slots=True)
class _Described:
    index: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


def _modelled(known: RegisteredCluster, reading: ClusterReading, request: PlanRequest) -> ModelledCluster:
    named = build(cluster_facts(known, reading, request))
    metrics = named.measured and reading.rates.keys() >= reading.seen.alive - _empty(reading)
    return ModelledCluster(reading, named, metrics)


def _empty(reading: ClusterReading) -> set[int]:
    """Living brokers that hold nothing: they have no traffic, and no load of it."""
    holding = {broker for state in reading.seen.partitions.values() for broker in state.replicas}
    return set(reading.seen.alive) - holding


def cluster_facts(known: RegisteredCluster, reading: ClusterReading, request: PlanRequest) -> ClusterFacts:
    unsettled = unsettled_tenants(known.tenants.values())
    topics: dict[str, list[_Described]] = {}
    for (topic, number), state in reading.seen.partitions.items():
        leader = -1 if state.leader is None else state.leader
        topics.setdefault(topic, []).append(_Described(number, leader, state.replicas, state.isr))

    def cell_of(topic: str) -> str | None:
        tenant = known.tenants.get(tenant_of(topic))
        return None if tenant is None else tenant.cell

    return ClusterFacts(
        brokers=_brokers(known, reading, request),
        topics=topics,
        sizes={broker: each.sizes for broker, each in reading.disks.items()},
        traffic={
            (topic, broker): Traffic(row[0], row[1])
            for broker, rows in reading.rates.items()
            for topic, row in rows.items()
        },
        cell_of=cell_of,
        tenant_of=tenant_of,
        pinned={
            topic
            for topic in topics
            if tenant_of(topic) in unsettled
            or _of_others(known, topic)
            or (_probes(known, topic) and request.purpose not in (Purpose.DEMOTE, Purpose.EMPTY))
        },
        resting={*request.resting, *reading.seen.under_way},
    )


def _of_others(known: RegisteredCluster, topic: str) -> bool:
    """An adopted cluster has topics that the platform may not move."""
    own = tenant_of(topic) in known.tenants or topic.startswith(PLATFORM_TOPICS)
    return known.physical.provider == "adopted" and not own


def _probes(known: RegisteredCluster, topic: str) -> bool:
    """Whether its partitions are pinned to brokers, for health checks."""
    return is_checker(known.tenants.get(tenant_of(topic)))


def unsettled_tenants(tenants: Iterable[LogicalCluster]) -> set[str]:
    """Tenants whose partitions something else moves or deletes now."""
    return {each.id for each in tenants if each.moving_from or each.state is not ClusterState.READY}


def _brokers(known: RegisteredCluster, reading: ClusterReading, request: PlanRequest) -> list[BrokerFacts]:
    physical = known.physical
    load_of: dict[int, float | None] = dict.fromkeys(_empty(reading), 0.0)
    load_of |= {int(each.broker): each.load for each in known.loads if each.load is not None}
    cell_of = {int(broker): cell.id for cell in physical.cells for broker in cell.brokers}
    facts = []
    for endpoint in sorted(physical.brokers, key=lambda each: each.id):
        broker = int(endpoint.id)
        state, disks = known.states.get(BrokerId(broker)), reading.disks.get(broker)
        statuses = () if state is None else state.statuses
        meant = request.broker in (None, broker)
        named = request.broker == broker
        sized = disks is not None and disks.total_bytes >= 0
        facts.append(
            BrokerFacts(
                id=broker,
                zone=endpoint.zone,
                cell=cell_of.get(broker),
                alive=broker in reading.seen.alive,
                takes_load=disks is not None and (state is None or state.takes_load),
                leads=(state is None or state.leads) and not (named and request.purpose is Purpose.DEMOTE),
                joining=_meant(request, Purpose.FILL, meant, named, BrokerStatus.JOINING in statuses),
                leaving=broker in request.leaving
                or _meant(request, Purpose.EMPTY, meant, named, BrokerStatus.LEAVING in statuses),
                disk_bytes=disks.total_bytes if disks is not None and sized else None,
                disk_free_bytes=disks.usable_bytes if disks is not None and sized else None,
                load=load_of.get(broker),
            )
        )
    return facts


def _meant(request: PlanRequest, purpose: Purpose, meant: bool, named: bool, claimed: bool) -> bool:
    """A request that names a broker means it whatever its state is, and no other."""
    if request.purpose is not purpose:
        return claimed
    return named or (claimed and meant)


def _plan(request: PlanRequest, known: ModelledCluster, deadline: float) -> tuple[Plan, Names]:
    named = known.named
    topic_number = {topic: number for number, topic in enumerate(named.topics)}
    for topic in sorted(request.topics_excluded):
        if topic not in topic_number:
            raise PlanTopicUnknown(cluster=request.cluster, topic=topic)
    tenant_number = {tenant: number for number, tenant in enumerate(named.tenants)}
    ids = named.model.brokers.ids.tolist()
    made = planner.plan(
        named.model,
        Request(
            request.purpose,
            ids.index(request.broker) if request.broker is not None else None,
            named.cells.index(request.cell) if request.cell is not None else None,
            frozenset(topic_number[topic] for topic in request.topics_excluded),
            frozenset(tenant_number[t] for t in request.tenants_excluded if t in tenant_number),
            request.moves_max,
            request.bytes_max,
        ),
        expired=lambda: time.monotonic() > deadline,
        metrics=known.metrics,
        only=request.goals,
    )
    return made, known.names
