"""Whatever fails, and wherever it resumes, a view equals a run without the failure.

Random events, among them repeats, records that a consumer never sees, unreadable ones and some that the first
code cannot project. Random steps: run the view with that code or with repaired code, rebuild it, drop old
generations, take a backup of the store, go back to it. A step may be killed at a named fault point, or the
server may come back with the backup at that point while the writer is running. After each step, every
generation equals the log at its position; in the end, the view is at the end of the log.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pytest
import redis

from penstock.model import fault_points
from penstock.model.errors.views import ViewChanged, ViewEventRefused, ViewFailed, ViewMissing
from penstock.olep.application import Reason, RejectPolicy
from penstock.olep.event import Event, derived_id, request, stream_of
from penstock.olep.table import Put, Remove, Table
from penstock.olep.view import SKIPPED, digest, runner
from penstock.olep.view.consistent_reads import Reads
from penstock.olep.view.projection import Projection
from penstock.olep.view.rebuild import RETIRED, drop_unused, rebuild
from penstock.olep.view.runner import Tuning, ViewRunner
from penstock.olep.view.stores.memory import MemoryViews
from penstock.olep.view.stores.redis import RedisViews
from penstock.olep.view.stores.sqlite import SqliteViews
from tests.harness.valkey import ValkeyServer, without_valkey
from tests.olep.bank_harness import wait_for
from tests.olep.counting_view import RunningView
from tests.olep.memory_log import TOPIC_ID, MemoryLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.model.fault_points import FaultPoint
    from penstock.olep.application import State
    from penstock.olep.table import Effect
    from penstock.olep.view import ViewStore, ViewStores

LONG = 3600.0  # seconds; nothing is pruned
PARTITIONS = 2
KEYS = "abcde"
SEEDS = 20  # scenarios in the ordinary suite
VALKEY_SEEDS = 8  # its server is restarted in each


class Total(NamedTuple):
    name: str
    cents: int
    last: str


class Entry(NamedTuple):
    number: int
    text: str


TOTALS = Table("totals", Total)
ENTRIES = Table("entries", Entry, append_only=True)


def _project(state: State, event: Event) -> Iterator[Effect]:
    before = state.get(TOTALS, event.key)
    cents = (before.cents if before else 0) + event.payload["n"]
    yield Put(ENTRIES, Entry(event.offset, event.id))
    yield Remove(TOTALS, event.key) if cents % 5 == 0 else Put(TOTALS, Total(event.key, cents, event.id))


def _project_some(state: State, event: Event) -> Iterator[Effect]:
    if event.payload["n"] % 7 == 0:
        raise ValueError("a case that was forgotten")
    yield from _project(state, event)


def _projection(project: Callable[[State, Event], Iterator[Effect]]) -> Projection:
    text, stop = {"totals": ("name", "last")}, {Reason.RAISED: RejectPolicy.STOP}
    return Projection("resumed", project, (TOTALS, ENTRIES), {"added": 1}, text=text, on_reject=stop)


BROKEN, REPAIRED = _projection(_project_some), _projection(_project)


class Killed(BaseException):
    """The process ends at a fault point."""


class Place(Protocol):
    """A store with a backup."""

    @property
    def stores(self) -> ViewStores: ...

    @property
    def restores_while_running(self) -> bool: ...

    def back_up(self) -> None: ...

    def restore(self) -> None:
        """Goes back to the last backup, or to nothing."""


class MemoryPlace:
    restores_while_running = True

    def __init__(self) -> None:
        self.stores = MemoryViews(LONG)
        self.back_up()

    def back_up(self) -> None:
        self._backup = copy.deepcopy((self.stores._generations, self.stores._serving))

    def restore(self) -> None:
        """In place, since a running writer has these objects."""
        generations, self.stores._serving = copy.deepcopy(self._backup)
        for key, generation in self.stores._generations.items():
            if key in generations:
                generation.__dict__.update(generations[key].__dict__)
                generations[key] = generation
            else:
                generation.epoch = 0  # its writer finds it gone
        self.stores._generations = generations


class SqlitePlace:
    restores_while_running = False  # files are restored while their writer is stopped

    def __init__(self, directory: Path) -> None:
        self._files, self._backup = directory / "files", directory / "backup"
        self._files.mkdir()
        self.stores = SqliteViews(self._files, LONG, synchronous="off")
        self.back_up()

    def back_up(self) -> None:
        shutil.rmtree(self._backup, ignore_errors=True)
        shutil.copytree(self._files, self._backup)

    def restore(self) -> None:
        shutil.rmtree(self._files)
        shutil.copytree(self._backup, self._files)


class ValkeyPlace:
    restores_while_running = True

    def __init__(self, server: ValkeyServer) -> None:
        self._server = server
        self.stores = RedisViews(server.url, LONG)
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
        self.back_up()

    def back_up(self) -> None:
        with redis.Redis.from_url(self._server.url) as client:
            client.save()

    def restore(self) -> None:
        """kill -9 and a restart from the last RDB file."""
        self._server.end()
        self._server.run()


class Scenario:
    def __init__(self, seed: int, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dice = random.Random(seed)
        self.place = place
        self.source = MemoryLog(PARTITIONS)
        self.source.use(monkeypatch)
        monkeypatch.setattr(fault_points, "reach", self._reach)
        monkeypatch.setattr(runner, "SWAP_SECONDS", 0.0)  # no rebuild is alive while a view is run
        self._armed: list[tuple[FaultPoint, int, Callable[[], None]]] = []  # point, arrival, what happens
        self._arrivals: Counter[FaultPoint] = Counter()
        self._sent = [0] * PARTITIONS  # derived events

    def run(self) -> None:
        self.append()
        steps = [self.append, self.run_view, self.run_view, self.rebuild, self.drop, self.place.back_up]
        for _ in range(self.dice.randint(5, 12)):
            self.dice.choice([*steps, self.place.restore])()
            self._armed = []
            self.check()
        self._finish(REPAIRED)
        assert self.check() == self.source.end_position()

    def append(self) -> None:
        for _ in range(self.dice.randint(1, 20)):
            partition, key, n = (
                self.dice.randrange(PARTITIONS),
                self.dice.choice(KEYS),
                self.dice.randint(1, 20),
            )
            kind = self.dice.random()
            if kind < 0.1:
                self.source.append(partition, key, b'{"type":"added"')
                continue
            event = request(f"r{self.dice.randint(0, 60)}", "added", {"n": n}, time=0)
            if kind < 0.4:
                # A resend repeats a range: the sequence goes back, then on.
                self._sent[partition] = max(0, self._sent[partition] + self.dice.choice((1, 1, 1, -2)))
                stream = stream_of("bank", TOPIC_ID, partition)
                name = derived_id(stream, self._sent[partition], 0)
                event = Event(name, "added", {"n": self._sent[partition] % 20 + 1}, 1, "cause", "r", 0)
            self.source.append(partition, key, event, gap=self.dice.choice((0, 0, 0, 2)))

    def run_view(self) -> None:
        self._arm("view.claimed", "view.commit.before", "view.commit.inside", "view.commit.after")
        with suppress(Killed, ViewEventRefused):
            self._finish(self.dice.choice((BROKEN, REPAIRED)))

    def rebuild(self) -> None:
        self._arm(*(point for point in fault_points.points("view")))
        with suppress(Killed, ViewMissing):  # missing: the server came back without the new generation
            rebuild(REPAIRED, self.source.log, self.place.stores, threading.Event(), tuning=self._tuning())

    def drop(self) -> None:
        drop_unused(REPAIRED, self.place.stores)

    def check(self) -> Any:
        """Compares all generations with a run without failures; returns the position of the serving one."""
        reference = MemoryViews(LONG)
        until = self.source.end_position()
        ViewRunner(REPAIRED, self.source.log, reference).run(threading.Event(), until=until)
        expected = self._open(reference, 1)
        serving = self.place.stores.serving(REPAIRED.name)
        position = None
        for generation in self.place.stores.generations(REPAIRED.name):
            actual = self._open(self.place.stores, generation)
            at = actual.position()
            with actual.reading() as ours, expected.reading(at) as theirs:
                assert digest(ours, REPAIRED) == digest(theirs, REPAIRED), f"generation {generation}"
            for partition in range(PARTITIONS):
                below = [
                    row for row in expected.scan(partition, SKIPPED) if row[0] < at.of(TOPIC_ID, partition)
                ]
                assert sorted(map(tuple, actual.scan(partition, SKIPPED))) == sorted(map(tuple, below))
            position = at if generation == serving else position
            actual.close()
        return position

    def _finish(self, projection: Projection) -> None:
        view = ViewRunner(projection, self.source.log, self.place.stores, tuning=self._tuning())
        view.run(threading.Event(), until=self.source.end_position())

    def _tuning(self) -> Tuning:
        return Tuning(batch_max=self.dice.choice((1, 3, 8, 50)))

    def _open(self, stores: ViewStores, generation: int) -> ViewStore:
        return stores.open(REPAIRED, TOPIC_ID, PARTITIONS, generation=generation)

    def _arm(self, *points: str) -> None:
        def kill() -> None:
            raise Killed

        self._arrivals.clear()
        outcomes = [kill]
        if self.place.restores_while_running:
            # A backup that the writer has outrun has its epoch and an earlier position.
            outcomes = self.dice.choice(
                ([kill], [self.place.restore], [self.place.back_up, self.place.restore])
            )
        arrival = 0
        for outcome in outcomes:
            arrival += self.dice.randint(1, 4)
            self._armed.append((fault_points.FaultPoint(self.dice.choice(points)), arrival, outcome))

    def _reach(self, point: FaultPoint) -> None:
        self._arrivals[point] += 1
        for armed, arrival, outcome in self._armed:
            if (armed, arrival) == (point, self._arrivals[point]):
                outcome()


@pytest.fixture(params=["memory", "sqlite", "valkey"])
def make_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Place]]:
    if request.param == "valkey":
        if reason := without_valkey():
            pytest.skip(reason)
        with ValkeyServer.start() as server:
            yield lambda: ValkeyPlace(server)
        return
    numbers = iter(range(1 << 30))

    def make_sqlite() -> Place:
        directory = tmp_path / str(next(numbers))
        directory.mkdir()
        return SqlitePlace(directory)

    yield MemoryPlace if request.param == "memory" else make_sqlite


def run_scenario(seed: int, place: Place) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        try:
            Scenario(seed, place, monkeypatch).run()
        except BaseException as error:
            error.add_note(f"seed {seed} of {type(place).__name__}")
            raise


def test_a_view_that_resumes_after_a_failure_equals_one_that_never_failed(
    make_place: Callable[[], Place], request: pytest.FixtureRequest
) -> None:
    for seed in range(VALKEY_SEEDS if "valkey" in request.node.name else SEEDS):
        run_scenario(seed, make_place())


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_views_resume_for_ten_minutes(make_place: Callable[[], Place]) -> None:
    first = int(os.environ.get("PENSTOCK_SEED", str(time.time_ns())))
    end = time.monotonic() + float(os.environ.get("SOAK_SECONDS", "600")) / 3  # for each of three stores
    seed = first
    while time.monotonic() < end:
        run_scenario(seed, make_place())
        seed += 1


@pytest.mark.skipif(without_valkey() is not None, reason=without_valkey() or "")
def test_a_cache_that_comes_back_with_older_data_has_no_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner is idle when the server goes back from 20 events to 10, as in a failover."""
    source = MemoryLog(1)
    source.use(monkeypatch)

    def add(start: int) -> None:
        for n in range(start, start + 10):
            source.append(0, f"key-{n}", request(f"r{n}", "added", {"n": 1}, time=0))

    def shows(count: int) -> bool:
        try:
            with view.reading() as reader:
                return len([*reader.rows(TOTALS)]) == reader.position.of(TOPIC_ID, 0) == count
        except ViewFailed:
            return False  # the server restarts

    with ValkeyServer.start() as server:
        place = ValkeyPlace(server)
        view = place.stores.open(REPAIRED, TOPIC_ID, 1, generation=1)
        with RunningView(ViewRunner(REPAIRED, source.log, place.stores)):
            add(0)
            wait_for(lambda: shows(10), "the first events")
            place.back_up()
            add(10)
            wait_for(lambda: shows(20), "events that the backup does not have")
            place.restore()
            wait_for(lambda: shows(20), "the idle runner to repeat them")
            place.restore()
            add(20)
            wait_for(lambda: shows(30), "the runner to repeat them before later events")
        view.close()


