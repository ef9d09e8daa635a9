"""Mirrors the partitions of a link: from the source's log, through the shadow, to real brokers.

A problem belongs to the partition that has it: that one stops with a reason, the others continue.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import structlog

from penstock.audit import intents
from penstock.kafka.admin import topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.metadata_image import PartitionId
from penstock.link import mirror_topics, source
from penstock.link.group_sync import MirrorRange
from penstock.link.held_starts import check_rise
from penstock.link.limits import RateLimit
from penstock.link.lineage import Lineage, has_diverged, lineage_of
from penstock.link.mirror_partition import (
    MirrorPartition,
    diverged_at,
    new_epoch_for,
    replica_range,
    unrecorded_at,
)
from penstock.link.mirrored_batches import checked, runs_of_epochs, starts_above
from penstock.link.placement import mirror_assignment
from penstock.link.source import NO_ID
from penstock.model.errors import PenstockError
from penstock.model.errors.link import LinkStateLost, MirrorTopicTaken, SourceDiverged, SourceUnusable
from penstock.model.errors.shadow import PartitionNotLed
from penstock.model.fault_points import declare, reach
from penstock.model.shadow_ids import is_shadow
from penstock.shadow.partition import LedPartition, RawBatch
from penstock.shadow.responses import Truncation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.audit.intents import IntentLog
    from penstock.kafka.client import Client
    from penstock.link.mirrored_batches import SourceBatch
    from penstock.shadow.broker import ShadowBroker
    from penstock.shadow.producer_ids import ProducerIds

IDLE_SECONDS: Final = 0.05
REST_SECONDS: Final = 1.0  # after a broker of the source was not reached
ATTACH_SECONDS_MAX: Final = 60.0
ATTACHED_AT_ONCE_MAX: Final = 20
START_CHECK_SECONDS: Final = 5.0  # between looks whether a log start may rise
WINDOWS_BYTES_MAX: Final = 256 << 20  # of all partitions together

TOPIC_CREATED: Final = declare("link.topic.created", "a mirror topic exists, and is closed for writes")
LINEAGE_WRITTEN: Final = declare(
    "link.lineage.written", "an epoch is recorded, and none of its records served"
)
FETCHED: Final = declare("link.fetched", "records are in the window, and on no replica")
TRUNCATION_WRITTEN: Final = declare(
    "link.truncation.written", "a truncation is recorded, and no replica has truncated"
)

log = structlog.get_logger()


@dataclass(slots=True)
class Mirror:
    link: str
    shadow: ShadowBroker
    client: Client  # of the source
    brokers: Client  # of the destination
    lineages: dict[str, dict[str, Any]]  # by `<topic>/<partition>`, as stored
    write_lineage: Callable[[TopicPartition, Lineage], Awaitable[None]]
    producer_ids: ProducerIds
    intents: IntentLog  # of the destination
    partitions: dict[TopicPartition, MirrorPartition] = field(default_factory=dict)
    unattached: dict[TopicPartition, str] = field(default_factory=dict)  # why they were never attached
    topic_ids: dict[str, str] = field(default_factory=dict)  # of the source
    rate: RateLimit = field(default_factory=RateLimit)
    hold_starts: bool = False  # follow the source's log start only as far as its retention explains it
    held: str = ""  # why nothing is fetched: a disk of the destination is full
    truncations: int = 0  # after the source has truncated
    guarded_before: int = 0  # responses withheld in earlier terms
    _leaders: dict[TopicPartition, int] = field(default_factory=dict)
    _rounds: dict[int, asyncio.Task[None]] = field(default_factory=dict)  # broker of the source → its fetch
    # In a fetch under way: when a leader moves, two brokers must not give the same records.
    _fetching: set[TopicPartition] = field(default_factory=set)
    _attachments: dict[TopicPartition, asyncio.Task[None]] = field(default_factory=dict)  # after truncations
    _leaders_at: float = -math.inf  # monotonic; when they were last read
    _locks: dict[TopicPartition, asyncio.Lock] = field(default_factory=dict)
    _turn: int = 0  # which partition comes first in the next fetch

    @property
    def ranges(self) -> dict[TopicPartition, MirrorRange]:
        """Of partitions whose high watermark is known: the shadow leads them."""
        return {
            place: MirrorRange(one.led.start, one.led.high_watermark)
            for place, one in self.partitions.items()
            if one.is_ready
        }

    @property
    def guarded_refusals(self) -> int:
        return self.guarded_before + sum(one.led.guarded for one in self.partitions.values())

    async def add_topic(self, name: str, described: topics.Topic) -> None:
        """Create the mirror if it does not exist, follow added partitions, and lead them."""
        known = self.topic_ids.setdefault(name, str(described.id))
        if known != str(described.id):
            self.fail_topic(name, f"the topic was deleted and created again as {described.id}")
            return
        count = len(described.partitions)
        existing = self.shadow.image.partitions_of(name)
        if any(self.shadow.id not in one.replicas for one in existing.values()):
            raise MirrorTopicTaken(topic=name)  # the mirror was deleted, and another topic has its name
        here = len(existing)
        if not here:
            await mirror_topics.close(self.brokers, [name])
            values = await mirror_topics.source_configs(self.client, name)
            await self.intents.record(intents.topic_restore(name, f"link {self.link}"))
            await mirror_topics.create_mirror(self.brokers, name, self._assignment(count), values)
            reach(TOPIC_CREATED)
        elif here < count:
            added = {name: [self._assignment(count)[index] for index in range(here, count)]}
            results_or_raise(await topics.add_partitions(self.brokers, {name: count}, replicas=added))
        await self._wait_for(name, count)
        new = [TopicPartition(name, index) for index in range(count)]
        await self._attach_all([place for place in new if place not in self.partitions])

    def forget_topic(self, name: str) -> None:
        for place in [place for place in self.partitions if place.topic == name]:
            self.shadow.forget(self.partitions.pop(place).led.id)
        self.unattached = {place: why for place, why in self.unattached.items() if place.topic != name}
        self.topic_ids.pop(name, None)

    async def regain(self) -> None:
        """Lead again what a real broker leads since the shadow was away, or what an attempt left unserved."""
        if self.shadow.is_stepping_down:
            return
        lost, unverified = [], []
        for place, one in self.partitions.items():
            state = self.shadow.image.partitions.get(one.led.id)
            if state is None:
                one.failed = "the mirror was deleted"
            elif self.shadow.session.fenced or self._attaching(place).locked():
                continue
            elif state.leader != self.shadow.id or self.shadow.led(one.led.id) is not one.led:
                log.warning("partition lost", partition=str(place), leader=state.leader)
                lost.append(place)
            elif one.unverified and not one.failed:
                unverified.append(place)
        await self._attach_all(lost)
        await self._attach_all(unverified, self._verify)

    async def settle_truncations(self) -> None:
        """Record truncations that every in-sync replica has carried out."""
        for one in list(self.partitions.values()):
            if one.led.finish_truncation():
                one.lineage = one.lineage.settled(one.led.truncation)
                await self.write_lineage(one.place, one.lineage)

    async def fetch_once(self) -> None:
        """Start a fetch from every broker of the source that has none under way, and wait for one."""
        for place in [place for place, task in self._attachments.items() if task.done()]:
            self._attachments.pop(place).result()
        await self.settle_truncations()
        due = [p for p, one in self.partitions.items() if one.is_due and p not in self._fetching]
        windows = sum(one.led.window.size for one in self.partitions.values())
        limited = self.rate.wait_seconds(time.monotonic())
        if not due or windows > WINDOWS_BYTES_MAX or limited or self.held:
            await asyncio.sleep(min(REST_SECONDS, limited) or IDLE_SECONDS)
            return
        try:
            await self._find_leaders(due)
        except PenstockError as error:
            log.warning("source not reached", error=str(error))
            await asyncio.sleep(REST_SECONDS)
            return
        self._turn += 1  # a broker fills a response from its first partition on
        turn = self._turn % len(due)
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for place in due[turn:] + due[:turn]:
            leader = self._leaders.get(place, -1)
            if leader >= 0 and leader not in self._rounds:
                by_leader.setdefault(leader, {})[place] = self.partitions[place].led.end
        for leader, positions in by_leader.items():
            self._fetching |= positions.keys()
            self._rounds[leader] = asyncio.create_task(self._fetch_round(leader, positions))
        await self._finish_rounds()

    async def close(self) -> None:
        """End the fetches under way."""
        tasks = [*self._rounds.values(), *self._attachments.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _finish_rounds(self) -> None:
        """Wait for one broker of the source: one that hangs does not delay the others."""
        if not self._rounds:
            await asyncio.sleep(IDLE_SECONDS)
            return
        done, _ = await asyncio.wait(
            self._rounds.values(), timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        self._rounds = {leader: task for leader, task in self._rounds.items() if task not in done}
        for task in done:
            task.result()

    def progress(self) -> dict[str, dict[str, Any]]:
        unknown = {"end": -1, "source_end": -1, "lag": None, "truncating": False}
        return {str(place): {**unknown, "failed": why} for place, why in sorted(self.unattached.items())} | {
            str(place): {
                "end": one.led.end,
                "source_end": one.source_end,
                "lag": one.lag,
                "failed": one.failed or one.unverified,
                "truncating": one.led.truncating,
            }
            for place, one in sorted(self.partitions.items())
        }

    def fail_topic(self, name: str, reason: str) -> None:
        for place, one in self.partitions.items():
            if place.topic == name and not one.failed:
                self._fail(one, reason)

    def _fail(self, one: MirrorPartition, reason: str) -> None:
        one.failed = reason
        log.error("mirror stopped", partition=str(one.place), reason=reason)

    async def _find_leaders(self, due: Sequence[TopicPartition]) -> None:
        """Read them again, now and then, while one is not known: a partition may have none for a while."""
        now = time.monotonic()
        if any(self._leaders.get(place, -1) < 0 for place in due) and now - self._leaders_at > REST_SECONDS:
            self._leaders_at = now
            leaders = await self.client.leaders(sorted({place.topic for place in due}), strict=False)
            self._leaders |= {TopicPartition(*key): leader for key, leader in leaders.items()}

    async def _fetch_round(self, leader: int, positions: dict[TopicPartition, int]) -> None:
        try:
            await self._fetch_from(leader, positions)
        finally:
            self._fetching -= positions.keys()

    async def _fetch_from(self, leader: int, positions: dict[TopicPartition, int]) -> None:
        ids = {place.topic: UUID(self.topic_ids[place.topic]) for place in positions}
        try:
            fetched = await source.fetch(self.client, leader, positions, ids=ids)
        except PenstockError as error:
            log.warning("source not fetched", broker=leader, error=str(error))
            self._leaders.clear()
            await asyncio.sleep(REST_SECONDS)
            return
        self.rate.spend(sum(len(one.data) for one in fetched.values()), time.monotonic())
        for place in positions:
            one = self.partitions.get(place)
            if place not in fetched or one is None:
                self._leaders.pop(place, None)
                continue
            try:
                await self._mirror(one, fetched[place], positions[place])
            except LinkStateLost:
                raise
            except SourceDiverged as error:
                log.warning("source has truncated", partition=str(place), reason=error.message)
                if place not in self._attachments:  # apart: others of this broker are mirrored meanwhile
                    self._attachments[place] = asyncio.create_task(self._attach_again(place))
            except SourceUnusable as error:
                self._fail(one, error.message)
            except PenstockError as error:
                log.info("fetched records dropped", partition=str(place), error=str(error))

    async def _mirror(self, one: MirrorPartition, fetched: source.Fetched, position: int) -> None:
        if one.led.end != position:
            return  # attached again meanwhile
        if fetched.out_of_range:
            start, _ = await source.log_range(self.client, one.place)
            if position < start:
                raise starts_above(position, start)
            # It ended below; it may have grown again since, so only its epochs show where both agree.
            raise SourceDiverged(partition=one.place, end=position)
        last = one.lineage.source_epoch_at(position)
        batches = checked(fetched.data, position, last)
        if batches and last >= 0 and batches[0].epoch != last:
            there = await source.epoch_end(self.client, one.place, last)
            if has_diverged(position, there, last):
                raise SourceDiverged(partition=one.place, end=position)
        one.source_end = fetched.high_watermark
        await self._append(one, batches)
        await self._follow_start(one, fetched.start)

    async def _follow_start(self, one: MirrorPartition, start: int) -> None:
        """Start where the source does. Replicas delete what is before, so the audit learns of it first."""
        target = min(start, one.led.high_watermark)
        if target <= one.led.start:
            return
        actor = f"link {self.link}"
        try:
            if self.hold_starts and target > one.accepted_start and not await self._may_rise(one, target):
                return
            await self.intents.record(
                intents.log_start(one.led.id.topic_id, one.place.partition, target, actor)
            )
        except PenstockError as error:  # the next fetch tries again
            log.warning("log start not followed", partition=str(one.place), error=str(error))
            return
        one.led.raise_start(target)

    async def _may_rise(self, one: MirrorPartition, target: int) -> bool:
        """Whether the log start may rise as far; a partition whose start may not has stopped."""
        now = time.monotonic()
        if now - one.start_checked_at < START_CHECK_SECONDS:
            return False
        one.start_checked_at = now
        reason = await check_rise(self.client, self._leaders.get(one.place, -1), self.shadow, one, target)
        if reason:
            one.held_start = target
            self._fail(one, reason)
        return not reason

    def accept_starts(self) -> None:
        """The operator has seen why partitions have stopped: they follow their source's log start."""
        for one in self.partitions.values():
            if one.held_start is not None:
                one.accepted_start, one.held_start, one.failed = one.held_start, None, ""

    async def _append(self, one: MirrorPartition, batches: Sequence[SourceBatch]) -> None:
        term = one.led.leader_epoch
        for epoch, run in runs_of_epochs(batches):
            if term < 0 or self.partitions.get(one.place) is not one:
                raise PartitionNotLed(partition=one.place, epoch=term)  # its lineage is another one's now
            if not one.lineage.continues(epoch, term):
                start = max(one.led.end, run[0].base_offset)
                lineage = one.lineage.pruned(one.led.start).extended(start, epoch, term)
                await self.write_lineage(one.place, lineage)
                reach(LINEAGE_WRITTEN)
                one.lineage = lineage
            one.led.append(run, term)
        if batches:
            self.producer_ids.saw(max(batch.producer_id for batch in batches))
            reach(FETCHED)
            self.shadow.announce()

    async def _attach_all(
        self,
        places: Sequence[TopicPartition],
        how: Callable[[TopicPartition], Awaitable[None]] | None = None,
    ) -> None:
        """Attach partitions, some at a time; one that is not possible now is tried again later."""
        limit = asyncio.Semaphore(ATTACHED_AT_ONCE_MAX)
        attach_one = self._attach if how is None else how

        async def attach(place: TopicPartition) -> None:
            async with limit:
                try:
                    await attach_one(place)
                    self.unattached.pop(place, None)
                except LinkStateLost:
                    raise
                except PenstockError as error:
                    log.warning("partition not attached", partition=str(place), error=str(error))
                    if place in self.partitions:
                        self.unattached.pop(place, None)
                    else:
                        self.unattached[place] = error.message

        await asyncio.gather(*(attach(place) for place in places))

    async def _attach_again(self, place: TopicPartition) -> None:
        """After the source has truncated: in a new term, without what was not replicated."""
        if (one := self.partitions.get(place)) is None:
            return  # the topic was deleted
        before, failure = one.led.end, ""
        try:
            await self._attach(place, new_term=True)
        except LinkStateLost:
            raise
        except SourceUnusable as error:
            failure = error.message
        except PenstockError as error:  # `regain` tries again
            log.warning("partition not attached", partition=str(place), error=str(error))
            return
        if (one := self.partitions.get(place)) is None:
            return
        if not failure and one.led.end >= before and not one.led.truncating:
            failure = f"its log ends below the mirror's end {before}, in the same epochs"
        if failure:
            self._fail(one, failure)

    def _attaching(self, place: TopicPartition) -> asyncio.Lock:
        return self._locks.setdefault(place, asyncio.Lock())

    async def _attach(self, place: TopicPartition, *, new_term: bool = False) -> None:
        """Lead a partition from where its real replicas end; one attempt at a time, on the latest lineage."""
        async with self._attaching(place):
            await self._attach_alone(place, new_term=new_term)

    async def _verify(self, place: TopicPartition) -> None:
        """Compare both logs again. The partition is served meanwhile."""
        async with self._attaching(place):
            one = self.partitions.get(place)
            if one is None or not one.unverified:
                return  # the topic was deleted, or another attempt was faster
            state = self.shadow.image.partitions.get(one.led.id)
            if state is None:
                raise PartitionNotLed(partition=place, epoch=-1)  # the mirror was deleted
            lineage, _ = await self._agreed(place, one.lineage, one.led.end)
            if lineage is one.lineage:
                one.unverified = ""
                return
            had_records = one.lineage.newest_epoch >= state.leader_epoch
            one.lineage = lineage
            await self._attach_alone(place, new_term=had_records)

    async def _attach_alone(self, place: TopicPartition, *, new_term: bool) -> None:
        topic_id = self.shadow.image.topics.get(place.topic)
        key = PartitionId(topic_id or NO_ID, place.partition)
        state = self.shadow.image.partitions.get(key)
        if state is None:
            raise PartitionNotLed(partition=place, epoch=-1)  # the mirror was deleted
        before = self.partitions.get(place)
        served = before is not None and self.shadow.led(key) is before.led
        if before is not None and state.leader == self.shadow.id:
            current = before.led.truncating or before.lineage.truncating_to is None
            if served and current and not new_term:
                return  # attached while this attempt waited
            # Left unserved by an attempt that failed: what it had to truncate may be of this very term.
            new_term = new_term or (not served and before.lineage.newest_epoch >= state.leader_epoch)
        if new_term and served and not any(not is_shadow(one) for one in state.isr):
            raise PartitionNotLed(partition=place, epoch=state.leader_epoch)  # no real broker could lead
        stored = self.lineages.get(f"{place.topic}/{place.partition}", {})
        if stored.get("topic_id", str(key.topic_id)) != str(key.topic_id):
            stored = {}  # of a mirror that was deleted
        lineage = before.lineage if before is not None else lineage_of(stored)
        self.shadow.forget(key)
        if new_term or state.leader != self.shadow.id:
            await new_epoch_for(self.shadow, place, key, state.leader_epoch)
        start, end = await replica_range(self.shadow, place, key)
        if end == 0:
            start, _ = await source.log_range(self.client, place)
            end = start
            planned = intents.log_start(key.topic_id, key.partition, start, f"link {self.link}")
            await self.intents.record(planned)
        leftover = Truncation(self.shadow.image.partitions[key].leader_epoch - 1, end)
        failure: PenstockError | None = None
        try:
            lineage, end = await self._agreed(place, lineage, end)
        except LinkStateLost:
            raise
        except PenstockError as error:
            failure = error  # served as it is, so that its replicas stay in sync
        if lineage.truncating_to is not None:
            start = min(start, end) if lineage.entries else end
        led = LedPartition(
            key, place.topic, start, end, self._older(place), epochs=lineage.destination_history(end)
        )
        self.guarded_before += before.led.guarded if before is not None else 0
        led.truncation, led.truncating = lineage.truncation, lineage.truncating_to is not None
        led.leftover = leftover
        self.partitions[place] = MirrorPartition(
            place,
            led,
            lineage,
            failed=before.failed if before is not None else "",
            unverified="" if failure is None else failure.message,
        )
        self.shadow.lead(led)
        if failure is not None:
            raise failure

    async def _agreed(self, place: TopicPartition, lineage: Lineage, end: int) -> tuple[Lineage, int]:
        """The lineage and the end up to which the source has the same records; a truncation is recorded."""
        if lineage.truncating_to is not None:
            return lineage, lineage.truncating_to
        agreed = await diverged_at(self.client, place, lineage, end)
        if agreed is None:
            return lineage, end
        described = results_or_raise(await topics.describe(self.client, [place.topic]))[place.topic]
        if described.id == NO_ID or str(described.id) != self.topic_ids[place.topic]:
            raise SourceUnusable(reason="the topic was deleted and created again, or may have been")
        state = self.shadow.image.partitions[
            PartitionId(self.shadow.image.topics[place.topic], place.partition)
        ]
        replica = next((one for one in state.isr if not is_shadow(one)), None)
        if replica is None:
            raise PartitionNotLed(partition=place, epoch=state.leader_epoch)
        if (offset := await unrecorded_at(self.brokers, replica, place, lineage, (agreed, end))) is not None:
            raise SourceUnusable(reason=f"the lineage of the mirror from offset {offset} on is missing")
        log.warning("mirror truncated", link=self.link, partition=str(place), before=end, end=agreed)
        lineage = lineage.truncated(agreed)
        await self.write_lineage(place, lineage)
        reach(TRUNCATION_WRITTEN)
        self.truncations += 1
        return lineage, agreed

    def _older(self, place: TopicPartition) -> Callable[[int, int], Awaitable[Sequence[RawBatch]]]:
        async def older(offset: int, bytes_max: int) -> Sequence[RawBatch]:
            await self._find_leaders([place])
            ids = {place.topic: UUID(self.topic_ids[place.topic])}
            leader, positions = self._leaders.get(place, -1), {place: offset}
            if leader < 0:
                return ()
            fetched = await source.fetch(self.client, leader, positions, ids=ids, wait_ms=0, lane="older")
            if place not in fetched:
                self._leaders.pop(place, None)
                return ()
            return self._as_mirrored(place, checked(fetched[place].data, offset, -1))

        return older

    def _as_mirrored(self, place: TopicPartition, fetched: Sequence[SourceBatch]) -> list[RawBatch]:
        """Batches below the window. Of another epoch than recorded, they are not what other replicas have."""
        one = self.partitions[place]
        for other in fetched:
            offset = max(other.batch.base_offset, one.led.start)
            recorded = one.lineage.source_epoch_at(offset + 1)
            if other.batch.last_offset < one.led.window.covers_from and other.epoch != recorded >= 0:
                raise SourceDiverged(partition=place, end=one.led.end)
        return [other.batch for other in fetched]

    def _assignment(self, count: int) -> dict[int, tuple[int, ...]]:
        racks = {broker: one.rack for broker, one in self.shadow.image.brokers.items() if not one.fenced}
        return mirror_assignment(range(count), racks, self.shadow.id)

    async def _wait_for(self, name: str, count: int) -> None:
        deadline = time.monotonic() + ATTACH_SECONDS_MAX
        while len(self.shadow.image.partitions_of(name)) < count:
            if time.monotonic() > deadline:
                raise PartitionNotLed(partition=name, epoch=-1)
            await asyncio.sleep(IDLE_SECONDS)
