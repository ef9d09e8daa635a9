"""Heals clusters: reads the audit's findings, compares the replicas again, and demotes a corrupt leader.

The effects follow from a committed claim on the broker (`BrokerState` demoted, by `audit`) and from what the
cluster shows. So another control plane continues, and doing it again changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

import structlog

from penstock.audit.day import HEALING
from penstock.audit.healing import Demotion, HealingMode, Suspect, Verdict, accused, decide, to_restore
from penstock.audit.intents import IntentLog
from penstock.audit.sweep import ANY_REPLICA, list_own_offsets
from penstock.audit.topic_ids import id_text
from penstock.balance.actions import Purpose
from penstock.balance.cluster_observation import observe
from penstock.balance.plan_document import PlanState
from penstock.control.decisions import change_plan
from penstock.control.health.broker_states import clear_status, set_status
from penstock.control.health.healing import ACTOR, acted_ms, demoted_by_healing, mode_of, other_work
from penstock.control.health.mitigating import demotion
from penstock.control.load.planning import returning_leadership
from penstock.kafka.admin import configs
from penstock.kafka.admin.offsets import IsolationLevel, OffsetSpec
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.isr_exclusion import MIN_ISR
from penstock.model import fault_points
from penstock.model.durability import PARTITION, Intent, named_subject
from penstock.model.entities import BrokerState, BrokerStatus, Operation, PhysicalCluster
from penstock.model.errors import PenstockError
from penstock.model.errors.control import NotActive

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from penstock.balance.executing import Observation
    from penstock.balance.plan_document import PlannedMove
    from penstock.control.health.mitigating import Plane, PlanProposals
    from penstock.control.physical.cluster_access import Clusters
    from penstock.kafka.client import Client
    from penstock.model.durability import FindingRecord

DECIDED: Final = fault_points.declare("audit.heal.decided", "the claim is committed, no leader has moved")
DEMOTED: Final = fault_points.declare("audit.heal.demoted", "the plan that moves leadership is stored")
ROUND_SECONDS: Final = 3.0
PLAN_PAUSE_MS: Final = 15_000  # from the end of a plan until what it dropped is tried again
DEMOTE: Final = f"{HEALING}demote"

log = structlog.get_logger("penstock.audit")


@dataclass(slots=True)
class ClusterHealing:
    """The last round on one cluster."""

    verdict: Verdict = field(default_factory=Verdict)
    shown: tuple[str, ...] = ()  # findings whose commands were logged
    withheld: tuple[str, ...] = ()  # reasons that were logged
    failure: str = ""


class Findings(Protocol):
    async def of_cluster(self, cluster: str) -> list[FindingRecord]: ...


class HealingService:
    def __init__(
        self,
        plane: Plane,
        clusters: Clusters,
        findings: Findings,
        plans: Callable[[], PlanProposals],
        is_active: Callable[[], bool],
    ) -> None:
        self._plane, self._clusters, self._findings = plane, clusters, findings
        self._plans, self._is_active = plans, is_active
        self.known: dict[str, ClusterHealing] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            if self._is_active():
                ids = [provided.id for provided in self._clusters.known]
                await asyncio.gather(*map(self._try_round, ids))

    async def _try_round(self, cluster: str) -> None:
        healing = self.known.setdefault(cluster, ClusterHealing())
        try:
            await self.run_round(cluster)
            healing.failure = ""
        except NotActive:
            pass  # another control plane is active now, and heals
        except PenstockError as failure:
            healing.failure = str(failure)
            log.warning("healing interrupted", cluster=cluster, error=healing.failure)
        except Exception as failure:  # it belongs to this cluster, not to the control plane
            healing.failure = repr(failure)
            log.exception("healing round raised", cluster=cluster)

    async def run_round(self, cluster: str) -> None:
        registry = self._plane.registry
        physical = registry.get(PhysicalCluster, cluster)
        mode = HealingMode.OFF if physical is None else mode_of(physical)
        healing = self.known.setdefault(cluster, ClusterHealing())
        demoted = demoted_by_healing(registry, cluster)
        findings = await self._findings.of_cluster(cluster) if mode is not HealingMode.OFF or demoted else []
        open_ones = [each for each in findings if accused(each) is not None]
        if not open_ones and not demoted:
            healing.verdict = Verdict()
            return
        client = self._clusters.client(cluster)
        seen = await observe(client)
        suspects = await self._suspects(client, cluster, seen, open_ones)
        now_ms = int(time.time() * 1000)
        healing.verdict = decide(suspects, demoted, acted_ms(registry, cluster), now_ms)
        if (withheld := tuple(healing.verdict.withheld.values())) != healing.withheld:
            log.info("healing withheld", cluster=cluster, reasons=withheld)
            healing.withheld = withheld
        chosen = healing.verdict.demotion if mode is not HealingMode.OFF else None
        if chosen is not None and mode is HealingMode.ASK:
            self._show(cluster, healing, chosen)
        elif chosen is not None:
            await self._demote(client, cluster, chosen)
        for broker in to_restore(findings, demoted, off=mode is HealingMode.OFF):
            await self._restore(client, cluster, seen, broker)
        for broker in demoted_by_healing(self._plane.registry, cluster):
            await self._move(client, cluster, Purpose.DEMOTE, partial(demotion, broker=broker))

    # Observing

    async def _suspects(
        self, client: Client, cluster: str, seen: Observation, findings: Sequence[FindingRecord]
    ) -> list[Suspect]:
        by_partition = {each.id: key for each in findings if (key := _partition_of(each)) in seen.partitions}
        involved = [key for key in set(by_partition.values()) if key is not None]
        starts = await _starts(client, seen, involved)
        least = await _min_isr(client, {key.topic for key in involved})
        suspects = []
        for each in findings:
            key, broker = by_partition.get(each.id), accused(each)
            if key is None or broker is None:
                continue  # the topic is gone
            state = seen.partitions[key]
            if broker not in state.replicas or _topic_id(each) != id_text(UUID(state.topic_id)):
                continue  # moved away, or created again
            name = f"{key.topic}-{key.partition}"
            now_ms = int(time.time() * 1000)
            busy = other_work(self._plane.registry, cluster, name, broker, now_ms)
            if state.reassigning:
                busy = busy or f"{name} is being moved"
            suspects.append(
                Suspect(
                    each, broker, state.leader, state.replicas, state.isr,
                    least.get(key.topic, 1), starts.get(key, {}), busy,
                )
            )  # fmt: skip
        return suspects

    # Acting

    def _show(self, cluster: str, healing: ClusterHealing, chosen: Demotion) -> None:
        ids = tuple(each.id for each in chosen.findings)
        if ids != healing.shown:
            log.warning("healing proposed", cluster=cluster, broker=chosen.broker, run=chosen.commands)
            healing.shown = ids

    async def _demote(self, client: Client, cluster: str, chosen: Demotion) -> None:
        log.warning("broker demoted", cluster=cluster, broker=chosen.broker, reason=chosen.reason)
        await self._record(client, chosen.findings)
        change = partial(
            set_status,
            physical_id=cluster,
            broker=chosen.broker,
            status=BrokerStatus.DEMOTED,
            reason=chosen.reason,
        )
        await self._plane.decide(change, BrokerState, actor=ACTOR)
        fault_points.reach(DECIDED)

    async def _restore(self, client: Client, cluster: str, seen: Observation, broker: int) -> None:
        """The broker may lead again. What it led returns, unless its logs still lack something."""
        log.info("broker restored", cluster=cluster, broker=broker)
        moves = returning_leadership(self._plans().documents, seen, cluster, broker)
        change = partial(clear_status, physical_id=cluster, broker=broker, status=BrokerStatus.DEMOTED)
        await self._plane.decide(change, BrokerState, actor=ACTOR)
        if moves:
            await self._run_plan(cluster, Purpose.RESTORE, moves)

    async def _move(
        self,
        client: Client,
        cluster: str,
        purpose: Purpose,
        moves_of: Callable[[Observation], list[PlannedMove]],
    ) -> None:
        """Starts a plan if something is left to move, and none runs."""
        headers = self._plans().documents.headers.values()
        own = [each for each in headers if (each.cluster, each.actor) == (cluster, ACTOR)]
        for header in own:
            if header.state is PlanState.PROPOSED:  # a predecessor died before it started it
                await self._start(header.id)
        last_ms = max((each.changed_ms for each in own if each.purpose == purpose), default=0)
        waits = any(not each.state.ended for each in own) or time.time() * 1000 - last_ms < PLAN_PAUSE_MS
        if not waits and (moves := moves_of(await observe(client))):
            await self._run_plan(cluster, purpose, moves)

    async def _run_plan(self, cluster: str, purpose: Purpose, moves: list[PlannedMove]) -> None:
        plan = await self._plans().propose_moves(moves, cluster=cluster, actor=ACTOR, purpose=str(purpose))
        fault_points.reach(DEMOTED)
        await self._start(plan.id)

    async def _start(self, plan: str) -> None:
        change = partial(change_plan, plan=plan, action="plan.run", arguments={})
        await self._plane.decide(change, Operation, actor=ACTOR)

    async def _record(self, client: Client, findings: Sequence[FindingRecord]) -> None:
        """In the history of the partitions, before anything happens."""
        keys = [key for each in findings if (key := _partition_of(each)) is not None]
        intents = [(named_subject(*key), Intent(DEMOTE, ACTOR)) for key in keys]
        await IntentLog(client).record(intents)


def _partition_of(finding: FindingRecord) -> TopicPartition | None:
    """The partition that a finding is about, by name."""
    if not (finding.topic_name and finding.subject.startswith(PARTITION)):
        return None
    return TopicPartition(finding.topic_name, int(finding.subject.rpartition("/")[2]))


def _topic_id(finding: FindingRecord) -> str:
    return finding.subject.removeprefix(PARTITION).rpartition("/")[0]


async def _starts(
    client: Client, seen: Observation, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, dict[int, int]]:
    """Where each replica's log starts now, by broker; without brokers that do not respond."""
    by_broker: dict[int, list[TopicPartition]] = {}
    for key in partitions:
        for broker in seen.partitions[key].replicas:
            by_broker.setdefault(broker, []).append(key)
    starts: dict[TopicPartition, dict[int, int]] = {}
    for broker, keys in by_broker.items():
        uncommitted = IsolationLevel.READ_UNCOMMITTED
        try:
            listed = await list_own_offsets(
                client, broker, keys, OffsetSpec.EARLIEST, replica=ANY_REPLICA, isolation=uncommitted
            )
        except PenstockError:
            continue
        for key, (offset, _) in listed.items():
            starts.setdefault(key, {})[broker] = offset
    return starts


async def _min_isr(client: Client, topics: Collection[str]) -> dict[str, int]:
    resources = [configs.topic(each) for each in sorted(topics)]
    described = await configs.describe(client, resources, names=[MIN_ISR]) if resources else {}
    return {
        resource.name: int(entries[MIN_ISR].value or 1)
        for resource, entries in described.items()
        if not isinstance(entries, PenstockError) and MIN_ISR in entries
    }
