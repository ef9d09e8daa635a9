"""The auditor of one cluster: collects events, folds them, and publishes findings.

Several may run; the owner of the group's single partition is active, fenced by a transactional id. Events and
the collectors' positions are one transaction, so nothing is collected twice or left out. States and the
position they reach are another, every `snapshot_seconds`: after a restart the events since are folded again,
which gives the same findings with the same ids.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from penstock.audit import alerts, evidence, topics
from penstock.audit.finding_reader import FindingReader
from penstock.audit.group_offsets import GroupCollector
from penstock.audit.lifecycle import FindingLog
from penstock.audit.live import LiveEngine, is_gone
from penstock.audit.metadata_history import MetadataHistory, is_resolvable, static_defaults
from penstock.audit.rules.state import SLACK_MS, TOPIC, SubjectState
from penstock.audit.scrub.progress import PREFIX as SCRUBS
from penstock.audit.stores import StoreCollector, Stores
from penstock.audit.sweep import Sweeper
from penstock.cancellation import run_separately
from penstock.kafka import partition_log, quorum
from penstock.kafka.admin import configs
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.ownership import Ownership
from penstock.kafka.partition_log import ProducerRecord, TransactionalProducer
from penstock.model import fault_points, key_names
from penstock.model.durability import (
    NAMED,
    Heartbeat,
    LogEvent,
    Removed,
    Topic,
    What,
    members_of,
    partition_subject,
)
from penstock.model.errors import PenstockError
from penstock.model.errors.audit import SourceRecreated
from penstock.model.errors.events import EventTooNew
from penstock.model.errors.wire import OffsetOutOfRange
from penstock.model.key_names import ACKS_TOPIC, AUDIT_STATE_TOPIC, AUDITORS_GROUP, DURABILITY_TOPIC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from penstock.audit.alerts import Webhook
    from penstock.audit.metadata_history import Observation
    from penstock.kafka.client import Client
    from penstock.model.durability import FindingRecord
    from penstock.wire.records import Record

COLLECT_READ: Final = fault_points.declare("audit.collect.read", "observed, not yet written")
COLLECT_WRITTEN: Final = fault_points.declare("audit.collect.written", "events written, not yet folded")
RAISED: Final = fault_points.declare("audit.findings.raised", "findings written, no alert sent")
SNAPSHOT: Final = fault_points.declare("audit.live.snapshot", "states about to be stored")
ALERT_SENT: Final = fault_points.declare("audit.alert.sent", "alert sent, not yet recorded")
TRANSACTIONAL_ID: Final = "_penstock.audit"
SOURCE: Final = "auditor"
COLLECTED: Final = b"collected"
FOLDED: Final = b"folded"
ALERTED: Final = b"alerted"
INTENTS: Final = b"intents"
TIER_TOPIC: Final = "__remote_log_metadata"
POLL_SECONDS: Final = 0.5
RECHECK_SECONDS: Final = 1.0
SWEEP_SECONDS: Final = 10.0
SNAPSHOT_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 2.0  # after a failure
ALERT_PAUSE_SECONDS: Final = 30.0  # after one: a receiver that hangs must not stop the collectors
UNSEEN_SHOWN_MAX: Final = 10
BEHIND_CLOCK: Final = 2  # how much slower time passes after the clock was set back
UNKNOWN_TOPIC_MS: Final = 10_000  # until an intent about a topic that is not in the metadata log is dropped

log = structlog.get_logger("penstock.audit")


@dataclass(slots=True)
class Positions:
    """How far the collectors have read, and what they have numbered."""

    metadata: int = 0
    sequence: int = 0
    heartbeats: int = 0
    time_ms: int = 0
    offsets: dict[str, int] = field(default_factory=dict)  # by topic and partition

    def to_bytes(self) -> bytes:
        members = (self.metadata, self.sequence, self.heartbeats, self.time_ms, self.offsets)
        return json.dumps(members).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Positions:
        return cls(*json.loads(value))


class Auditor:
    """Call `run`; it takes part in the election until cancelled."""

    def __init__(
        self,
        cluster: str,
        client: Client,
        controllers: Callable[[], Awaitable[Client]],
        *,
        sweep_seconds: float = SWEEP_SECONDS,
        snapshot_seconds: float = SNAPSHOT_SECONDS,
        webhook: Webhook | None = None,
        stores: StoreCollector | None = None,
    ) -> None:
        self.cluster = cluster
        self._client = client
        self._connect_controllers = controllers
        self._sweep_seconds = sweep_seconds
        self._snapshot_seconds = snapshot_seconds
        self._webhook = webhook
        self.stores = stores or StoreCollector(Stores())
        self.engine = LiveEngine()
        self.sweeper = Sweeper()
        self.positions = Positions()
        self.history = MetadataHistory()
        self.active = False
        self.events_written = 0
        self.unreadable = 0
        self.cycle_ended: float | None = None
        self.failure = ""
        self._kafka_id = ""
        self._owns = asyncio.Event()
        self._folded: dict[str, int] = {}
        self._alerted: dict[str, str] = {}
        self._logged: dict[str, str] = {}  # severities of findings, by id
        self._intents: list[LogEvent] = []  # read, and not resolved yet
        self._groups = GroupCollector()
        self._findings = FindingReader(client)
        self._handlings = FindingLog()  # as last read
        self._swept_at = self._snapshot_at = self._beat_at = self._handled_at = float("-inf")
        self._send_at = 0.0  # no alert before, monotonic
        self._timed_at = time.monotonic()
        self._written_ms = 0  # time of the last events that were written, by whichever process
        self._missed: list[Observation] = []  # from the metadata log, since the last term

    async def run(self) -> None:
        await topics.ensure_topics(self._client)

        def changed(owns: bool) -> None:
            (self._owns.set if owns else self._owns.clear)()

        ownership = Ownership(self._client, AUDITORS_GROUP, AUDIT_STATE_TOPIC, changed=changed)
        async with asyncio.TaskGroup() as group:
            group.create_task(ownership.run())
            while True:
                await self._owns.wait()
                try:
                    await run_separately(self._term())
                except PenstockError as failure:
                    self.failure = str(failure)
                    log.warning("audit interrupted", **{key_names.ERROR: self.failure})
                    await asyncio.sleep(PAUSE_SECONDS)
                except Exception as failure:  # the next term begins: a dead process audits nothing
                    self.failure = repr(failure)
                    log.exception("audit raised")
                    await asyncio.sleep(PAUSE_SECONDS)
                finally:
                    self.active = False
                    self.stores.cancel()

    def current_findings(self) -> list[FindingRecord]:
        """Findings in the state that operators have given them."""
        return self._handlings.current(self.engine.findings.values())

    def not_ready(self) -> str:
        return self.failure

    async def _term(self) -> None:
        """While this process is the active auditor."""
        self.cycle_ended = None
        producer = TransactionalProducer(self._client, TRANSACTIONAL_ID)
        await producer.init()
        await self._load()
        async with await self._connect_controllers() as controllers:
            self._missed = await self._catch_up(controllers)
            self.active = True
            while self._owns.is_set():
                await self._cycle(controllers, producer)
                self.failure, self.cycle_ended = "", time.monotonic()
                await asyncio.sleep(POLL_SECONDS)
            await self._snapshot(producer)

    async def _load(self) -> None:
        stored = await topics.read_compacted(self._client, topics.STATE)
        self._handled_at = float("-inf")
        findings = (await self._findings.read()).findings
        self.positions = Positions.from_bytes(stored.pop(COLLECTED)) if COLLECTED in stored else Positions()
        self._written_ms, self._timed_at = self.positions.time_ms, time.monotonic()
        self._folded = json.loads(stored.pop(FOLDED, b"{}"))
        self._alerted = json.loads(stored.pop(ALERTED, b"{}"))
        intents = json.loads(stored.pop(INTENTS, b"[]"))
        self._intents = [LogEvent.from_bytes(each.encode()) for each in intents]
        self.engine.load(
            (SubjectState.from_bytes(v) for key, v in stored.items() if not key.startswith(SCRUBS)),
            findings.values(),
        )
        self.sweeper, self._groups = Sweeper(), GroupCollector()
        self._swept_at = self._beat_at = float("-inf")
        self._snapshot_at = time.monotonic()

    async def _catch_up(self, controllers: Client) -> list[Observation]:
        """Read the metadata log from its start; returns what is new since the last term."""
        nodes = await self._client.cluster(refresh=True)
        self._kafka_id = nodes.id or ""
        broker = configs.broker(min(nodes.nodes))
        described = (await configs.describe(self._client, [broker]))[broker]
        if isinstance(described, PenstockError):
            raise described
        static = static_defaults({name: entry.value for name, entry in described.items()})
        self.history = MetadataHistory(static)
        first, offset = self.positions.metadata == 0, 0
        observations: list[Observation] = []
        while True:
            chunk = await quorum.read(controllers, offset)
            if chunk.is_snapshot:
                self.history = MetadataHistory(static)
            for record in chunk.records:
                new = [*self.history.apply([record.entry])]
                if not first and record.offset >= self.positions.metadata:
                    observations += new
            if chunk.is_snapshot and not first and chunk.next_offset > self.positions.metadata:
                observations = [*self._image()]
            offset = chunk.next_offset
            if offset >= chunk.high_watermark:
                break
        if first:
            observations = [*self._image()]
        self.positions.metadata = offset
        return observations

    def _image(self) -> Iterator[Observation]:
        """Everything in the metadata log; what was known before and is not there is deleted."""
        live = {partition_subject(*key) for key in self.history.partitions}
        live |= {f"{TOPIC}{name}" for name in self.history.names.values()}
        for state in self.engine.states.values():
            if state.subject not in live and state.placement is not None:
                yield state.subject, Removed()
            elif state.subject not in live and state.topic_id and not state.topic_deleted_ms:
                yield state.subject, Topic("")
        yield from self.history.image()

    async def _cycle(self, controllers: Client, producer: TransactionalProducer) -> None:
        observations = [*self._missed, *await self._metadata(controllers)]
        observations += [*evidence.acked(await self._read_topic(ACKS_TOPIC))]
        observations += [*evidence.segments(await self._read_topic(TIER_TOPIC))]
        observations += await self._sweep(observations)
        now = time.monotonic()
        observations += await self._groups.collect(self._client, self.history, self.sweeper, now)
        observations += self.stores.collect(self._kafka_id, self.engine.states, now)
        # The platform commits an intent before it acts. So the intent of everything observed so far is read
        # now, and comes first. Nothing is judged before: an intent may explain what the last term observed.
        await self._publish(producer, await self._read_events())
        intents = self._resolve_intents()
        if now - self._beat_at >= self._sweep_seconds:
            self._beat_at = now
            observations.append(("collector/auditor", self._heartbeat()))
        fault_points.reach(COLLECT_READ)
        await self._write(producer, intents, observations)
        self._missed = []
        fault_points.reach(COLLECT_WRITTEN)
        await self._fold(producer)
        if time.monotonic() - self._snapshot_at >= self._snapshot_seconds:
            await self._snapshot(producer)

    def _resolve_intents(self) -> list[tuple[int, Observation]]:
        """What was intended, with the time of its event; what is about an unknown topic waits for a while.

        An intent that is read now may explain what was observed before: by this cycle's predecessor, or by an
        auditor that died since. So it comes right behind the last event, before that is judged. One of a
        later time explains only what is observed from now on."""
        now_ms = self._now_ms()
        last_ms = min(self._written_ms or now_ms, now_ms)
        topic_names = set(self.history.names.values())
        early: list[tuple[int, Observation]] = []
        later: list[tuple[int, Observation]] = []
        waiting = []
        for event in self._intents:
            if is_resolvable(event, topic_names):
                resolved = self.history.resolved(event, now_ms)
                if event.time_ms <= last_ms + SLACK_MS:
                    early += ((last_ms, each) for each in resolved)
                else:
                    later += ((now_ms, each) for each in resolved)
            elif now_ms - event.time_ms < UNKNOWN_TOPIC_MS:
                waiting.append(event)
        self._intents = waiting
        return early + later

    async def _metadata(self, controllers: Client) -> list[Observation]:
        observations: list[Observation] = []
        while True:
            chunk = await quorum.read(controllers, self.positions.metadata)
            if chunk.is_snapshot:  # the whole state: what it lacks was deleted
                self.history = MetadataHistory(self.history.static)
            for record in chunk.records:
                observations += self.history.apply([record.entry])
            if chunk.is_snapshot:
                observations = [*self._image()]
            self.positions.metadata = chunk.next_offset
            if chunk.next_offset >= chunk.high_watermark or not chunk.records:
                return observations

    async def _sweep(self, observations: Iterable[Observation]) -> list[Observation]:
        now, now_ms = time.monotonic(), self._now_ms()
        recheck = self.engine.suspected()
        registered = {
            int(subject.removeprefix("broker/"))
            for subject, _ in observations
            if subject.startswith("broker/")
        }
        pause = RECHECK_SECONDS if recheck else self._sweep_seconds
        if now - self._swept_at >= min(pause, self._sweep_seconds):
            self._swept_at = now
            return await self.sweeper.sweep(self._client, self.history, now_ms, recheck=recheck)
        if registered:
            live = registered & self.history.brokers.keys()
            return await self.sweeper.sweep(self._client, self.history, now_ms, brokers=live)
        return []

    def _heartbeat(self) -> Heartbeat:
        self.positions.heartbeats += 1
        unseen = self.sweeper.unseen
        behind = 0.0 if self.cycle_ended is None else time.monotonic() - self.cycle_ended
        return Heartbeat(
            self.positions.heartbeats,
            int(self._sweep_seconds * 1000),
            position=str(self.positions.metadata),
            behind_ms=int(behind * 1000),
            skew_ms=self._now_ms() - int(time.time() * 1000),
            unseen=unseen[:UNSEEN_SHOWN_MAX],
            unseen_count=len(unseen),
            disabled=self.stores.disabled(),
        )

    def _now_ms(self) -> int:
        """The time, which never falls. After the clock was set back it passes at half speed, until the clock
        has caught up: if it stood still, nothing would be judged meanwhile."""
        now = time.monotonic()
        slow_ms = self.positions.time_ms + int((now - self._timed_at) * 1000 / BEHIND_CLOCK)
        time_ms = max(slow_ms, int(time.time() * 1000))
        if time_ms > self.positions.time_ms:
            self.positions.time_ms, self._timed_at = time_ms, now
        return self.positions.time_ms

    async def _write(
        self,
        producer: TransactionalProducer,
        intents: Iterable[tuple[int, Observation]],
        observations: Iterable[Observation],
    ) -> None:
        records = []
        now_ms = self._now_ms()
        for time_ms, (subject, facts) in (*intents, *((now_ms, each) for each in observations)):
            self.positions.sequence += 1
            what = What(type(facts).__name__.lower())
            event = LogEvent(
                self.cluster, subject, SOURCE, self.positions.sequence, time_ms, what, members_of(facts)
            )
            records.append(
                ProducerRecord(topics.durability_partition(event.key), event.key, event.to_bytes())
            )
        if records:
            records.append(ProducerRecord(topics.STATE, COLLECTED, self.positions.to_bytes()))
            await producer.commit(records)
            self.events_written += len(records) - 1
            self._written_ms = now_ms

    async def _read_topic(self, topic: str) -> list[bytes]:
        """The new values of a topic; none if it does not exist."""
        leaders = await self._client.leaders([topic], strict=False)
        values: list[bytes] = []
        for number in sorted(each[1] for each in leaders):
            partition = TopicPartition(topic, number)
            key = f"{topic}/{number}"
            position = self.positions.offsets.get(key, 0)
            try:
                fetched = await partition_log.read(self._client, partition, position)
            except OffsetOutOfRange:
                self.positions.offsets[key] = (await partition_log.bounds(self._client, partition))[0]
                continue
            values += [record.value for record in fetched.records if record.value is not None]
            self.positions.offsets[key] = fetched.position
        return values

    async def _fold(self, producer: TransactionalProducer) -> None:
        """Read what was written, judge what has waited long enough, and send alerts."""
        changed = await self._read_events()
        changed.update((each.id, each) for each in self.engine.advance(self._now_ms()))
        await self._publish(producer, changed)
        await self._alert(producer)

    async def _read_events(self) -> dict[str, FindingRecord]:
        """Fold the new events; returns findings that are new or have changed. Intents are kept."""
        changed: dict[str, FindingRecord] = {}
        for number in range(topics.PARTITIONS):
            partition = TopicPartition(DURABILITY_TOPIC, number)
            position = self._folded.get(str(number), 0)
            while True:
                try:
                    fetched = await partition_log.read(self._client, partition, position)
                except OffsetOutOfRange:
                    position = await self._restart_at(partition, position)
                    continue
                events = [*self._parsed(fetched.records)]
                self._intents += [each for each in events if each.subject.startswith(NAMED)]
                events = [each for each in events if not each.subject.startswith(NAMED)]
                changed.update((each.id, each) for each in self.engine.fold(events))
                position = fetched.position
                if fetched.caught_up:
                    break
            self._folded[str(number)] = position
        return changed

    def _parsed(self, records: Iterable[Record]) -> Iterator[LogEvent]:
        """Without what no component of Penstock wrote; an event of a newer version ends the term."""
        for record in records:
            try:
                yield LogEvent.from_bytes(record.value or b"")
            except EventTooNew:
                raise
            except PenstockError as failure:
                self.unreadable += 1
                log.warning("event not read", offset=record.offset, **{key_names.ERROR: str(failure)})

    async def _publish(self, producer: TransactionalProducer, changed: Mapping[str, FindingRecord]) -> None:
        if changed:
            rows = [ProducerRecord(topics.FINDINGS, each.key, each.to_bytes()) for each in changed.values()]
            await producer.commit(rows)
            fault_points.reach(RAISED)
            for each in changed.values():
                if self._logged.get(each.id) != each.severity:  # not each time it is observed again
                    self._logged[each.id] = each.severity
                    log.warning(
                        "finding", finding=each.id, rule=each.rule, subject=each.subject, detail=each.detail
                    )

    async def _restart_at(self, partition: TopicPartition, position: int) -> int:
        """The start of a log whose retention has overtaken the audit; refuses one that was created again."""
        start, end = await partition_log.bounds(self._client, partition)
        if position > end:
            raise SourceRecreated(topic=DURABILITY_TOPIC, end=end, position=position, state=AUDIT_STATE_TOPIC)
        return start

    async def _alert(self, producer: TransactionalProducer) -> None:
        """Send alerts that begin or end; what operators have done meanwhile is read before."""
        due = alerts.due(self.current_findings(), self._alerted)
        if due or time.monotonic() - self._handled_at >= self._sweep_seconds:
            self._handlings, self._handled_at = await self._findings.read(), time.monotonic()
        if self._webhook is None:
            return
        findings = self.current_findings()
        due, ended = alerts.due(findings, self._alerted), alerts.ended(findings, self._alerted)
        if not (due or ended) or time.monotonic() < self._send_at:
            return
        sent = await self._webhook.send(due, ended, ended_ms=self._now_ms())
        self._send_at = 0.0 if sent else time.monotonic() + ALERT_PAUSE_SECONDS
        if sent:
            fault_points.reach(ALERT_SENT)
            self._alerted |= alerts.severities(due)
            for each in ended:
                self._alerted.pop(each.alert, None)
            value = json.dumps(self._alerted).encode()
            await producer.commit([ProducerRecord(topics.STATE, ALERTED, value)])

    async def _snapshot(self, producer: TransactionalProducer) -> None:
        fault_points.reach(SNAPSHOT)
        rows = []
        for key in sorted(self.engine.changed):
            state = self.engine.states[key]
            if is_gone(state):
                self.engine.forget(key)
            rows.append(ProducerRecord(topics.STATE, key, None if is_gone(state) else state.to_bytes()))
        rows.append(ProducerRecord(topics.STATE, FOLDED, json.dumps(self._folded).encode()))
        intents = [each.to_bytes().decode() for each in self._intents]
        rows.append(ProducerRecord(topics.STATE, INTENTS, json.dumps(intents).encode()))
        await producer.commit(rows)
        self.engine.changed.clear()
        self._snapshot_at = time.monotonic()
