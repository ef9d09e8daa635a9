"""Scrubs a cluster: reads every place of each partition, compares, and writes events and its position.

Events and the position that they reach are one transaction, so a scrub that was killed continues without gap
or repeat. Two at the same time are not possible: the later one fences the earlier.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from penstock.audit import topics as audit_topics
from penstock.audit.scrub.partition_scrub import PartitionScrub, Result
from penstock.audit.scrub.places import Place, ReplicaPlace, StorePlace
from penstock.audit.scrub.progress import PREFIX, Progress, in_order, is_due, progress_key
from penstock.audit.sweep import ANY_REPLICA, list_own_offsets
from penstock.audit.topic_ids import id_text
from penstock.backup.raw_fetch import LogId
from penstock.kafka.admin import configs, topics
from penstock.kafka.admin.offsets import NOT_A_REPLICA, IsolationLevel, OffsetSpec
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.partition_log import ProducerRecord, TransactionalProducer
from penstock.link.limits import RateLimit
from penstock.model import key_names
from penstock.model.durability import LogEvent, Scrubbed, What, members_of, partition_subject
from penstock.model.errors import PenstockError
from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from penstock.backup.archive import Archive
    from penstock.backup.chain import Chain
    from penstock.kafka.client import Client

TRANSACTIONAL_ID: Final = "_penstock.audit-scrub"
SOURCE: Final = "scrub"
BYTES_PER_SECOND: Final = 5_000_000
WITHIN_MS: Final = 7 * 24 * 3600 * 1000
CONFIGS_PER_CALL: Final = 200
CONFIGS: Final = ("cleanup.policy", "remote.storage.enable")

log = structlog.get_logger("penstock.audit")


@dataclass(frozen=True, slots=True)
class _Partition:
    log: LogId
    topic: str
    leader: int
    isr: tuple[int, ...]
    by_record: bool
    tiered: bool

    @property
    def key(self) -> bytes:
        return progress_key(id_text(self.log.topic_id), self.log.partition)

    @property
    def first(self) -> OffsetSpec:
        """Where a replica's local log starts."""
        return OffsetSpec.EARLIEST_LOCAL if self.tiered else OffsetSpec.EARLIEST

    @property
    def subject(self) -> str:
        return partition_subject(id_text(self.log.topic_id), self.log.partition)