@pytest.mark.parametrize("stores", ["memory", "sqlite"])
def test_after_a_rebuild_the_running_writer_writes_the_generation_that_serves(
    stores: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MemoryLog(PARTITIONS)
    source.use(monkeypatch)
    views: ViewStores = MemoryViews(LONG) if stores == "memory" else SqliteViews(tmp_path, LONG)
    for n in range(10):
        source.append(n % PARTITIONS, "a", request(f"r{n}", "added", {"n": 1}, time=0))
    with (
        RunningView(ViewRunner(REPAIRED, source.log, views)) as live,
        Reads(REPAIRED, source.log, views, runner=live.runner) as reads,
    ):
        for generation in (2, 3):
            wait_for(lambda: live.runner.position().covers(source.end_position()), "the view to be running")
            done = rebuild(REPAIRED, source.log, views, threading.Event())
            assert done is not None
            assert done.new == generation
            for n in range(50):
                token = source.append(
                    n % PARTITIONS, "a", request(f"{generation}-{n}", "added", {"n": 1}, time=0)
                )
            with reads.after(token, timeout=60) as reader:
                assert reader.position.covers(token)
            wait_for(lambda: reads.store().generation == live.runner.generation, "writer and readers to move")
            assert drop_unused(REPAIRED, views) == [generation - 1]
            assert (live.runner.generation, views.generations(REPAIRED.name)) == (generation, [generation])
    store = views.open(REPAIRED, TOPIC_ID, PARTITIONS, generation=3)
    with store.reading() as reader:
        assert len([*reader.rows(ENTRIES)]) == 110
    store.close()


def test_a_view_is_written_again_after_a_rebuild_was_killed_before_the_swap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, views = MemoryLog(1), MemoryViews(LONG)
    source.use(monkeypatch)
    monkeypatch.setattr(runner, "SWAP_SECONDS", 0.5)

    def reach(point: FaultPoint) -> None:
        if point == RETIRED:
            raise Killed

    monkeypatch.setattr(fault_points, "reach", reach)
    source.append(0, "a", request("r0", "added", {"n": 1}, time=0))
    with RunningView(ViewRunner(REPAIRED, source.log, views)) as live:
        wait_for(lambda: live.runner.position().covers(source.end_position()), "the view to be running")
        with pytest.raises(Killed):
            rebuild(REPAIRED, source.log, views, threading.Event())
        source.append(0, "a", request("r1", "added", {"n": 1}, time=0))
        wait_for(lambda: live.runner.position().covers(source.end_position()), "the view to continue")
        assert (live.runner.generation, views.serving(REPAIRED.name)) == (1, 1)
        monkeypatch.setattr(fault_points, "reach", lambda point: None)
        done = rebuild(REPAIRED, source.log, views, threading.Event())
        assert done is not None
        assert (done.old, done.new) == (1, 2)
        source.append(0, "a", request("r2", "added", {"n": 1}, time=0))
        wait_for(lambda: live.runner.generation == 2, "the writer to move")
        wait_for(lambda: live.runner.position().covers(source.end_position()), "the writer to continue")


def test_a_rebuild_by_another_version_ends_the_writer_of_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    source, views = MemoryLog(1), MemoryViews(LONG)
    source.use(monkeypatch)
    source.append(0, "a", request("r0", "added", {"n": 1}, time=0))
    live = RunningView(ViewRunner(REPAIRED, source.log, views))
    live._thread.start()
    wait_for(lambda: live.runner.position().covers(source.end_position()), "the view to be running")
    newer = replace(REPAIRED, version=2)
    assert rebuild(newer, source.log, views, threading.Event()) is not None
    source.append(0, "a", request("r1", "added", {"n": 1}, time=0))
    wait_for(live.ended, "the old code to end")
    assert isinstance(live.failure, ViewChanged)
    old = views.open(REPAIRED, TOPIC_ID, 1, generation=1)
    assert old.position().of(TOPIC_ID, 0) == 1, "a retired generation was written"
