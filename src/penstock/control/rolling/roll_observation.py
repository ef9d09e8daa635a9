"""Reads what `fleet.rolling` needs to know of a running cluster: processes, the metadata log, the quorum."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.backup.restore_store import running_restore
from penstock.control.health.interventions import open_interventions
from penstock.control.physical.roll_nodes import LocalNodes
from penstock.control.rolling.rolls import ACTOR
from penstock.fleet.rolls.roll_batches import Partition
from penstock.fleet.rolls.rolling import NodeSeen, Observation, QuorumSeen
from penstock.kafka import quorum
from penstock.kafka.admin import configs
from penstock.kafka.metadata_image import MetadataFollower
from penstock.model.entities import Actor, BrokerStatus
from penstock.model.errors import PenstockError
from penstock.wire.error_codes import MISSING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.control.physical.roll_nodes import RemoteNodes
    from penstock.control.registry import Registry
    from penstock.fleet.restarting import ProcessState
    from penstock.fleet.rolls.rolling import Member
    from penstock.kafka.client import Client
    from penstock.kafka.metadata_image import MetadataImage
    from penstock.model.entities import Roll

MIN_ISR: Final = "min.insync.replicas"
MIN_ISR_SECONDS: Final = 30.0  # for which a topic's minimum is remembered
TOPICS_PER_CALL: Final = 500
STARTS_MAX: Final = 2  # processes that ended before they were ready: then the node came back wrong


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    members: tuple[Member, ...]
    observation: Observation
    incarnations: Mapping[int, str]
    features: Mapping[str, int] = field(default_factory=dict)  # levels in force


@dataclass
class ClusterWatch:
    """Observes one cluster during its rolls. What it remembers only makes it cheaper, or patient."""

    nodes: LocalNodes | RemoteNodes
    client: Client
    controllers: Client
    _min_isr: dict[str, tuple[int, float]] = field(default_factory=dict)
    _ended: dict[tuple[int, str], set[str]] = field(default_factory=dict)  # processes, by node and request
    _last: dict[int, ProcessState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._follower = MetadataFollower(self.controllers)

    async def close(self) -> None:
        await self.controllers.close()
        if isinstance(self.nodes, LocalNodes):
            await self.nodes.close()

    async def image(self) -> MetadataImage:
        return await self._follower.catch_up()

    async def restoring(self) -> str:
        """The restore that rewrites partitions of this cluster; empty without one."""
        return await running_restore(self.client)

    async def observe(
        self, registry: Registry, cluster: str, roll: Roll | None, loads: Mapping[int, float]
    ) -> ClusterSeen:
        now_ms = int(time.time() * 1000)
        image = await self.image()
        described = await quorum.describe(self.client)
        members = self.nodes.members(image)
        seen_quorum = QuorumSeen(
            described.leader_id,
            frozenset(voter.id for voter in described.voters),
            described.caught_up,
        )
        if isinstance(self.nodes, LocalNodes):
            states = [await self.nodes.restarter.state(member.id) for member in members]
            responding = await asyncio.gather(*(self._responds(m, s) for m, s in zip(members, states)))
            incarnations = {m.id: s.incarnation for m, s in zip(members, states)}
            nodes = {
                m.id: self._local(m, s, up, image, roll, now_ms, loads)
                for m, s, up in zip(members, states, responding)
            }
        else:
            incarnations = {m.id: _incarnation(image, m.id) for m in members}
            nodes = {m.id: _remote(m, image, roll, now_ms, loads) for m in members}
        states_ = registry.broker_states(cluster)
        health = [one for one in open_interventions(registry, cluster, now_ms) if one.actor is Actor.HEALTH]
        taken = {int(broker) for one in health for broker in one.brokers}
        taken |= {int(b) for b, state in states_.items() if BrokerStatus.EXCLUDED in state.statuses}
        demoted = {
            int(broker)
            for broker, state in states_.items()
            if any(claim.status is BrokerStatus.DEMOTED and claim.owner != ACTOR for claim in state.claims)
        }
        observation = Observation(
            nodes,
            await self._partitions(image),
            seen_quorum,
            taken=frozenset(taken),
            demoted=frozenset(demoted),
            now=now_ms / 1000,
        )
        return ClusterSeen(members, observation, incarnations, dict(image.features))

    async def _responds(self, member: Member, state: ProcessState) -> bool:
        assert isinstance(self.nodes, LocalNodes)
        return state.alive and await self.nodes.responds(member.id)

    def _local(
        self,
        member: Member,
        state: ProcessState,
        responds: bool,
        image: MetadataImage,
        roll: Roll | None,
        now_ms: int,
        loads: Mapping[int, float],
    ) -> NodeSeen:
        registration = image.brokers.get(member.id)
        unfenced = registration is not None and not registration.fenced
        ordered_ms = _ordered_ms(roll, member.id)
        current = roll is not None and _is_current(state, roll, member.id)
        return NodeSeen(
            alive=state.alive,
            ready=responds and (unfenced or not member.broker),
            current=current,
            ordered=ordered_ms is not None,
            ordered_seconds=0.0 if ordered_ms is None else (now_ms - ordered_ms) / 1000,
            wrong=self._wrong(member.id, state, roll, responds=responds) if ordered_ms is not None else "",
            load=loads.get(member.id, 0.0),
        )

    def _wrong(self, node: int, state: ProcessState, roll: Roll | None, *, responds: bool) -> str:
        """Processes of the roll that ended before they were ready; or another document than ordered."""
        assert roll is not None
        assert isinstance(self.nodes, LocalNodes)
        ended = self._ended.setdefault((node, roll.request), set())
        last, self._last[node] = self._last.get(node), state
        if responds:
            ended.clear()
        replaced = last is not None and last.alive and last.incarnation != state.incarnation
        if replaced and last is not None and last.request == roll.request:
            ended.add(last.incarnation)
        if len(ended) >= STARTS_MAX:
            error = self.nodes.last_error(node) or "its log has no error"
            return f"it ended {len(ended)} times before it was ready: {error}"
        if state.alive and state.request == roll.request and state.document != roll.document:
            return f"it runs fleet document {state.document}, not {roll.document}"
        return ""

    async def _partitions(self, image: MetadataImage) -> dict[tuple[str, int], Partition]:
        partitions = image.by_name
        least = await self._minimums(sorted({topic for topic, _ in partitions}))
        return {
            key: Partition(
                p.replicas,
                frozenset(p.isr),
                p.leader if p.leader >= 0 else None,
                least.get(key[0], 1),
                p.adding,
                p.removing,
            )
            for key, p in partitions.items()
        }

    async def _minimums(self, topics: list[str]) -> dict[str, int]:
        now = time.monotonic()
        known = {t: each for t, each in self._min_isr.items() if now - each[1] < MIN_ISR_SECONDS}
        unknown = [topic for topic in topics if topic not in known]
        for first in range(0, len(unknown), TOPICS_PER_CALL):
            resources = [configs.topic(name) for name in unknown[first : first + TOPICS_PER_CALL]]
            described = await configs.describe(self.client, resources, names=[MIN_ISR])
            for resource, entries in described.items():
                if not isinstance(entries, PenstockError):
                    known[resource.name] = int(entries[MIN_ISR].value or 1), now
                elif entries.facts.get("error_code") not in MISSING:
                    raise entries
        self._min_isr = known
        return {topic: value for topic, (value, _) in known.items()}


def _is_current(state: ProcessState, roll: Roll, node: int) -> bool:
    """Whether the process was started for the roll; or later by another component, with the same document."""
    if not state.alive or state.request == roll.request:
        return state.alive
    row = next((row for row in roll.nodes if row.id == node), None)
    later = row is not None and state.incarnation not in ("", row.incarnation)
    return later and bool(roll.document) and state.document == roll.document


def _ordered_ms(roll: Roll | None, node: int) -> int | None:
    rows = () if roll is None else roll.nodes
    return next((row.ordered_ms for row in rows if row.id == node), None)


def _incarnation(image: MetadataImage, node: int) -> str:
    known = image.brokers.get(node) or image.controllers.get(node)
    return "" if known is None else known.incarnation


def _remote(
    member: Member, image: MetadataImage, roll: Roll | None, now_ms: int, loads: Mapping[int, float]
) -> NodeSeen:
    """A node has restarted if it has registered again since its restart was ordered."""
    registration = image.brokers.get(member.id)
    ready = registration is not None and not registration.fenced and not registration.shutting_down
    row = next((each for each in roll.nodes if each.id == member.id), None) if roll is not None else None
    incarnation = _incarnation(image, member.id)
    return NodeSeen(
        alive=ready or row is not None,
        ready=ready,
        current=row is not None and incarnation not in ("", row.incarnation),
        ordered=row is not None,
        ordered_seconds=0.0 if row is None else (now_ms - row.ordered_ms) / 1000,
        load=loads.get(member.id, 0.0),
    )
