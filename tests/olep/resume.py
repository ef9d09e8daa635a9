"""One partition of an executor that fails at a chosen place and is resumed with repaired code.

Fold, store, snapshots, partition task and sender are the real ones, with state in a SQLite file. Only the
Kafka client is replaced, by lists. A failure is a death at a named fault point, a defect of `decide` at
which the executor stops, or the loss of the file. Every run resumes until the log's end.
"""

from __future__ import annotations

import signal
import tempfile
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.model import fault_points
from penstock.model.errors.olep import DecideImpure, EventRejected
from penstock.olep.application import Application, Emit, Reason, RejectPolicy
from penstock.olep.event import RETRY, VERSION, Event, Record, request
from penstock.olep.executor import ASSIGNED, REVOKED
from penstock.olep.fold import Fold, PurityChecks, Source
from penstock.olep.log import APPEND_AFTER, APPEND_BEFORE
from penstock.olep.outbox_sender import OutboxSender
from penstock.olep.partition_task import ExecutorCounters, PartitionTask
from penstock.olep.state_snapshot import DirectoryStorage, StateSnapshots
from penstock.olep.store import digest
from penstock.olep.store.memory import MemoryStore
from penstock.olep.store.sqlite import SqliteStores
from penstock.olep.table import Put, Table
from tests.olep.memory_cluster import CODEC, TOPIC_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.olep.application import Decision, State

TARGETS = 2  # partitions of the log that the executor emits to

# Of these, a partition task reaches none: they are in the group's callbacks and in the client.
ELSEWHERE = {ASSIGNED, REVOKED, APPEND_BEFORE, APPEND_AFTER}
POINTS = [point for point in fault_points.points("olep") if point not in ELSEWHERE]


class Count(NamedTuple):
    key: str
    value: int


class Entry(NamedTuple):
    at: int
    value: int


COUNTS = Table("counts", Count)
ENTRIES = Table("entries", Entry, append_only=True)
TOTALS = Table("totals", Count)


def count(state: State, event: Event) -> Decision:
    before = state.get(COUNTS, event.key)
    value = (before.value if before else 0) + event.payload["by"]
    effects = (Put(COUNTS, Count(event.key, value)), Put(ENTRIES, Entry(event.offset, value)))
    keys = (event.key, f"{event.key}-copy")
    return effects, [Emit("totals", key, "counted", {"value": value}) for key in keys]


def count_twice(state: State, event: Event) -> Decision:
    """The second version."""
    return count(state, event._replace(payload={"by": 2 * event.payload["by"]}))


def total(state: State, event: Event) -> Decision:
    before = state.get(TOTALS, event.key)
    value = (before.value if before else 0) + event.payload["value"]
    return (Put(TOTALS, Count(event.key, value)),), ()


STOPS = dict.fromkeys((Reason.RAISED, Reason.INVALID), RejectPolicy.STOP)
FIRST = Application("count", count, (COUNTS, ENTRIES), {"add": 1}, logs={"totals"}, on_reject=STOPS, window=8)
COUNTING = replace(FIRST, decide=count_twice, window=5, version=2, earlier=[FIRST])
TOTALLING = Application("total", total, (TOTALS,), {"counted": 1})


def _raises(state: State, event: Event) -> Decision:
    raise ValueError("a defect")


def _impure(state: State, event: Event) -> Decision:
    _calls.append(0)
    return (Put(COUNTS, Count(event.key, len(_calls))),), ()


def _undeclared(state: State, event: Event) -> Decision:
    return (Put(TOTALS, Count(event.key, 1)),), ()


def _unencodable(state: State, event: Event) -> Decision:
    effects, emits = count(state, event)
    return effects, [emit._replace(payload={"value": {1}}) for emit in emits]


def _out_of_range(state: State, event: Event) -> Decision:
    return (Put(COUNTS, Count(event.key, 1 << 70)),), ()


def _wrong_type(state: State, event: Event) -> Decision:
    return (Put(COUNTS, Count(event.key, "text")),), ()  # type: ignore[arg-type]  # the defect


_calls: list[int] = []
DEFECTS = (_raises, _impure, _undeclared, _unencodable, _out_of_range, _wrong_type)


