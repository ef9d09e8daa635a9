"""Moves a tenant's partitions to another cell of a running cluster, while its clients keep working.

    async with Client(bootstrap, security) as client:
        await move_tenant(client, Target(tenant, brokers), rate=50e6, report=print)

Each round observes the cluster, lets `move_plan.next_step` decide, and acts. After a crash, calling it
again resumes the move; calling it for a tenant that has already moved changes nothing. Run one move
at a time on a cluster: two would remove each other's throttles. Consumer offsets and transaction
state do not move, because they are in the cluster's internal topics, on brokers of any cell.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.balance.move_plan import (
    Done,
    ElectLeaders,
    PartitionState,
    StartBatch,
    Wait,
    next_step,
    progress,
    straddles,
)
from penstock.balance.replication_throttle import remove_throttles, set_throttles
from penstock.kafka.admin import log_dirs, reassignments, topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.model.errors import PenstockError
from penstock.model.errors.balance import MoveStalled
from penstock.model.fault_points import declare, reach
from penstock.model.ids import BrokerId, tenant_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.balance.move_plan import Progress, Step, Target
    from penstock.kafka.client import Client

POLL_SECONDS: Final = 0.5  # between two observations of a running batch
SIZES_SECONDS_MAX: Final = 5.0  # a broker that does not report its sizes by then is skipped
SETTLE_SECONDS: Final = 5.0
STALLED_SECONDS: Final = 600.0  # without another partition or byte copied
RATE_DEFAULT: Final = 50e6  # bytes a second that one broker sends or receives for the move

THROTTLED: Final = declare("balance.move.throttled", "throttles are set, no partition of the batch moves yet")
STARTED: Final = declare("balance.move.started", "a batch is being copied")
PLACED: Final = declare("balance.move.placed", "all partitions are in place, throttles still set")


async def move_tenant(
    client: Client,
    target: Target,
    *,
    rate: float = RATE_DEFAULT,
    report: Callable[[Progress], None] = lambda _: None,
    poll_seconds: float = POLL_SECONDS,
    stalled_seconds: float = STALLED_SECONDS,
) -> Progress:
    """Returns when every partition of the tenant is in the target cell, led there, unthrottled."""
    reported: Progress | None = None
    last_change = time.monotonic()
    settling = _SettlingReassignments(target)
    while True:
        observed, alive = await observe(client, target)
        partitions = settling.mark(observed, time.monotonic())
        step = next_step(partitions, target, alive)
        now = progress(partitions, target, await _copied(client, partitions, target))
        if now != reported:
            reported, last_change = now, time.monotonic()
            report(now)
        if isinstance(step, Done):
            reach(PLACED)
            topic_names = sorted({each.partition[0] for each in partitions})
            await remove_throttles(client, topic_names, sorted(map(int, alive)))
            return now
        if time.monotonic() - last_change > stalled_seconds:
            raise MoveStalled(tenant=target.tenant, seconds=stalled_seconds, reason=_stall_reason(step))
        await _act(client, step, rate)
        if not isinstance(step, StartBatch):
            await asyncio.sleep(poll_seconds)


async def observe(client: Client, target: Target) -> tuple[list[PartitionState], set[BrokerId]]:
    """The tenant's partitions as they are, and which brokers are alive."""
    prefix = tenant_prefix(target.tenant)
    cluster = await client.cluster(refresh=True)
    before = await reassignments.under_way(client)
    described = results_or_raise(await topics.describe(client))
    tenant_topics = {name: topic for name, topic in described.items() if name.startswith(prefix)}
    names = [TopicPartition(name, p.index) for name, topic in tenant_topics.items() for p in topic.partitions]
    # Listed before and after: a topic description does not show whether a reassignment is running.
    moving = before | (await reassignments.under_way(client))
    sizes = await _sizes(client, names)
    partitions = []
    for name, topic in tenant_topics.items():
        for p in topic.partitions:
            key = TopicPartition(name, p.index)
            reassignment = moving.get(key)
            # During a reassignment Kafka lists old and new replicas, those that leave last.
            replicas = [r for r in p.replicas if reassignment is None or r not in reassignment.removing]
            partitions.append(
                PartitionState(
                    partition=key,
                    replicas=tuple(BrokerId(r) for r in replicas or p.replicas),
                    leader=BrokerId(p.leader) if p.leader >= 0 else None,
                    size_bytes=max(sizes.get(key, {}).values(), default=0),
                    reassigning=reassignment is not None,
                )
            )
    return partitions, {BrokerId(node) for node in cluster.nodes}