class Scrubber:
    """Scrubs what is due in one cluster. `archives` are places beside the replicas, by name."""

    def __init__(
        self,
        cluster: str,
        client: Client,
        *,
        archives: Mapping[str, Archive] | None = None,
        bytes_per_second: float | None = BYTES_PER_SECOND,
        within_ms: int = WITHIN_MS,
        only: Collection[str] = (),
        report: Callable[[Result, int, int], None] = lambda *_: None,
    ) -> None:
        self.cluster = cluster
        self._client = client
        self._archives = archives or {}
        self._listed: dict[str, str] = {}  # by archive, the topic that it has listed
        self._rate = RateLimit(bytes_per_second)
        self._within_ms = within_ms
        self._only = only
        self._report = report
        self._producer = TransactionalProducer(client, TRANSACTIONAL_ID)
        self._sequence = 0
        self._time_ms = 0

    async def run(self) -> list[Result]:
        """One pass over every partition that is due."""
        await audit_topics.ensure_topics(self._client)
        await self._producer.init()
        stored = await audit_topics.read_compacted(self._client, audit_topics.STATE)
        known = {key: Progress.from_bytes(value) for key, value in stored.items() if key.startswith(PREFIX)}
        partitions = await self._partitions()
        await self._forget(known.keys() - partitions.keys())
        now_ms = self._now_ms()
        selected = {k for k, each in partitions.items() if not self._only or each.topic in self._only}
        due = in_order((k for k in selected if is_due(known.get(k), now_ms, self._within_ms)), known)
        results = []
        for number, key in enumerate(due):
            result = await self._scrub(partitions[key], known.get(key))
            results.append(result)
            self._report(result, number + 1, len(due))
        return results

    async def _partitions(self) -> dict[bytes, _Partition]:
        described = [
            each for each in (await topics.describe(self._client)).values() if isinstance(each, topics.Topic)
        ]
        resources = {configs.topic(each.name): each for each in described}
        values: dict[configs.Resource, dict[str, configs.Entry] | PenstockError] = {}
        every = list(resources)
        for at in range(0, len(every), CONFIGS_PER_CALL):
            some = every[at : at + CONFIGS_PER_CALL]
            values |= await configs.describe(self._client, some, names=CONFIGS)
        result = {}
        for resource, topic in resources.items():
            settings = values[resource]
            if isinstance(settings, PenstockError):
                continue  # deleted meanwhile
            compacted = "compact" in (settings["cleanup.policy"].value or "")
            tiered = settings["remote.storage.enable"].value == "true"
            for each in topic.partitions:
                one = _Partition(
                    LogId(topic.id, each.index), topic.name, each.leader, each.isr, compacted, tiered
                )
                result[one.key] = one
        return result

    async def _forget(self, keys: Iterable[bytes]) -> None:
        """Topics that exist no more."""
        records = [ProducerRecord(audit_topics.STATE, key, None) for key in sorted(keys)]
        if records:
            await self._producer.commit(records)

    async def _scrub(self, partition: _Partition, progress: Progress | None) -> Result:
        result = Result(partition.topic, partition.log.partition)
        places = await self._places(partition, result)
        if progress is None or progress.finished:
            progress = Progress(self._now_ms(), min((each.first for each in places), default=0))
        end = max((each.end for each in places if isinstance(each, ReplicaPlace)), default=0)
        host = _Host(self, partition)
        await PartitionScrub(host, progress, places, end, result, partition.by_record).run()
        return result

    async def _places(self, partition: _Partition, result: Result) -> list[Place]:
        """The replicas in the ISR, from their local start to the high watermark, and the stores."""
        brokers = sorted(each for each in partition.isr if not is_shadow(each))
        end = await self._own_offset(partition, partition.leader, OffsetSpec.LATEST, NOT_A_REPLICA)
        starts = await asyncio.gather(
            *(self._own_offset(partition, each, partition.first, ANY_REPLICA) for each in brokers)
        )
        places: list[Place] = []
        for broker, start in zip(brokers, starts):
            if start is None or end is None:
                result.left_out.add(f"broker {broker}")
                continue
            places.append(ReplicaPlace(self._client, broker, partition.log, start, end, partition.by_record))
        topic_id = id_text(partition.log.topic_id)
        local_start = min((each.first for each in places), default=0)
        for name, archive in self._archives.items():
            try:
                chain = await self._chain(name, archive, topic_id, partition.log.partition, local_start)
            except PenstockError as error:
                log.warning("object store not read", store=name, **{key_names.ERROR: str(error)})
                result.left_out.add(name)
                continue
            if chain.pieces and not any(each.manifest.encryption for each in chain.pieces):
                places.append(StorePlace(name, archive, chain, partition.by_record))
        return places

    async def _chain(
        self, name: str, archive: Archive, topic_id: str, partition: int, local_start: int
    ) -> Chain:
        """The segments of a partition. A topic is listed once, and again if brokers have deleted meanwhile
        what was not in the store at that time."""
        if self._listed.get(name) != topic_id:
            await archive.load(topic_id)
            self._listed[name] = topic_id
        chain = await archive.chain(topic_id, partition)
        if chain.pieces and chain.end < local_start:
            await archive.load(topic_id)
            chain = await archive.chain(topic_id, partition)
        return chain

    async def _own_offset(
        self, partition: _Partition, broker: int, spec: OffsetSpec, replica: int
    ) -> int | None:
        place = TopicPartition(partition.topic, partition.log.partition)
        try:
            listed = await list_own_offsets(
                self._client, broker, [place], spec, replica=replica,
                isolation=IsolationLevel.READ_UNCOMMITTED,
            )  # fmt: skip
        except PenstockError:
            return None
        return listed[place][0] if place in listed else None

    async def update_starts(self, partition: _Partition, places: Sequence[Place]) -> None:
        """Retention or a client has deleted something."""
        for place in places:
            if isinstance(place, ReplicaPlace):
                start = await self._own_offset(partition, place.broker, partition.first, ANY_REPLICA)
                if start is not None:
                    place.first = start

    async def spend(self, size: int) -> None:
        """Wait until the rate allows another read."""
        now = time.monotonic()
        self._rate.spend(size, now)
        if (pause := self._rate.wait_seconds(now)) > 0:
            await asyncio.sleep(pause)

    async def commit(
        self, partition: _Partition, rows: Iterable[Scrubbed], run: int, progress: Progress
    ) -> None:
        records = []
        for row in rows:
            self._sequence = max(self._sequence + 1, time.time_ns())
            event = LogEvent(
                self.cluster, partition.subject, SOURCE, self._sequence, self._later_ms(), What.SCRUBBED,
                members_of(replace(row, run=run)),
            )  # fmt: skip
            where = audit_topics.durability_partition(event.key)
            records.append(ProducerRecord(where, event.key, event.to_bytes()))
        records.append(ProducerRecord(audit_topics.STATE, partition.key, progress.to_bytes()))
        await self._producer.commit(records)

    def _now_ms(self) -> int:
        self._time_ms = max(self._time_ms, int(time.time() * 1000))
        return self._time_ms

    def _later_ms(self) -> int:
        """A different time for each event: of two findings with one id the later one is more complete."""
        self._time_ms = max(self._time_ms + 1, int(time.time() * 1000))
        return self._time_ms


@dataclass(frozen=True, slots=True)
class _Host:
    """The scrub of a cluster as the scrub of one partition needs it."""

    scrubber: Scrubber
    partition: _Partition

    async def spend(self, size: int) -> None:
        await self.scrubber.spend(size)

    async def update_starts(self, places: Sequence[Place]) -> None:
        await self.scrubber.update_starts(self.partition, places)

    async def commit(self, rows: Sequence[Scrubbed], run: int, progress: Progress) -> None:
        await self.scrubber.commit(self.partition, rows, run, progress)