def defective(defect: Callable[[State, Event], Decision], offset: int) -> Application:
    """The application with a defect that shows from this offset on."""

    def version(application: Application) -> Application:
        def decide(state: State, event: Event) -> Decision:
            return (defect if event.offset >= offset else application.decide)(state, event)

        return replace(application, decide=decide)

    return replace(version(COUNTING), earlier=[version(FIRST)])


class Died(BaseException):
    """Raised at an armed fault point, where a real process is killed."""


@contextmanager
def armed(point: str, arrival: int) -> Iterator[None]:
    def die(counter: fault_points.Armed) -> None:
        counter.arrivals_left -= 1
        if counter.arrivals_left == 0:
            raise Died

    before = fault_points._armed, fault_points._count_down
    fault_points._armed = {fault_points.FaultPoint(point): fault_points.Armed(arrival, signal.SIGKILL)}
    fault_points._count_down = die  # type: ignore[assignment]  # restored below
    try:
        yield
    finally:
        fault_points._armed, fault_points._count_down = before


class ListProducer:
    """The client's producer: what it was given reaches the log when it is polled, a part at a time."""

    def __init__(self, log: dict[tuple[str, int], list[Record]], dice: Random) -> None:
        self.log = log
        self.dice = dice
        self.queue: deque[tuple[Any, ...]] = deque()

    def produce(self, topic: str, value: bytes, key: bytes, partition: int, report: Any = None) -> None:
        self.queue.append((value, key, (topic, partition), report))

    def poll(self, timeout: float = 0.0) -> None:
        self._deliver(self.dice.randrange(len(self.queue) + 1))

    def flush(self, timeout: float = 0.0) -> None:
        self._deliver(len(self.queue))

    def _deliver(self, number: int) -> None:
        for _ in range(number):
            value, key, target, report = self.queue.popleft()
            records = self.log.setdefault(target, [])
            records.append(Record(len(records), key, value))
            if report is not None:
                report(None, None)


class ListSender(OutboxSender):
    def __init__(self, producer: ListProducer) -> None:
        self._targets = {"totals": ("totals", TARGETS), "counts": ("counts", 1)}
        self._producer = producer  # type: ignore[assignment]  # lists instead of a client
        self._fatal = None


class ResumedPartition:
    """A partition's executor on files below `home`, with the log it emits to."""

    def __init__(self, records: Sequence[Record], home: Path, dice: Random) -> None:
        self.records = records
        self.home = home
        self.dice = dice
        self.emitted: dict[tuple[str, int], list[Record]] = {}
        self.stores = SqliteStores(home / "state")
        self.acknowledged = 0  # as committed to the group

    def run(self, application: Application, *, until: int | None = None) -> None:
        """Applies the log up to its end or `until`, from wherever the store is. Raises what stopped it."""
        storage = DirectoryStorage(self.home / "snapshots")
        snapshots = StateSnapshots(storage, self.home / "scratch", every_seconds=0.0)
        snapshots.restore(self.stores, application, TOPIC_ID, 0)
        store = self.stores.open(application, TOPIC_ID, 0)
        sender = ListSender(ListProducer(self.emitted, self.dice))
        try:
            position, _ = store.claim(1)
            source = Source("counts", TOPIC_ID, 0)
            fold = Fold(application, source, CODEC, store, purity_checks=PurityChecks.ALWAYS)
            task = PartitionTask(fold, store, sender, ExecutorCounters(), position, self.acknowledged)
            end = len(self.records) if until is None else until
            while task.position < end:
                step = self.dice.randint(1, 9)
                task.apply(self.records[task.position : min(end, task.position + step)])
                sender.poll()
                if self.dice.random() < 0.3:
                    snapshots.save(store, task.position, now=True)
                    self.acknowledged = task.in_flight.acknowledged_position(task.position)
                if self.dice.random() < 0.3 and not task.in_flight.pending:
                    task.prune_outbox()
            if until is None:
                sender.flush()
        finally:
            store.close()

    def lose_file(self) -> None:
        for path in (self.home / "state").glob("*"):
            path.unlink()

    def digest(self) -> str:
        store = self.stores.open(COUNTING, TOPIC_ID, 0)
        try:
            return digest(store, COUNTING)
        finally:
            store.close()

    def received(self) -> dict[tuple[str, int], list[bytes | None]]:
        """What each partition of a log receives, each event at its first occurrence."""
        emitted = self.emitted.items()
        return {target: list(dict.fromkeys(each.value for each in records)) for target, records in emitted}

    def totals(self) -> list[list[tuple[Any, ...]]]:
        """The state of an application that reads what was emitted, repeats included."""
        rows = []
        for partition in range(TARGETS):
            records = self.emitted.get(("totals", partition), [])
            store = MemoryStore(TOTALLING, partition)
            store.claim()
            batch = Fold(TOTALLING, Source("totals", TOPIC_ID, partition), CODEC, store).process(records, 0)
            assert batch.stopped is None
            store.commit(batch, sent=0)
            rows.append(sorted(store.scan(TOTALS)))
        return rows

    def result(self) -> tuple[Any, ...]:
        return self.digest(), self.received(), self.totals()


