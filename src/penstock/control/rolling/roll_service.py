"""Runs rolls in the active control plane: observe, decide, act, one round at a time.

A round performs at most one step of `fleet.rolling`. Restarts are recorded before they are ordered, and
orders are repeated until they are followed, so a successor continues wherever its predecessor died. An error
that passes is tried again; any other pauses the roll.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Final

import structlog

from penstock.audit import intents
from penstock.audit.intents import IntentLog
from penstock.audit.metadata_history import DEFAULTS
from penstock.balance.plan_document import PlannedMove
from penstock.balance.plan_job import LeaderReturnJob
from penstock.control.decisions import DecisionContext
from penstock.control.physical.roll_nodes import LocalNodes, roll_nodes
from penstock.control.rolling import rolls
from penstock.control.rolling.roll_observation import ClusterWatch
from penstock.fleet.rolls.rolling import (
    Bounds,
    Desired,
    Done,
    Elect,
    Pause,
    Start,
    Stop,
    Wait,
    next_step,
)
from penstock.fleet.versions import ELIGIBLE_LEADERS, MIN_ISR, feature_raises, require_all
from penstock.kafka.admin import brokers, configs
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.model.durability import EVERY_TOPIC
from penstock.model.entities import PhysicalCluster, Roll, RollState
from penstock.model.errors import PenstockError, UnavailableError
from penstock.model.errors.control import NotActive
from penstock.model.errors.fleet import (
    BrokerMinimumSet,
    ControllersUnreachable,
    InterventionRefused,
    RollStateConflict,
    SettingNotApplied,
)
from penstock.model.fault_points import declare, reach
from penstock.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from penstock.balance.execute import Executor
    from penstock.control.decisions import Decision
    from penstock.control.physical.cluster_access import Clusters
    from penstock.control.registry import Change, Registry
    from penstock.control.rolling.roll_observation import ClusterSeen
    from penstock.fleet.layout import Layout
    from penstock.fleet.rolls.rolling import Step
    from penstock.kafka.client import Client
    from penstock.kafka.metadata_image import MetadataImage
    from penstock.model.entities import RolledNode

ROUND_SECONDS: Final = 0.5
PAUSED_SECONDS: Final = 1.0
ELECT_SECONDS_MAX: Final = 20.0
SETTING_SECONDS_MAX: Final = 20.0
RESTART_SECONDS: Final = 15.0  # of one batch, before any was measured

DEMOTED: Final = declare("fleet.roll.demoted", "a batch is recorded and demoted; no order was given")
STOPPED: Final = declare("fleet.roll.stopped", "the old process of a node has ended")
STARTED: Final = declare("fleet.roll.started", "the new process of a node runs, and is not ready")
IN_SYNC: Final = declare("fleet.roll.in-sync", "every replica of a restarted broker is in sync")
ELECTED: Final = declare("fleet.roll.elected", "leadership has returned to a restarted broker")
FINALIZED: Final = declare("fleet.roll.finalized", "every node is restarted; the roll is not marked as done")
_PHASES: Final = (
    ("stopped_ms", STOPPED),
    ("started_ms", STARTED),
    ("in_sync_ms", IN_SYNC),
    ("led_ms", ELECTED),
)

log = structlog.get_logger("penstock.control")


@dataclass(frozen=True, slots=True)
class RollSupport:
    """What rolls need of the process they run in."""

    layout: Layout | None = None  # of local clusters, and of adoptions
    loads: Callable[[str], Mapping[int, float]] = lambda _cluster: {}
    sick: Callable[[str], Mapping[int, str]] = lambda _cluster: {}  # brokers, and what their probes show
    burning: Callable[[Roll], str] = lambda _roll: ""  # whether the error budget burns since it began
    slow: Callable[[Roll], str] = lambda _roll: ""  # whether clients wait much longer since then


@dataclass(frozen=True, slots=True)
class Waiting:
    """The roll is not over; look again after these seconds."""

    seconds: float
    detail: str


class RollService:
    """The rolls of one leadership term."""

    def __init__(
        self,
        clusters: Clusters,
        registry: Callable[[], Registry],
        propose: Callable[[Callable[[Registry], Decision]], Awaitable[Decision]],
        executor: Callable[[str], Executor],
        support: RollSupport,
    ) -> None:
        self._clusters, self._registry, self._propose = clusters, registry, propose
        self._executor, self._support = executor, support
        self._watches: dict[str, ClusterWatch] = {}

    async def close(self) -> None:
        for watch in self._watches.values():
            await watch.close()
        self._watches.clear()

    async def watch(self, cluster: str) -> ClusterWatch:
        """Raises if the controllers cannot be read."""
        if cluster not in self._watches:
            self._watches[cluster] = await make_watch(
                self._clusters, self._support.layout, self._registry().need(PhysicalCluster, cluster)
            )
        return self._watches[cluster]

    async def apply_settings(self, roll_id: str) -> None:
        """Dynamic properties take effect at once, and are verified on every broker. Idempotent."""
        roll = self._registry().need(Roll, roll_id)
        watch = await self.watch(roll.cluster)
        if isinstance(watch.nodes, LocalNodes) and roll.document_before:
            changes = watch.nodes.dynamic_settings(roll.document_before, roll.document)
            if changes:
                members = watch.nodes.members(await watch.image())
                await apply_dynamic(watch, [m.id for m in members if m.broker], changes)

    async def raise_features(self, cluster: str) -> None:
        """Raises every feature to what all registered nodes support. Idempotent."""
        watch = await self.watch(cluster)
        await raise_features(watch.client, await watch.image())

    async def round(self, roll_id: str) -> Callable[[Registry, int], tuple[Change, ...]] | Waiting:
        """One round. Returns the changes that end the roll, or when to look again."""
        roll = self._registry().get(Roll, roll_id)
        if roll is None or roll.state.ended:
            return lambda _registry, _now: ()
        try:
            if roll.state is RollState.PAUSED:
                await self._settle(roll)
                return Waiting(PAUSED_SECONDS, f"paused: {roll.reason}")
            return await self._round(roll)
        except NotActive:
            raise
        except RollStateConflict:  # an operator has changed it since the round began
            return Waiting(ROUND_SECONDS, _progress(roll))
        except InterventionRefused as refusal:
            return Waiting(PAUSED_SECONDS, f"{_progress(roll)}; {refusal.message}")
        except PenstockError as failure:
            if failure.retriable or isinstance(failure, UnavailableError):
                await self._forget(roll.cluster)
                return Waiting(ROUND_SECONDS, f"{_progress(roll)}; {failure.message}")
            if roll.state is not RollState.PAUSED:
                await self._pause(roll, failure.message, (failure.advice,))
            return Waiting(PAUSED_SECONDS, f"paused: {failure.message}")

    async def _settle(self, roll: Roll) -> None:
        """While a roll is paused, the nodes that were ordered to restart do, and those that are back lead."""
        watch = await self.watch(roll.cluster)
        seen = await watch.observe(self._registry(), roll.cluster, roll, {})
        roll = await self._record(roll, seen)
        if isinstance(watch.nodes, LocalNodes):  # a command that failed is not run again by itself
            await self._repeat_orders(watch, roll, seen)

    async def _round(self, roll: Roll) -> Callable[[Registry, int], tuple[Change, ...]] | Waiting:
        watch = await self.watch(roll.cluster)
        loads = self._support.loads(roll.cluster)
        seen = await watch.observe(self._registry(), roll.cluster, roll, loads)
        roll = await self._record(roll, seen)
        await self._repeat_orders(watch, roll, seen)
        ordered = frozenset(row.id for row in roll.nodes)
        scope = ordered if roll.state is RollState.ABORTING else frozenset(roll.scope)
        desired = Desired(seen.members, scope, roll.allow_downtime)
        observed = replace(
            seen.observation,
            sick=self._support.sick(roll.cluster),
            burning=self._support.burning(roll),
            slow=self._support.slow(roll),
        )
        step = next_step(desired, observed, self._bounds(roll))
        return await self._act(watch, roll, seen, step)

    async def _act(
        self, watch: ClusterWatch, roll: Roll, seen: ClusterSeen, step: Step
    ) -> Callable[[Registry, int], tuple[Change, ...]] | Waiting:
        match step:
            case Stop(nodes) | Start(nodes):
                await self._restart(watch, roll, seen, nodes)
                verb = "restarts" if isinstance(step, Stop) else "starts"
                return Waiting(ROUND_SECONDS, f"{_progress(roll)}; {_named(nodes)} {verb}")
            case Elect(led, partitions):
                await self._elect(roll.cluster, seen, partitions)
                count = counted(len(partitions), "partition")
                return Waiting(ROUND_SECONDS, f"{_progress(roll)}; {_named(led)} leads {count} again")
            case Wait(reason):
                return Waiting(ROUND_SECONDS, f"{_progress(roll)}; {reason}")
            case Pause(reason, evidence):
                if roll.state is RollState.ABORTING:
                    return await self._ended(watch, roll)
                await self._pause(roll, reason, evidence)
                return Waiting(PAUSED_SECONDS, f"paused: {reason}")
            case Done():
                return await self._ended(watch, roll)

    async def _restart(
        self, watch: ClusterWatch, roll: Roll, seen: ClusterSeen, nodes: tuple[int, ...]
    ) -> None:
        before = {node: seen.incarnations.get(node, "") for node in nodes}
        context = partial(DecisionContext, rolls.ACTOR, choose=secrets.choice)
        await self._propose(
            lambda registry: rolls.order_restart(registry, context(now_ms=_now_ms()), roll, before)
        )
        reach(DEMOTED)
        log.info("nodes restart", cluster=roll.cluster, roll=roll.id, nodes=list(nodes))
        for node in nodes:
            await watch.nodes.restarter.restart(node, roll.request, roll.document)

    async def _repeat_orders(self, watch: ClusterWatch, roll: Roll, seen: ClusterSeen) -> None:
        """An order of a supervisor can always be repeated. A command runs again only if it had no effect: a
        broker that is away may be recovering its logs, and would begin again."""
        local = isinstance(watch.nodes, LocalNodes)
        for row in roll.nodes:
            node = seen.observation.nodes.get(row.id)
            if node is None or node.current or row.started_ms:
                continue
            if local or node.ready:
                await watch.nodes.restarter.restart(row.id, roll.request, roll.document)

    async def _record(self, roll: Roll, seen: ClusterSeen) -> Roll:
        """Commits the phases that have ended since the last round."""
        rows = tuple(_with_phases(row, seen) for row in roll.nodes)
        if rows == roll.nodes:
            return roll
        for before, after in zip(roll.nodes, rows, strict=True):
            for phase, point in _PHASES:
                if getattr(after, phase) and not getattr(before, phase):
                    reach(point)
        await self._propose(lambda registry: rolls.record_progress(registry, roll, rows, _now_ms()))
        return self._registry().need(Roll, roll.id)

    async def _elect(self, cluster: str, seen: ClusterSeen, partitions: tuple[tuple[str, int], ...]) -> None:
        """Within the budget of the cluster's executor; what is not done is decided again."""
        moves = [
            PlannedMove(t, "", n, p.replicas, p.replicas, goal="leaders", reason="leadership returns")
            for t, n in partitions
            for p in (seen.observation.partitions[t, n],)
        ]
        try:
            async with asyncio.timeout(ELECT_SECONDS_MAX):
                await self._executor(cluster).run(LeaderReturnJob(moves))
        except TimeoutError:
            log.info("leaders return slowly", cluster=cluster, partitions=len(partitions))

    async def _pause(self, roll: Roll, reason: str, evidence: tuple[str, ...]) -> None:
        log.warning("roll paused", cluster=roll.cluster, roll=roll.id, error=reason, evidence=list(evidence))
        with suppress(RollStateConflict):  # what an operator does meanwhile comes first
            await self._propose(
                lambda registry: rolls.pause_roll(registry, roll, reason, evidence, _now_ms())
            )

    async def _ended(self, watch: ClusterWatch, roll: Roll) -> Callable[[Registry, int], tuple[Change, ...]]:
        if roll.roll_back and isinstance(watch.nodes, LocalNodes):
            watch.nodes.restore_document(roll.document)
            await self.apply_settings(roll.id)
        reach(FINALIZED)
        await self._forget(roll.cluster)
        return lambda registry, now_ms: rolls.end_roll(registry, roll, now_ms)

    async def _forget(self, cluster: str) -> None:
        if (watch := self._watches.pop(cluster, None)) is not None:
            await watch.close()

    def _bounds(self, roll: Roll) -> Bounds:
        deadline = roll.deadline_ms / 1000 if roll.deadline_ms else float("inf")
        return Bounds(restart_seconds=restart_seconds(self._registry(), roll.cluster), deadline=deadline)


