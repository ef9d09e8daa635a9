"""A model of Kafka and of handlers around the pure core: any interleaving, checked at every step.

The model knows what exists, what was ever finished, and what the broker stores; the core knows
none of this. Time is a counter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.consume.assignment import Assignment
from penstock.consume.core import Core
from penstock.consume.intake import Bounds, steer
from penstock.consume.record import Record
from penstock.consume.schedule import NullKeys, Order, lane_of
from penstock.model import offsetmap

KEYS = [b"a", b"b", b"c", None]
PARTITIONS = 3
RECORDS_MAX = 40
EXPOSURE = 12


class FakeMessage:
    """The few facts of a message that a Record is made from."""

    def __init__(self, key: bytes | None, value: bytes = b"v", headers=None, timestamp=(1, 1000)) -> None:
        self._value, self._key, self._headers, self._timestamp = value, key, headers, timestamp

    def value(self) -> bytes:
        return self._value

    def headers(self):
        return self._headers

    def timestamp(self):
        return self._timestamp


@dataclass
class Log:
    """One partition as the broker has it: records at some offsets, and what the group committed."""

    keys: dict[int, bytes | None] = field(default_factory=dict)
    end: int = 0
    committed: int | None = None
    metadata: str = ""
    finished: set[int] = field(default_factory=set)  # ever, by any incarnation
    safe: set[int] = field(default_factory=set)  # finished, and a stored commit says so


class ConsumeMachine(RuleBasedStateMachine):
    order = Order.KEY
    null_keys = NullKeys.TOGETHER

    def __init__(self) -> None:
        super().__init__()
        self.logs = {("t", number): Log() for number in range(PARTITIONS)}
        self.now = 0.0
        self.epoch = 0
        self.fresh_core()

    def fresh_core(self) -> None:
        self.core = Core(Bounds(RECORDS_MAX, 10_000), EXPOSURE)
        self.cursor: dict[Assignment, int] = {}
        self.running: list[Record] = []
        self.exposed: set[tuple[Assignment, int]] = set()
        self.handed = 0
        self.highest_started: dict[tuple[Assignment, object], int] = {}

    @initialize(
        sizes=st.lists(
            st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 4)), max_size=40),
            min_size=PARTITIONS,
            max_size=PARTITIONS,
        )
    )
    def fill(self, sizes) -> None:
        for log, size in zip(self.logs.values(), sizes, strict=True):
            for key, step in size:
                log.keys[log.end] = key
                log.end += step  # a step above 1 is a hole: compacted away, aborted or a marker

    @rule(number=st.integers(0, PARTITIONS - 1))
    def assign(self, number: int) -> None:
        place = ("t", number)
        if place in self.core.assignments:
            return
        log = self.logs[place]
        self.epoch += 1
        assignment = Assignment("t", number, self.epoch, log.committed, log.metadata)
        self.cursor[assignment] = log.committed or 0
        self.core.assign(assignment)

    @rule(number=st.integers(0, PARTITIONS - 1), count=st.integers(1, 12))
    def receive(self, number: int, count: int) -> None:
        assignment = self.core.assignments.get(("t", number))
        self.core.settle_books()
        room = RECORDS_MAX - (self.handed - self.core.gone_records)
        if assignment is None or assignment.closing or room <= 0:
            return
        log = self.logs["t", number]
        offsets = [offset for offset in log.keys if offset >= self.cursor[assignment]][: min(count, room)]
        if not offsets:
            self.core.reach(assignment, log.end)
            return
        records = [
            Record(
                FakeMessage(log.keys[offset]),
                assignment,
                offset,
                log.keys[offset],
                lane_of(log.keys[offset], self.order, self.null_keys),
                10,
            )
            for offset in offsets
        ]
        self.cursor[assignment] = offsets[-1] + 1
        self.handed += len(records)
        self.core.receive(assignment, records)
        steer(self.core.assignments.values(), self.core.bounds.share(PARTITIONS), self.now)

    @rule(count=st.integers(1, 6))
    def take(self, count: int) -> None:
        for _ in range(count):
            record = self.core.coordinator.take()
            if record is None:
                return
            self.start(record)

    @rule(size=st.integers(1, 6))
    def take_batch_and_settle(self, size: int) -> None:
        batch = self.core.coordinator.take_batch(size)
        for record in batch:
            self.start(record)
            self.running.remove(record)
            self.logs["t", record.partition].finished.add(record.offset)
        self.core.finish_batch(batch)

    @rule(size=st.integers(1, 6))
    def take_batch_and_fail(self, size: int) -> None:
        self.core.coordinator.put_back(self.core.coordinator.take_batch(size))

    def start(self, record: Record) -> None:
        assert record.assignment.live
        assert not record.assignment.closing
        assert record.offset in record.assignment.unfinished
        assert record.offset not in self.logs["t", record.partition].safe, (
            "what a commit covers never runs again"
        )
        if record.lane is not None:
            for other in self.running:
                assert (other.topic, other.partition, other.lane) != (
                    record.topic,
                    record.partition,
                    record.lane,
                )
            before = self.highest_started.get((record.assignment, record.lane), -1)
            assert record.offset >= before, "records of one lane run in order; a retry is the same record"
            self.highest_started[record.assignment, record.lane] = record.offset
        self.running.append(record)
        self.exposed.add((record.assignment, record.offset))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data) -> None:
        record = data.draw(st.sampled_from(self.running))
        self.running.remove(record)
        if record.assignment.live:
            self.logs["t", record.partition].finished.add(record.offset)
        self.core.finish(record)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), pause=st.integers(0, 5))
    def fail(self, data, pause: int) -> None:
        record = data.draw(st.sampled_from(self.running))
        self.running.remove(record)
        self.exposed.discard((record.assignment, record.offset))
        self.core.retry_at(self.now + pause, record)

    @rule(seconds=st.integers(1, 10))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.core.coordinator.wake(self.now)
        self.core.admit()

    @rule(accepted=st.booleans())
    def commit(self, accepted: bool) -> None:
        marks = self.core.marks()
        if accepted:
            self.store(marks)
            self.core.acknowledge(marks)

    def store(self, marks) -> None:
        for mark in marks:
            log = self.logs[mark.assignment.key]
            kept = offsetmap.decode(mark.offset, mark.metadata)
            for offset in log.keys:
                if offset < mark.offset or (kept is not None and kept.done(offset)):
                    assert offset in log.finished, f"commit covers unfinished {mark.assignment}@{offset}"
                    log.safe.add(offset)
                    self.exposed = {e for e in self.exposed if e != (mark.assignment, offset)}
            assert len(mark.metadata) <= offsetmap.METADATA_CHARS_MAX
            before = log.committed or 0
            assert mark.offset >= before, "a commit never goes back"
            log.committed, log.metadata = mark.offset, mark.metadata

    @rule(number=st.integers(0, PARTITIONS - 1), flush=st.booleans(), chance=st.integers(0, 3))
    def revoke(self, number: int, flush: bool, chance: int) -> None:
        assignment = self.core.assignments.get(("t", number))
        if assignment is None or chance != 3:
            return
        if flush:
            marks = self.core.marks([assignment])
            self.store(marks)
            self.core.acknowledge(marks)
        self.core.drop(assignment)
        running = {(record.assignment, record.offset) for record in self.running}
        self.exposed = {e for e in self.exposed if e[0] is not assignment or e in running}

    @rule(number=st.integers(0, PARTITIONS - 1), chance=st.integers(0, 3))
    def close(self, number: int, chance: int) -> None:
        assignment = self.core.assignments.get(("t", number))
        if assignment is not None and chance == 3:
            self.core.close(assignment)

    @rule(chance=st.integers(0, 7))
    def restart(self, chance: int) -> None:
        if chance == 7:
            self.fresh_core()

    @invariant()
    def memory_is_bounded(self) -> None:
        self.core.settle_books()
        held = sum(len(assignment.unfinished) for assignment in self.core.assignments.values())
        assert 0 <= held == self.handed - self.core.gone_records <= RECORDS_MAX
        size = sum(assignment.bytes_unfinished for assignment in self.core.assignments.values())
        assert size == held * 10

    @invariant()
    def exposure_is_bounded(self) -> None:
        assert self.core.coordinator.credit >= 0
        live = {e for e in self.exposed if e[0].live}
        assert len(live) <= EXPOSURE

    @invariant()
    def what_runs_is_counted(self) -> None:
        for assignment in self.core.assignments.values():
            assert assignment.started == sum(record.assignment is assignment for record in self.running)

    def teardown(self) -> None:
        for assignment in [each for each in self.core.assignments.values() if each.closing]:
            self.core.drop(assignment)
        for number in range(PARTITIONS):
            self.assign(number)
        for record in list(self.running):
            self.running.remove(record)
            self.core.retry_at(self.now, record)
        for _ in range(500):
            for number in range(PARTITIONS):
                self.receive(number, 12)
            self.now += 100
            self.core.coordinator.wake(self.now)
            self.core.admit()
            while record := self.core.coordinator.take():
                self.logs["t", record.partition].finished.add(record.offset)
                self.core.finish(record)
            self.commit(True)
            if all(log.committed == log.end or not log.end for log in self.logs.values()):
                break
        for log in self.logs.values():
            assert set(log.keys) == log.finished, "nothing is ever lost"
            assert log.committed == log.end or not log.end, "what was read to the end is committed to the end"