def records_of(dice: Random, length: int) -> list[Record]:
    """Requests, some repeated; derived events, some sent again; unreadable ones; retries; new versions."""
    records: list[Record] = []
    sequence = 0
    while len(records) < length:
        offset, key = len(records), dice.choice("abc")
        match dice.randrange(9):
            case 8:
                payload = {"application": "count", "version": 2}
                announced = request(f"version-{offset}", VERSION, payload, time=0)
                records.append(Record(offset, b"", CODEC.encode(announced)))
            case 0 if sequence:  # a resent range
                start = dice.randrange(sequence)
                for number in range(start, sequence):
                    records.append(_derived(len(records), key, number))
            case 1 | 2 | 3:
                records.append(_derived(offset, key, sequence))
                sequence += 1
            case 4:
                value = dice.choice([b"garbage", None])
                records.append(Record(offset, key.encode(), value))
            case 5:
                retry = request(f"retry-{offset}", RETRY, {"offset": dice.randrange(offset + 1)}, time=0)
                records.append(Record(offset, key.encode(), CODEC.encode(retry)))
            case _:
                event = request(f"r{dice.randrange(20)}", "add", {"by": dice.randint(1, 5)}, time=0)
                records.append(Record(offset, key.encode(), CODEC.encode(event)))
    return records


def _derived(offset: int, key: str, number: int) -> Record:
    event = Event(f"=up:T.1.{number // 2}.{number % 2}", "add", {"by": number % 7 + 1}, 1, "cause", "root")
    return Record(offset, key.encode(), CODEC.encode(event))


def fail(partition: ResumedPartition, dice: Random) -> str:
    """Runs until one failure; returns what it was."""
    match dice.randrange(4):
        case 0:
            defect, offset = dice.choice(DEFECTS), dice.randrange(len(partition.records))
            with suppress(EventRejected, DecideImpure):
                partition.run(defective(defect, offset))
            return f"{defect.__name__} at {offset}"
        case 1:
            partition.run(COUNTING, until=dice.randrange(len(partition.records) + 1))
            partition.lose_file()
            return "file lost"
        case _:
            point, arrival = dice.choice(POINTS), dice.randint(1, 6)
            with armed(point, arrival), suppress(Died):
                partition.run(COUNTING)
            return f"died at {point}@{arrival}"


def check_resumes(seed: int | str) -> None:
    """Fails if a run with failures, each resumed with repaired code, ends otherwise than one without."""
    dice = Random(seed)
    records = records_of(dice, dice.randint(1, 60))
    with tempfile.TemporaryDirectory(prefix="penstock-resume-") as home:
        undisturbed = ResumedPartition(records, Path(home) / "undisturbed", dice)
        undisturbed.run(COUNTING)
        disturbed = ResumedPartition(records, Path(home) / "disturbed", dice)
        failures = [fail(disturbed, dice) for _ in range(dice.randint(1, 3))]
        disturbed.run(COUNTING)
        assert disturbed.result() == undisturbed.result(), f"seed {seed}: {failures}"
        for emitted in disturbed.emitted.values():
            _check_order(emitted)


def _check_order(records: Sequence[Record]) -> None:
    """Every event first appears after those with lower ids of its stream."""
    ids = [CODEC.decode(record.value or b"", "", 0, 0).id for record in records]
    first = [tuple(map(int, event_id.rsplit(".", 2)[1:])) for event_id in dict.fromkeys(ids)]
    assert first == sorted(first)