async def make_watch(clusters: Clusters, layout: Layout | None, physical: PhysicalCluster) -> ClusterWatch:
    provided, client = clusters.get(physical.id), clusters.client(physical.id)
    controllers = await provided.controllers_client(client)
    watch = ClusterWatch(roll_nodes(layout, physical), client, controllers)
    try:
        await watch.image()
    except PenstockError as failure:
        await watch.close()
        if failure.retriable or isinstance(failure, UnavailableError):
            raise
        raise ControllersUnreachable(cluster=physical.id, reason=failure.message) from failure
    return watch


async def apply_dynamic(watch: ClusterWatch, targets: list[int], changes: Mapping[str, str | None]) -> None:
    """Sets cluster-wide defaults, and returns when every broker has them."""
    if changes.keys() & set(DEFAULTS.values()):  # defaults of topics, which the audit watches
        await IntentLog(watch.client).record(intents.config_change([EVERY_TOPIC], "roll"))
    results_or_raise(await configs.alter(watch.client, {configs.CLUSTER_DEFAULT: configs.changes(changes)}))
    expected = {name: value for name, value in changes.items() if value is not None}
    deadline = time.monotonic() + SETTING_SECONDS_MAX
    for broker in targets:
        resource = configs.broker(broker)
        while True:
            entries = (await configs.describe(watch.client, [resource], names=list(expected)))[resource]
            if isinstance(entries, PenstockError):
                raise entries
            different = {n: entries[n].value for n, v in expected.items() if n in entries}
            different = {n: actual for n, actual in different.items() if actual != expected[n]}
            if not different:
                break
            if time.monotonic() > deadline:
                key, actual = next(iter(different.items()))
                raise SettingNotApplied(broker=broker, key=key, actual=actual, expected=expected[key])
            await asyncio.sleep(ROUND_SECONDS)


