"""Reads each replica's own positions: log start, local start, tier, size, end.

ListOffsets with replica id -2 is served by every replica from its own log. The positions of one replica are
read in an order in which a sound log never looks unsound: of two that may only rise, the lower one first. For
each leader the sweep also looks up a record that time retention must keep for some time to come.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.kafka.admin import log_dirs
from penstock.kafka.admin.offsets import NOT_A_REPLICA, IsolationLevel, OffsetSpec
from penstock.kafka.admin.partitions import TopicPartition, partition_responses, with_fields
from penstock.kafka.routing import NodeWithId
from penstock.model.durability import UNKNOWN, UNLIMITED, Broker, Replica, partition_subject
from penstock.model.errors import PenstockError
from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from penstock.audit.metadata_history import MetadataHistory, Observation
    from penstock.kafka.client import Client
    from penstock.model.durability import Policy

ANY_REPLICA: Final = -2
PARTITIONS_PER_REQUEST: Final = 2_000
AHEAD_MS_MAX: Final = 130 * 60 * 1000  # how long in advance a record that must be kept is known
REPEAT_MS: Final = 60 * 60 * 1000  # an unchanged replica is reported this often
SWEEP_LANE: Final = "audit sweep"
BROKER_SECONDS_MAX: Final = 20.0  # of one sweep
HANGS_SECONDS: Final = 2.0  # a broker that takes longer to fail is left out next time
REST_SECONDS: Final = 30.0  # for so long

Key = tuple[str, int]  # topic id, partition


class LogRange(NamedTuple):
    start: int
    end: int


@dataclass(slots=True)
class Sweeper:
    """What was last reported of each replica, and what the last sweep of all brokers has read of leaders."""

    reported: dict[tuple[Key, int], tuple[int, Replica]] = field(default_factory=dict)  # by key and broker
    settled: set[tuple[Key, int]] = field(default_factory=set)  # reported again after its last change
    sampled: dict[Key, int] = field(default_factory=dict)  # when what must be kept was last read
    unseen: tuple[str, ...] = ()  # partitions with a leader, and without any replica that responded
    failures: dict[int, str] = field(default_factory=dict)  # by broker
    rests_until: dict[int, float] = field(default_factory=dict)  # brokers that hung, monotonic
    sweeps: int = 0  # of all brokers
    ranges: dict[Key, LogRange] = field(default_factory=dict)  # of leaders that responded to the last one

    async def sweep(
        self,
        client: Client,
        history: MetadataHistory,
        now_ms: int,
        *,
        brokers: Collection[int] | None = None,
        recheck: Collection[str] = (),
    ) -> list[Observation]:
        """What changed since the last sweep; `recheck` are subjects to report in any case."""
        # A shadow stores nothing, and passes requests about logs on to a real broker.
        chosen = sorted(b for b in (history.brokers if brokers is None else brokers) if not is_shadow(b))
        if brokers is None:  # else they have just registered
            chosen = [b for b in chosen if self.rests_until.get(b, 0.0) <= time.monotonic()]
        swept = await asyncio.gather(*(self._broker(client, history, each, now_ms) for each in chosen))
        observations: list[Observation] = []
        seen: set[Key] = set()
        for broker, (replicas, offline) in zip(chosen, swept):
            seen.update(replicas)
            if offline:
                observations.append((f"broker/{broker}", Broker(tuple(offline), history.brokers[broker])))
            for key, replica in replicas.items():
                if self._is_due(key, replica, history, now_ms, partition_subject(*key) in recheck):
                    observations.append((partition_subject(*key), replica))
        if brokers is None:
            self._forget(history)
            self.sweeps += 1
            self.ranges = {
                key: LogRange(replica.start, replica.end)
                for broker, (replicas, _) in zip(chosen, swept)
                for key, replica in replicas.items()
                if history.partitions[key].leader == broker
            }
            # One without a leader has no live replica that could respond, as while its only broker restarts.
            self.unseen = tuple(
                partition_subject(*key)
                for key, each in history.partitions.items()
                if key not in seen and each.leader != UNKNOWN
            )
        return observations

    def _is_due(
        self, key: Key, replica: Replica, history: MetadataHistory, now_ms: int, rechecked: bool
    ) -> bool:
        place = (key, replica.broker)
        last = self.reported.get(place)
        policy = history.policy(history.partitions[key].topic)
        period_ms = min(REPEAT_MS, ahead_ms(policy) // 2 or REPEAT_MS)
        changed = last is None or _bare(last[1]) != _bare(replica)
        settles = not changed and place not in self.settled
        due = changed or settles or rechecked or last is None or now_ms - last[0] >= period_ms
        if due:
            self.reported[place] = (now_ms, replica)
        (self.settled.discard if changed else self.settled.add)(place)
        return due

    def _forget(self, history: MetadataHistory) -> None:
        for place in [each for each in self.reported if each[0] not in history.partitions]:
            del self.reported[place]
            self.settled.discard(place)
        for key in [each for each in self.sampled if each not in history.partitions]:
            del self.sampled[key]

    async def _broker(
        self, client: Client, history: MetadataHistory, broker: int, now_ms: int
    ) -> tuple[dict[Key, Replica], list[str]]:
        """One broker's replicas. One that hangs delays the others once, and is left out for a while."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(BROKER_SECONDS_MAX):
                positions = await _positions(client, history, broker, self._samples(history, broker, now_ms))
        except (PenstockError, TimeoutError) as failure:
            self.failures[broker] = str(failure) or f"no response in {BROKER_SECONDS_MAX:g} s"
            if time.monotonic() - began > HANGS_SECONDS:
                self.rests_until[broker] = time.monotonic() + REST_SECONDS
            return {}, []
        self.rests_until.pop(broker, None)
        self.failures.pop(broker, None)
        replicas, offline = positions
        for key, replica in replicas.items():
            if replica.kept_offset != UNKNOWN:
                self.sampled[key] = now_ms
        return replicas, offline

    def _samples(self, history: MetadataHistory, broker: int, now_ms: int) -> dict[Key, tuple[int, int, int]]:
        """By partition that the broker leads: time to look up, until when it is valid, and retention.ms."""
        result = {}
        for key, placement in history.replicas_of(broker).items():
            policy = history.policy(placement.topic)
            ahead = ahead_ms(policy)
            stale = now_ms - self.sampled.get(key, 0) >= ahead // 4
            if placement.leader == broker and ahead and stale:
                until_ms = now_ms + ahead
                result[key] = (until_ms - policy.retention_ms, until_ms, policy.retention_ms)
        return result