class _SettlingReassignments:
    """Brokers learn of the end of a reassignment later than the controller.

    A partition that straddles two cells without a listed reassignment counts as reassigning until it
    has looked the same for `SETTLE_SECONDS`.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._since: dict[tuple[str, int], tuple[tuple[BrokerId, ...], float]] = {}

    def mark(self, partitions: list[PartitionState], now: float) -> list[PartitionState]:
        return [
            replace(each, reassigning=each.reassigning or self._unsettled(each, now)) for each in partitions
        ]

    def _unsettled(self, each: PartitionState, now: float) -> bool:
        if each.reassigning or not straddles(each, self._target):
            self._since.pop(each.partition, None)
            return False
        replicas, since = self._since.get(each.partition, ((), now))
        if replicas != each.replicas:
            since = now
        self._since[each.partition] = (each.replicas, since)
        return now - since < SETTLE_SECONDS


async def _act(client: Client, step: Step, rate: float) -> None:
    if isinstance(step, StartBatch):
        await set_throttles(client, step.batch, rate)
        reach(THROTTLED)
        targets = {TopicPartition(*each.partition): list(each.target) for each in step.batch}
        results_or_raise(await reassignments.alter(client, targets, allow_replication_factor_change=False))
        reach(STARTED)
    elif isinstance(step, ElectLeaders):
        # A replica that cannot lead yet is elected in a later poll.
        await reassignments.elect(client, [TopicPartition(*each) for each in step.partitions])


async def _copied(
    client: Client, partitions: list[PartitionState], target: Target
) -> Mapping[tuple[str, int], int]:
    """Bytes that the slowest new replica has, for each partition being reassigned."""
    moving = {TopicPartition(*each.partition): each for each in partitions if each.reassigning}
    if not moving:
        return {}
    sizes = await _sizes(client, list(moving), [broker.id for broker in target.brokers])
    return {
        key: min(sizes.get(key, {}).get(replica, 0) for replica in each.replicas)
        for key, each in moving.items()
    }


async def _sizes(
    client: Client, partitions: list[TopicPartition], brokers: list[BrokerId] | None = None
) -> dict[TopicPartition, dict[int, int]]:
    """Bytes by partition and broker. Brokers that do not respond are left out."""
    if not partitions:
        return {}
    queried = list(brokers) if brokers is not None else list((await client.cluster()).nodes)
    describe = partial(log_dirs.describe, client, partitions=partitions, timeout=SIZES_SECONDS_MAX)
    responses = await asyncio.gather(*(describe([each]) for each in queried), return_exceptions=True)
    sizes: dict[TopicPartition, dict[int, int]] = {}
    for broker, response in zip(queried, responses):
        if isinstance(response, PenstockError) and response.retriable:
            continue
        if isinstance(response, BaseException):
            raise response
        for directory in response[broker]:
            for key, replica in directory.replicas.items():
                sizes.setdefault(key, {})[broker] = replica.size_bytes
    return sizes


def _stall_reason(step: Step) -> str:
    match step:
        case Wait(reason):
            return reason
        case ElectLeaders(partitions):
            return f"{len(partitions)} partitions are not led by their preferred leader"
        case _:
            return "the cluster accepts reassignments but does not start them"
