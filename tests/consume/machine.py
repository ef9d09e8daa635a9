"""A hypothesis state machine around the pure core: arbitrary interleavings, checked at every step.

The model knows which records exist, which were ever finished, and what the broker stores; the core
knows none of this. Time is a counter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.consume.assignment import Assignment
from penstock.consume.back_pressure import Bounds, plan_fetch
from penstock.consume.core import Core
from penstock.consume.record import Record
from penstock.consume.schedule import NullKeys, Order, queue_key_of
from penstock.consume.testing import MemoryMessage
from penstock.model import offset_map

if TYPE_CHECKING:
    from penstock.consume.offset_controller import PartitionCommit

KEYS = [b"a", b"b", b"c", None]
PARTITIONS = 3
RECORDS_MAX = 40
UNCOMMITTED_MAX = 12


@dataclass
class Log:
    """One partition on the broker: records at some offsets, and what the group committed."""

    keys: dict[int, bytes | None] = field(default_factory=dict)
    end: int = 0
    committed: int | None = None
    metadata: str = ""
    finished: set[int] = field(default_factory=set)  # ever, by any incarnation
    safe: set[int] = field(default_factory=set)  # finished, and covered by a stored commit


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
        self.core = Core(Bounds(RECORDS_MAX, 10_000), UNCOMMITTED_MAX)
        self.cursor: dict[Assignment, int] = {}
        self.running: list[Record] = []
        self.uncommitted: set[tuple[Assignment, int]] = set()
        self.polled = 0
        self.highest_started: dict[tuple[Assignment, object], int] = {}

    @initialize(
        sizes=st.lists(
            st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 4)), max_size=40),
            min_size=PARTITIONS,
            max_size=PARTITIONS,
        )
    )
    def fill(self, sizes: list[list[tuple[bytes | None, int]]]) -> None:
        for log, size in zip(self.logs.values(), sizes, strict=True):
            for key, step in size:
                log.keys[log.end] = key
                log.end += step  # more than 1 leaves offsets without records

    @rule(number=st.integers(0, PARTITIONS - 1))
    def assign(self, number: int) -> None:
        partition_id = ("t", number)
        if partition_id in self.core.assignments:
            return
        log = self.logs[partition_id]
        self.epoch += 1
        assignment = Assignment("t", number, self.epoch, log.committed, log.metadata)
        self.cursor[assignment] = log.committed or 0
        self.core.assign(assignment)

    @rule(number=st.integers(0, PARTITIONS - 1), count=st.integers(1, 12))
    def receive(self, number: int, count: int) -> None:
        assignment = self.core.assignments.get(("t", number))
        self.core.update_totals()
        room = RECORDS_MAX - (self.polled - self.core.released_records)
        if assignment is None or assignment.closing or room <= 0:
            return
        log = self.logs["t", number]
        offsets = [offset for offset in log.keys if offset >= self.cursor[assignment]][: min(count, room)]
        if not offsets:
            self.core.advance(assignment, log.end)
            return
        records = [
            Record(
                MemoryMessage(("t", number), offset, b"v", log.keys[offset]),
                assignment,
                offset,
                log.keys[offset],
                queue_key_of(log.keys[offset], self.order, self.null_keys),
                10,
            )
            for offset in offsets
        ]
        self.cursor[assignment] = offsets[-1] + 1
        self.polled += len(records)
        self.core.receive(assignment, records)
        plan_fetch(self.core.assignments.values(), self.core.bounds.share(PARTITIONS), self.now)

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
            "a record that a commit covers never runs again"
        )
        if record.queue_key is not None:
            for other in self.running:
                assert (other.topic, other.partition, other.queue_key) != (
                    record.topic,
                    record.partition,
                    record.queue_key,
                )
            before = self.highest_started.get((record.assignment, record.queue_key), -1)
            assert record.offset >= before, "records of one queue run in order; a retry is the same record"
            self.highest_started[record.assignment, record.queue_key] = record.offset
        self.running.append(record)
        self.uncommitted.add((record.assignment, record.offset))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self.running))
        self.running.remove(record)
        if record.assignment.live:
            self.logs["t", record.partition].finished.add(record.offset)
        self.core.finish(record)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), pause=st.integers(0, 5))
    def fail(self, data: st.DataObject, pause: int) -> None:
        record = data.draw(st.sampled_from(self.running))
        self.running.remove(record)
        self.uncommitted.discard((record.assignment, record.offset))
        self.core.retry_at(self.now + pause, record)

    @rule(seconds=st.integers(1, 10))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.core.coordinator.wake_retries(self.now)
        self.core.admit(self.now)

    @rule(accepted=st.booleans())
    def commit(self, accepted: bool) -> None:
        commits = self.core.pending_commits()
        if accepted:
            self.store(commits)
            self.core.acknowledge(commits)

    def store(self, commits: list[PartitionCommit]) -> None:
        for commit in commits:
            log = self.logs[commit.assignment.key]
            offset_map_stored = offset_map.decode(commit.offset, commit.metadata)
            for offset in log.keys:
                if offset < commit.offset or (
                    offset_map_stored is not None and offset_map_stored.done(offset)
                ):
                    assert offset in log.finished, f"commit covers unfinished {commit.assignment}@{offset}"
                    log.safe.add(offset)
                    self.uncommitted = {e for e in self.uncommitted if e != (commit.assignment, offset)}
            assert len(commit.metadata) <= offset_map.METADATA_CHARS_MAX
            before = log.committed or 0
            assert commit.offset >= before, "the committed offset never decreases"
            log.committed, log.metadata = commit.offset, commit.metadata

    @rule(number=st.integers(0, PARTITIONS - 1), flush=st.booleans(), chance=st.integers(0, 3))
    def revoke(self, number: int, flush: bool, chance: int) -> None:
        assignment = self.core.assignments.get(("t", number))
        if assignment is None or chance != 3:
            return
        if flush:
            commits = self.core.pending_commits([assignment])
            self.store(commits)
            self.core.acknowledge(commits)
        self.core.drop(assignment)
        running = {(record.assignment, record.offset) for record in self.running}
        self.uncommitted = {e for e in self.uncommitted if e[0] is not assignment or e in running}

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
        self.core.update_totals()
        held = sum(len(assignment.unfinished) for assignment in self.core.assignments.values())
        assert 0 <= held == self.polled - self.core.released_records <= RECORDS_MAX
        size = sum(assignment.bytes_unfinished for assignment in self.core.assignments.values())
        assert size == held * 10

    @invariant()
    def uncommitted_records_are_bounded(self) -> None:
        assert self.core.coordinator.credit >= 0
        live = {e for e in self.uncommitted if e[0].live}
        assert len(live) <= UNCOMMITTED_MAX

    @invariant()
    def running_records_are_counted(self) -> None:
        for assignment in self.core.assignments.values():
            assert assignment.in_flight == sum(record.assignment is assignment for record in self.running)

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
            self.core.coordinator.wake_retries(self.now)
            self.core.admit(self.now)
            while ready := self.core.coordinator.take():
                self.logs["t", ready.partition].finished.add(ready.offset)
                self.core.finish(ready)
            self.commit(True)
            if all(log.committed == log.end or not log.end for log in self.logs.values()):
                break
        for log in self.logs.values():
            assert set(log.keys) == log.finished, "no record is lost"
            assert log.committed == log.end or not log.end, "a partition read to its end is committed to it"