def ahead_ms(policy: Policy) -> int:
    """How long in advance a record that time retention must keep is worth knowing; 0: not at all."""
    if policy.retention_ms == UNLIMITED or not policy.deletes or policy.compacts:
        return 0
    return min(AHEAD_MS_MAX, policy.retention_ms // 4)


def _bare(replica: Replica) -> Replica:
    return replace(replica, kept_offset=UNKNOWN, kept_until_ms=UNKNOWN, kept_retention_ms=UNKNOWN)


async def _positions(
    client: Client, history: MetadataHistory, broker: int, samples: Mapping[Key, tuple[int, int, int]]
) -> tuple[dict[Key, Replica], list[str]]:
    placements = history.replicas_of(broker)
    keys = {TopicPartition(each.topic, key[1]): key for key, each in placements.items()}
    tiered = {each for each, key in keys.items() if history.policy(placements[key].topic).tiered}
    led = {each for each, key in keys.items() if placements[key].leader == broker}

    async def listed(
        of: Collection[TopicPartition],
        spec: Callable[[TopicPartition], int] | OffsetSpec,
        *,
        replica: int = ANY_REPLICA,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, tuple[int, int]]:
        return await list_own_offsets(client, broker, of, spec, replica=replica, isolation=isolation)

    at = {each: samples[key][0] for each, key in keys.items() if key in samples}
    kept = await listed(at, lambda each: at[each], replica=NOT_A_REPLICA)
    starts = await listed(keys, OffsetSpec.EARLIEST)
    local = await listed(tiered, OffsetSpec.EARLIEST_LOCAL)
    last_tiered = await listed(tiered & led, OffsetSpec.LATEST_TIERED)
    pending = await listed(tiered & led, OffsetSpec.EARLIEST_PENDING_UPLOAD)
    sizes, offline = await _sizes(client, broker)
    committed = IsolationLevel.READ_COMMITTED
    stable = await listed(led, OffsetSpec.LATEST, replica=NOT_A_REPLICA, isolation=committed)
    watermarks = await listed(led, OffsetSpec.LATEST, replica=NOT_A_REPLICA)
    ends = await listed(keys, OffsetSpec.LATEST)
    result = {}
    for each, key in keys.items():
        if each not in starts or each not in ends:
            continue
        _, until_ms, retention_ms = samples.get(key, (0, UNKNOWN, UNKNOWN))
        kept_offset = kept.get(each, (UNKNOWN, UNKNOWN))[0]
        result[key] = Replica(
            broker,
            starts[each][0],
            ends[each][0],
            local_start=local.get(each, (UNKNOWN, UNKNOWN))[0],
            tiered=last_tiered.get(each, (UNKNOWN, UNKNOWN))[0],
            pending=pending.get(each, (UNKNOWN, UNKNOWN))[0],
            stable=stable.get(each, (UNKNOWN, UNKNOWN))[0],
            high_watermark=watermarks.get(each, (UNKNOWN, UNKNOWN))[0],
            size=sizes.get(each, UNKNOWN),
            end_epoch=ends[each][1],
            kept_offset=kept_offset,
            kept_until_ms=UNKNOWN if kept_offset == UNKNOWN else until_ms,
            kept_retention_ms=UNKNOWN if kept_offset == UNKNOWN else retention_ms,
        )
    return result, offline


async def list_own_offsets(
    client: Client,
    broker: int,
    of: Collection[TopicPartition],
    spec: Callable[[TopicPartition], int] | OffsetSpec,
    *,
    replica: int,
    isolation: IsolationLevel,
) -> dict[TopicPartition, tuple[int, int]]:
    """Offset and leader epoch by partition; without those that the broker refuses."""
    result: dict[TopicPartition, tuple[int, int]] = {}
    ordered = sorted(of)
    for start in range(0, len(ordered), PARTITIONS_PER_REQUEST):
        some = ordered[start : start + PARTITIONS_PER_REQUEST]
        fields: dict[TopicPartition, dict[str, Any]] = {
            each: {"Timestamp": int(spec) if isinstance(spec, OffsetSpec) else spec(each)} for each in some
        }
        body = {"ReplicaId": replica, "IsolationLevel": isolation, "Topics": with_fields(fields)}
        response = await client.call("ListOffsets", body, to=NodeWithId(broker), lane=SWEEP_LANE)
        for key, error, _, p in partition_responses(response):
            if not error:
                result[key] = (p["Offset"], p.get("LeaderEpoch", UNKNOWN))
    return result


async def _sizes(client: Client, broker: int) -> tuple[dict[TopicPartition, int], list[str]]:
    """Bytes by partition, and the directories that are offline."""
    directories = (await log_dirs.describe(client, [broker]))[broker]
    sizes = {
        key: each.size_bytes
        for directory in directories
        for key, each in directory.replicas.items()
        if not each.is_future
    }
    return sizes, [each.path for each in directories if each.error is not None]
