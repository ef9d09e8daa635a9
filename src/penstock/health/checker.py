"""Probes every broker of one physical cluster, through the gateways as a tenant does.

A probe is due at a fixed time (`schedule`), and its latency counts from then. Every role and broker has a
connection, so that a stuck write delays no other probe. A record that was acknowledged and is not delivered,
although the consumer has read past it, is `LOST`. A probe without a result after two seconds is reported as
waiting: so a fault is seen before its probes time out.

The checker reports on itself, too: how late its loop was, and whether the gateways refuse it. A checker that
stalls or is refused judges no broker.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from penstock.health.directory_probe import DirectoryProbe
from penstock.health.history import ProbeWriter, ensure_health_topic
from penstock.health.inner_probe import InnerProbe
from penstock.health.probe_topics import ProbeLayout, read_layout
from penstock.health.schedule import INTERVAL_SECONDS, PINNED, TOPICS, due_between
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.append import PRODUCE_BY_NAME_LAST, produce_body
from penstock.kafka.client import Client
from penstock.kafka.connection import Connection
from penstock.kafka.partition_log import bounds, read
from penstock.kafka.routing import NodeWithId, addresses
from penstock.model import key_names
from penstock.model.errors import PenstockError
from penstock.model.errors.health import CheckerRefused
from penstock.model.errors.wire import LoginRefused, OffsetOutOfRange
from penstock.model.events import HealthProbe, Probe, ProbeRole
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from penstock.timed_wait import wait_at_most
from penstock.wire.error_codes import Code, name_of
from penstock.wire.records import Record, write

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

    from penstock.health.schedule import Due
    from penstock.kafka.security import Security

PROBE_SECONDS_MAX: Final = 10.0  # a write without a response is failed then
WAITING_SECONDS: Final = 2.0  # and reported as waiting from then on
CALL_SECONDS_MAX: Final = 2.0  # of requests without data
LOST_SECONDS: Final = 20.0  # from the acknowledgement until an undelivered record is given up
LAYOUT_SECONDS: Final = 2.0  # between two looks at leaders and brokers
CALLS_SECONDS: Final = 1.0  # between two requests without data to a broker
SELF_SECONDS: Final = 1.0
STALL_SECONDS: Final = 1.0  # of the checker; what was due or under way meanwhile shows nothing
DIRECTORY_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 60.0
FETCH_WAIT_MS: Final = 1000
PENDING_MAX: Final = 64  # probes of one broker without a result
CLOCK_STEP_SECONDS: Final = 1.0  # more than that, and the clock has jumped
FENCED: Final = "FENCED"
REFUSED: Final = "CHECKER_REFUSED"

log = structlog.get_logger("penstock.health")


@dataclass(frozen=True, slots=True)
class ProbedCluster:
    """How a checker reaches one physical cluster: past the gateways, and through them."""

    id: str
    name: str
    bootstrap: str
    security: Security = field(repr=False)
    tenant: str = ""  # logical cluster of the checker
    gateways: str = ""  # bootstrap for its API key
    tenant_security: Security | None = field(repr=False, default=None)
    directories: Mapping[int, Path] = field(default_factory=dict)  # of brokers on this host


@dataclass(slots=True)
class CheckerCounts:
    due: int = 0
    sent: int = 0
    disturbed: int = 0  # whose result its own stall falsifies
    lost: int = 0
    duplicates: int = 0
    stalls: int = 0
    clock_jumps: int = 0
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)  # by role and error
    schedule_errors: list[float] = field(default_factory=list)  # seconds; the newest
    last_error: str = ""


@dataclass(slots=True)
class _Expected:
    """A record that the consumer should deliver."""

    delivered: asyncio.Future[float]
    offset: int = -1  # once it is acknowledged


class Checker:
    def __init__(
        self, target: ProbedCluster, *, vantage: str, on_probe: Callable[[HealthProbe], None]
    ) -> None:
        assert target.tenant_security is not None
        self.target, self.vantage = target, vantage
        self.id = f"{vantage}-{secrets.token_hex(4)}"
        self.inner = Client(target.bootstrap, target.security, client_id="penstock-checker", open_seconds=2.0)
        self.outer = Client(
            target.gateways, target.tenant_security, client_id="penstock-checker", open_seconds=2.0
        )
        self.writer = ProbeWriter(self.inner)
        self.counts = CheckerCounts()
        self.layout = ProbeLayout()
        self.refused = ""
        self._on_probe = on_probe
        self._inner = InnerProbe(target.security)
        self._sequences: Counter[tuple[ProbeRole, int]] = Counter()
        self._expected: dict[tuple[ProbeRole, int, int], _Expected] = {}
        self._positions: dict[tuple[ProbeRole, int], int] = {}
        self._pending: Counter[int] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._consumers: dict[tuple[ProbeRole, int], asyncio.Task[None]] = {}
        self._stale = asyncio.Event()  # leaders have changed
        self._lateness = 0.0  # the worst since the last report
        self._stalled_until = float("-inf")  # when its loop last stalled, monotonic
        self._wakes_at = float("inf")  # when the next probe is due
        self._first: dict[tuple[ProbeRole, int], int] = {}  # where consumers began to read
        self._wall = time.time() - time.monotonic()  # what the clock is ahead of the steady one

    # Running

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_layout(group))
                group.create_task(self.writer.run())
                group.create_task(self._send_probes())
                group.create_task(self._report_self())
                group.create_task(self._connect_each_minute())
                for broker, path in self.target.directories.items():
                    group.create_task(self._probe_directory(broker, path))
        finally:
            for task in [*self._tasks, *self._consumers.values()]:
                task.cancel()
            await asyncio.gather(*self._tasks, *self._consumers.values(), return_exceptions=True)
            await self._inner.close()
            await self.outer.close()
            await self.inner.close()

    def not_ready(self) -> str:
        if self.refused:
            return self.refused
        return "" if self.layout.numbers else self.counts.last_error or "the probe topics are not placed"

    async def _follow_layout(self, group: asyncio.TaskGroup) -> None:
        """Keeps every broker's partitions in place, and knows their leaders."""
        prepared, callers = False, dict[int, asyncio.Task[None]]()
        while True:
            try:
                if not prepared:
                    await ensure_health_topic(self.inner)
                    prepared = True
                async with asyncio.timeout(3 * PROBE_SECONDS_MAX):
                    self.layout = await read_layout(self.inner, self.target.tenant, self.target.id)
                self.counts.last_error = ""
            except (PenstockError, TimeoutError) as failure:
                self._note(str(failure) or "no response while the probe topics were read")
            for broker in self.layout.brokers:
                self._report_session(broker)
                if broker not in callers:
                    callers[broker] = group.create_task(self._call_brokers(broker))
            for broker in callers.keys() - set(self.layout.brokers):
                callers.pop(broker).cancel()
            self._follow_partitions(group)
            self._stale.clear()
            await wait_at_most(self._stale, LAYOUT_SECONDS)

    def _follow_partitions(self, group: asyncio.TaskGroup) -> None:
        expected = {(role, number) for role in PINNED for number in self.layout.numbers.values()}
        for key in expected - self._consumers.keys():
            self._consumers[key] = group.create_task(self._consume(*key))
        for key in self._consumers.keys() - expected:
            self._consumers.pop(key).cancel()

    def _note(self, reason: str) -> None:
        if reason != self.counts.last_error:
            log.warning("probe topics not read", cluster=self.target.id, **{key_names.ERROR: reason})
        self.counts.last_error = reason

    # Probes on the schedule

    async def _send_probes(self) -> None:
        start, last, brokers = time.monotonic(), 0.0, self.layout.brokers
        self._wakes_at = start
        while True:
            self._notice_stall()
            if brokers != self.layout.brokers:
                start, last, brokers = time.monotonic(), 0.0, self.layout.brokers
            now = time.monotonic() - start
            self._check_clock()
            for due in due_between(brokers, last, now):
                self.counts.due += 1
                late = time.monotonic() - start - due.at
                self._lateness = max(self._lateness, late)
                self.counts.schedule_errors.append(late)
                del self.counts.schedule_errors[:-10_000]
                if self._is_disturbed(start + due.at):
                    continue
                if self._pending[due.broker] < PENDING_MAX:
                    self._start(self._probe(due, start + due.at))
                else:
                    self._give_up(due, start + due.at)
            last = now
            pause = INTERVAL_SECONDS / max(1, len(brokers))
            pause = max(0.001, pause - (time.monotonic() - start) % pause)
            self._wakes_at = time.monotonic() + pause
            await asyncio.sleep(pause)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _give_up(self, due: Due, at: float) -> None:
        """Too many probes of the broker wait: this one has failed without being sent."""
        self._sequences[due.role, due.broker] += 1
        for probe in (Probe.PRODUCE, Probe.CONSUME):
            number = self._sequences[due.role, due.broker]
            self._emit(due.broker, due.role, probe, at, number, "NOT_SENT", self._leader(due))

    def _notice_stall(self) -> None:
        """Whichever task runs first after a stall notices it."""
        now = time.monotonic()
        if now - self._wakes_at > STALL_SECONDS:
            self._stalled_until = now

    def _is_disturbed(self, at: float) -> bool:
        """Whether the checker stalled since a probe was due: then its latency and its failure are its own."""
        self._notice_stall()
        disturbed = at <= self._stalled_until
        self.counts.disturbed += disturbed
        return disturbed

    def _leader(self, due: Due) -> int:
        return self.layout.leaders.get((due.role, self.layout.numbers.get(due.broker, -1)), -1)

    async def _probe(self, due: Due, at: float) -> None:
        number = self.layout.numbers.get(due.broker)
        if number is None:
            return
        leader = self._leader(due)
        self._sequences[due.role, due.broker] += 1
        sequence = self._sequences[due.role, due.broker]
        key = (due.role, number, sequence)
        expected = self._expected[key] = _Expected(asyncio.get_running_loop().create_future())
        self._pending[due.broker] += 1
        waiting = asyncio.get_running_loop().call_later(
            max(0.0, at + WAITING_SECONDS - time.monotonic()), self._report_waiting, due, at, sequence, leader
        )
        try:
            self.counts.sent += 1
            error = await self._produce(due, number, sequence, leader, expected)
            if self.refused or self._is_disturbed(at):
                return
            self._emit(due.broker, due.role, Probe.PRODUCE, at, sequence, error, leader)
            arrived: float | None = None
            if not error:
                error, arrived = await self._delivery(key, expected)
                if self._is_unread(key[:2], expected.offset) or self._is_disturbed(at):
                    return
            self._emit(due.broker, due.role, Probe.CONSUME, at, sequence, error, leader, arrived=arrived)
        finally:
            waiting.cancel()
            self._pending[due.broker] -= 1
            del self._expected[key]

    async def _produce(self, due: Due, number: int, sequence: int, leader: int, expected: _Expected) -> str:
        """The error's name; empty if the record is acknowledged."""
        if leader < 0:
            self._stale.set()
            return Code.LEADER_NOT_AVAILABLE.name
        partition = TopicPartition(TOPICS[due.role], number)
        payload = f"{self.id}/{sequence}".encode()
        data = write([Record(0, int(time.time() * 1000), payload, b"")])
        try:
            async with asyncio.timeout(PROBE_SECONDS_MAX):
                response = await self.outer.call(
                    "Produce",
                    produce_body(partition, data),
                    to=NodeWithId(leader),
                    timeout=PROBE_SECONDS_MAX,
                    version_max=PRODUCE_BY_NAME_LAST,
                    retry=False,
                    lane=str(due.role),
                )
        except (PenstockError, TimeoutError) as failure:
            return self._error(failure)
        self._admitted()
        result = response["Responses"][0]["PartitionResponses"][0]
        if result["ErrorCode"]:
            self._stale.set()
            return name_of(result["ErrorCode"])
        expected.offset = int(result["BaseOffset"])
        return ""

    async def _delivery(
        self, key: tuple[ProbeRole, int, int], expected: _Expected
    ) -> tuple[str, float | None]:
        """When the consumer got the record; or the error, if it did not."""
        await asyncio.wait({expected.delivered}, timeout=LOST_SECONDS)
        if expected.delivered.done():
            return "", expected.delivered.result()
        if self._positions.get(key[:2], -1) > expected.offset >= self._first.get(key[:2], 0):
            self.counts.lost += 1
            log.error("acknowledged record lost", partition=key[1], role=str(key[0]), offset=expected.offset)
            return "LOST", None
        return "TIMED_OUT", None

    def _is_unread(self, place: tuple[ProbeRole, int], offset: int) -> bool:
        """Whether the consumer began behind a record: it shows nothing about its delivery."""
        return offset < self._first.get(place, 0)

    async def _consume(self, role: ProbeRole, number: int) -> None:
        partition = TopicPartition(TOPICS[role], number)
        position: int | None = None
        seen: set[int] = set()
        while True:
            try:
                async with asyncio.timeout(PROBE_SECONDS_MAX):
                    if position is None:
                        position = (await bounds(self.outer, partition))[1]
                        self._first[role, number] = self._positions[role, number] = position
                    chunk = await read(
                        self.outer, partition, position, wait_ms=FETCH_WAIT_MS, lane=f"fetch-{role}-{number}"
                    )
            except OffsetOutOfRange:
                position = None
                continue
            except (PenstockError, TimeoutError) as failure:
                self._error(failure)
                await asyncio.sleep(0.2)
                continue
            now = time.monotonic()
            for record in chunk.records:
                self._arrived(role, number, record, now, seen)
            position = self._positions[role, number] = chunk.position

    def _arrived(self, role: ProbeRole, number: int, record: Record, now: float, seen: set[int]) -> None:
        checker, _, sequence = (record.key or b"").decode(errors="replace").rpartition("/")
        if checker != self.id or not sequence.isdecimal():
            return
        self.counts.duplicates += int(sequence) in seen
        seen.add(int(sequence))
        if len(seen) > PENDING_MAX * 100:
            seen.remove(min(seen))
        expected = self._expected.get((role, number, int(sequence)))
        if expected is not None and not expected.delivered.done():
            expected.delivered.set_result(now)

    # Requests without data

    async def _call_brokers(self, broker: int) -> None:
        """The way through the gateway, and the broker's own listener; a probe a second each."""
        while True:
            at = time.monotonic()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._reach(broker, at))
                group.create_task(self._call_inside(broker, at))
            await asyncio.sleep(max(0.0, at + CALLS_SECONDS - time.monotonic()))

    async def _reach(self, broker: int, at: float) -> None:
        error = ""
        body = {"Topics": [{"Name": TOPICS[ProbeRole.ALONE]}], "AllowAutoTopicCreation": False}
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                await self.outer.call(
                    "Metadata",
                    body,
                    to=NodeWithId(broker),
                    timeout=CALL_SECONDS_MAX,
                    retry=False,
                    lane="reach",
                )
                self._admitted()
        except (PenstockError, TimeoutError) as failure:
            error = self._error(failure)
        self._emit_call(broker, ProbeRole.REACH, at, error)

    async def _call_inside(self, broker: int, at: float) -> None:
        address = self.layout.addresses.get(broker)
        error = "BROKER_UNKNOWN" if address is None else await self._inner.call(address, CALL_SECONDS_MAX)
        self._emit_call(broker, ProbeRole.INNER, at, error)

    def _report_session(self, broker: int) -> None:
        error = FENCED if broker in self.layout.fenced else ""
        if not self.counts.last_error:  # an old response shows nothing
            self._emit_call(broker, ProbeRole.SESSION, time.monotonic(), error)

    async def _probe_directory(self, broker: int, path: Path) -> None:
        probe = DirectoryProbe(path)
        try:
            while True:
                at = time.monotonic()
                wrong = await probe.probe()
                self._emit_call(broker, ProbeRole.DIRECTORY, at, wrong)
                await asyncio.sleep(max(0.5, at + DIRECTORY_SECONDS - time.monotonic()))
        finally:
            await probe.close()

    async def _connect_each_minute(self) -> None:
        """A fresh connection to each broker's gateway, with the time of each stage."""
        while True:
            await asyncio.sleep(CONNECT_SECONDS / max(1, len(self.layout.brokers)))
            for broker in self.layout.brokers:
                await self._connect(broker)
                await asyncio.sleep(CONNECT_SECONDS / max(1, len(self.layout.brokers)))

    async def _connect(self, broker: int) -> None:
        assert self.target.tenant_security is not None
        at = last = time.monotonic()
        stages: dict[str, int] = {}

        def ended(stage: str) -> None:
            nonlocal last
            now = time.monotonic()
            stages[stage], last = int((now - last) * 1e6), now

        error = ""
        try:
            async with asyncio.timeout(PROBE_SECONDS_MAX):
                cluster = await self.outer.cluster()
                known = cluster.nodes.get(broker)
                address = known.address if known else addresses(self.target.gateways)[0]
                last = at = time.monotonic()
                connection = await Connection.open(
                    address.host, address.port, self.target.tenant_security, stage=ended
                )
                async with connection:
                    await connection.call("Metadata", {"Topics": []})
                    ended("metadata")
                    number = self.layout.numbers.get(broker, 0)
                    data = write([Record(0, int(time.time() * 1000), b"connect", b"")])
                    body = produce_body(TopicPartition(TOPICS[ProbeRole.ALONE], number), data)
                    version = connection.version_of("Produce", PRODUCE_BY_NAME_LAST)
                    await connection.call("Produce", body, version=version)
                    ended("produce")
        except (PenstockError, TimeoutError) as failure:
            error = self._error(failure)
        self._emit_call(broker, ProbeRole.CONNECT, at, error, stages=stages)

    # Itself

    async def _report_self(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(SELF_SECONDS)
            late = time.monotonic() - before - SELF_SECONDS
            late, self._lateness = max(late, self._lateness), 0.0
            self.counts.stalls += late > SELF_SECONDS
            error = self.refused and REFUSED
            self._emit_call(-1, ProbeRole.SELF, time.monotonic(), error, latency=max(0.0, late))

    def _check_clock(self) -> None:
        ahead = time.time() - time.monotonic()
        if abs(ahead - self._wall) > CLOCK_STEP_SECONDS:
            self.counts.clock_jumps += 1
            log.warning("clock jumped", cluster=self.target.id, seconds=ahead - self._wall)
            self._wall = ahead

    def _error(self, failure: PenstockError | TimeoutError) -> str:
        if isinstance(failure, LoginRefused):
            refusal = CheckerRefused(reason=str(failure))
            if not self.refused:
                log.warning("checker refused", cluster=self.target.id, **{key_names.ERROR: str(refusal)})
            self.refused = str(refusal)
        if isinstance(failure, TimeoutError):
            return "TIMED_OUT"
        code = failure.facts.get("error_code")
        return name_of(code) if isinstance(code, int) else type(failure).code

    def _admitted(self) -> None:
        self.refused = ""

    # Events

    def _report_waiting(self, due: Due, at: float, sequence: int, leader: int) -> None:
        self._emit(
            due.broker, ProbeRole.WAITING, Probe.PRODUCE, at, sequence, str(due.role), leader, of=due.role
        )

    def _emit_call(
        self,
        broker: int,
        role: ProbeRole,
        at: float,
        error: str,
        *,
        latency: float | None = None,
        stages: Mapping[str, int] | None = None,
    ) -> None:
        self._sequences[role, broker] += 1
        took = time.monotonic() - at if latency is None else latency
        self._add(
            broker, role, Probe.CALL, at, self._sequences[role, broker], error, took, stages=stages or {}
        )

    def _emit(
        self,
        broker: int,
        role: ProbeRole,
        probe: Probe,
        at: float,
        sequence: int,
        error: str,
        leader: int,
        *,
        arrived: float | None = None,
        of: ProbeRole | None = None,
    ) -> None:
        took = (arrived or time.monotonic()) - at
        pair = ProbeRole.PAIR in (role, of)
        follower = self.layout.follower(broker) if pair and broker in self.layout.numbers else None
        self._add(broker, role, probe, at, sequence, error, took, leader=leader, follower=follower)

    def _add(
        self,
        broker: int,
        role: ProbeRole,
        probe: Probe,
        at: float,
        sequence: int,
        error: str,
        took: float,
        *,
        leader: int = -1,
        follower: int | None = None,
        stages: Mapping[str, int] | None = None,
    ) -> None:
        event = HealthProbe(
            cluster=PhysicalClusterId(self.target.id),
            broker=BrokerId(broker),
            zone=Zone(self.layout.zones.get(broker, "")),
            partition=self.layout.numbers.get(broker, -1),
            probe=probe,
            checker=self.id,
            sequence=sequence,
            time_ms=int((at + self._wall) * 1000),
            latency_us=None if error else max(0, int(took * 1e6)),
            error=error or None,
            role=role,
            leader=leader if leader >= 0 else None,
            follower=follower,
            vantage=self.vantage,
            stages=stages or {},
        )
        if error and role is not ProbeRole.WAITING:
            self.counts.failures[str(role), error] += 1
        self.writer.add(event)
        self._on_probe(event)