async def raise_features(client: Client, image: MetadataImage) -> None:
    """Validated first, then all or none."""
    raises = feature_raises(image)
    require_all(raises)
    levels = {each.feature: each.level_max for each in raises if each.possible}
    if ELIGIBLE_LEADERS in levels:
        for broker in sorted(image.brokers):
            resource = configs.broker(broker)
            entries = (await configs.describe(client, [resource], names=[MIN_ISR]))[resource]
            if isinstance(entries, PenstockError):
                raise entries
            if MIN_ISR in entries and entries[MIN_ISR].source is configs.Source.BROKER_DYNAMIC:
                raise BrokerMinimumSet(broker=broker, feature=ELIGIBLE_LEADERS)
    if levels:
        await brokers.update_features(client, levels, validate_only=True)
        await brokers.update_features(client, levels)


def restart_seconds(registry: Registry, cluster: str) -> float:
    """Of one batch, by the times of this cluster's rolls."""
    rows = [row for roll in rolls.rolls_of(registry, cluster) for row in roll.nodes if row.led_ms]
    return median((row.led_ms - row.ordered_ms) / 1000 for row in rows) if rows else RESTART_SECONDS


def _with_phases(row: RolledNode, seen: ClusterSeen) -> RolledNode:
    node = seen.observation.nodes.get(row.id)
    if node is None:
        return row
    held = [p for p in seen.observation.partitions.values() if row.id in p.settled]
    ready = node.current and node.ready
    in_sync = ready and all(row.id in p.isr for p in held)
    demoted = row.id in seen.observation.demoted
    led = in_sync and (demoted or not any(p.returns_to(row.id) for p in held))
    stopped = not node.alive or node.current
    return rolls.with_phases(
        row,
        stopped=stopped, started=node.current, ready=ready, in_sync=in_sync, led=led, now_ms=_now_ms(),
    )  # fmt: skip


def _progress(roll: Roll) -> str:
    done = len(roll.scope) - roll.remaining
    return f"{done} of {counted(len(roll.scope), 'node')}"


def _named(nodes: tuple[int, ...]) -> str:
    return ("node " if len(nodes) == 1 else "nodes ") + ", ".join(map(str, nodes))


def _now_ms() -> int:
    return int(time.time() * 1000)
