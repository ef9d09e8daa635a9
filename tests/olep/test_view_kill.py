"""kill -9 of a view and of a rebuild at every fault point, and of the store itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from penstock.model import fault_points
from penstock.model.errors.views import ViewFailed
from penstock.model.fault_points import FAULT_VARIABLE
from penstock.olep.log import end_position
from penstock.olep.view import COMMIT_AFTER, COMMIT_INSIDE, digest
from penstock.olep.view.rebuild import BUILT, COMPARED, RETIRED, SWAPPED
from penstock.olep.view.runner import CLAIMED, ViewRunner, catch_up
from penstock.olep.view.stores.memory import MemoryViews
from penstock.olep.view.stores.postgres import PostgresViews
from penstock.olep.view.stores.redis import RedisViews
from penstock.olep.view.stores.sqlite import SqliteViews
from tests.harness.disk import FaultyDisk, without_faulty_disk
from tests.harness.postgres import PostgresServer, without_postgres
from tests.harness.valkey import ValkeyServer, without_valkey
from tests.olep.bank_harness import ROOT, wait_for
from tests.olep.counting_view import COUNTING, RunningView, add_many

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.olep.log import Log
    from penstock.olep.view import ViewStores

pytestmark = pytest.mark.kafka

REBUILD_POINTS = (BUILT, COMPARED, RETIRED, SWAPPED)
# Left to the soak: each starts several processes.
LONG = [pytest.param(name, marks=pytest.mark.soak) for name in ("postgres", "valkey")]
RUN_POINTS = [point for point in fault_points.points("view") if point not in REBUILD_POINTS]


@dataclass
class Location:
    """Where a view is stored, for this process and for one that is killed."""

    stores: ViewStores
    flags: list[str]


@pytest.fixture
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    match request.param:
        case "sqlite":
            return Location(SqliteViews(tmp_path), ["--sqlite", str(tmp_path)])
        case "postgres":
            dsn = request.getfixturevalue("postgres").dsn
            stores = PostgresViews(dsn)
            for generation in stores.generations("counting"):
                stores.drop("counting", generation)
            return Location(stores, ["--postgres", dsn])
        case _:
            import redis

            url = request.getfixturevalue("valkey").url
            with redis.Redis.from_url(url) as client:
                client.flushall()
            return Location(RedisViews(url), ["--redis", url])


PENSTOCK = ("-m", "penstock", "olep", "view")
# Without the check of the environment, where the faulty disk sets variables that the command rejects.
UNCHECKED = (
    "-c",
    "import sys; from penstock.cli.library.olep_view import app; sys.exit(app(result_action='return_value'))",
)


def command(
    log: Log,
    location: Location,
    word: str,
    *more: str,
    fault: str | None = None,
    program: tuple[str, ...] = PENSTOCK,
) -> int:
    """Runs `penstock olep view …` in a separate process; returns its exit status."""
    done = start(log, location, word, *more, fault=fault, program=program)
    _, errors = done.communicate(timeout=100)
    assert done.returncode in {0, -signal.SIGKILL}, errors.decode()
    return done.returncode


def start(
    log: Log,
    location: Location,
    word: str,
    *more: str,
    fault: str | None = None,
    program: tuple[str, ...] = PENSTOCK,
) -> subprocess.Popen[bytes]:
    config: dict[str, Any] = dict(log.config)
    words = ["--bootstrap", config.pop("bootstrap.servers"), "--topic", log.topic, *location.flags, *more]
    options = [each for key, value in config.items() for each in ("-X", f"{key}={value}")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    environment.pop(FAULT_VARIABLE, None)
    if fault is not None:
        environment[FAULT_VARIABLE] = fault
    projection = ["--projection", "tests.olep.counting_view:COUNTING"]
    return subprocess.Popen(
        [sys.executable, *program, word, *projection, *words, *options],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def equals_replay(log: Log, stores: ViewStores) -> bool:
    """Whether the serving view has the rows of the replayed log at its position."""
    generation = stores.serving("counting")
    assert generation is not None
    store = stores.open(COUNTING, log.topic_id, log.partitions, generation=generation)
    memory = MemoryViews()
    catch_up(ViewRunner(COUNTING, log, memory), threading.Event())
    replayed = memory.open(COUNTING, log.topic_id, log.partitions, generation=1)
    try:
        position = store.position()
        with store.reading(position) as ours, replayed.reading(position) as theirs:
            return digest(ours, COUNTING) == digest(theirs, COUNTING)
    finally:
        store.close()


@pytest.mark.parametrize("location", ["sqlite", "postgres", "valkey"], indirect=True)
def test_a_view_killed_at_every_point_equals_the_replayed_log(location: Location, log: Log) -> None:
    # All points for the first store; for the others, those at which stores differ.
    points = RUN_POINTS if "--sqlite" in location.flags else [COMMIT_INSIDE, COMMIT_AFTER]
    for number, point in enumerate(points):
        add_many(log, 60, start=60 * number)
        arrival = "" if point == CLAIMED else "@2"
        status = command(log, location, "run", "--once", "--batch", "10", fault=f"{point}{arrival}")
        assert status == -signal.SIGKILL, point
        assert equals_replay(log, location.stores), point
    catch_up(ViewRunner(COUNTING, log, location.stores), threading.Event())
    assert equals_replay(log, location.stores)


@pytest.mark.parametrize("location", ["sqlite", *LONG], indirect=True)
def test_a_rebuild_killed_at_every_point_continues_and_swaps_once(location: Location, log: Log) -> None:
    add_many(log, 100)
    catch_up(ViewRunner(COUNTING, log, location.stores), threading.Event())
    for point in REBUILD_POINTS:
        assert command(log, location, "rebuild", fault=point) == -signal.SIGKILL
        assert equals_replay(log, location.stores), point
    # The last one was killed after the swap, so the next rebuild creates another generation.
    assert location.stores.serving("counting") == 2
    assert command(log, location, "rebuild", "--drop") == 0
    assert (location.stores.serving("counting"), location.stores.generations("counting")) == (3, [3])
    assert equals_replay(log, location.stores)


@pytest.mark.parametrize("location", ["sqlite", *LONG], indirect=True)
def test_a_rebuild_in_another_process_moves_the_writer_and_drops_nothing_in_use(
    location: Location, log: Log
) -> None:
    add_many(log, 100)
    writer = start(log, location, "run")
    try:
        wait_for(lambda: _shows(location.stores, log, 100), "the view to be running")
        assert command(log, location, "rebuild", "--drop") == 0
        assert location.stores.generations("counting") == [2]
        add_many(log, 50, start=100)
        wait_for(lambda: _shows(location.stores, log, 150), "the writer to write what serves")
        assert (location.stores.generations("counting"), equals_replay(log, location.stores)) == ([2], True)
    finally:
        writer.terminate()
        _, errors = writer.communicate(timeout=60)
    assert writer.returncode == 0, errors.decode()


@pytest.mark.skipif(without_valkey() is not None, reason=without_valkey() or "")
def test_a_cache_that_was_killed_and_lost_its_data_is_rebuilt(log: Log, tmp_path: Path) -> None:
    with ValkeyServer.start() as server:
        cache, other = RedisViews(server.url), SqliteViews(tmp_path)
        with (
            RunningView(ViewRunner(COUNTING, log, cache)) as cached,
            RunningView(ViewRunner(COUNTING, log, other)) as beside,
        ):
            add_many(log, 50)
            wait_for(lambda: cached.runner.position().covers(end_position(log)), "the cache to be running")
            server.end()
            add_many(log, 50, start=50)
            wait_for(lambda: beside.runner.position().covers(end_position(log)), "the other view to continue")
            server.run()
            wait_for(lambda: _shows(cache, log, 100), "the cache to be rebuilt")
        assert equals_replay(log, cache)


@pytest.mark.soak
@pytest.mark.skipif(without_postgres() is not None, reason=without_postgres() or "")
def test_a_view_catches_up_after_its_database_was_killed(log: Log, tmp_path: Path) -> None:
    with PostgresServer.start() as server:
        database, other = PostgresViews(server.dsn), SqliteViews(tmp_path)
        with (
            RunningView(ViewRunner(COUNTING, log, database)) as view,
            RunningView(ViewRunner(COUNTING, log, other)) as beside,
        ):
            add_many(log, 50)
            wait_for(lambda: view.runner.position().covers(end_position(log)), "the database to be running")
            server.end()
            add_many(log, 50, start=50)
            wait_for(lambda: beside.runner.position().covers(end_position(log)), "the other view to continue")
            server.run()
            wait_for(lambda: view.runner.position().covers(end_position(log)), "the view to catch up")
        assert equals_replay(log, database)


def test_a_full_disk_delays_one_view_and_loses_nothing(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := without_faulty_disk():
        pytest.skip(reason)
    location = Location(SqliteViews(tmp_path), ["--sqlite", str(tmp_path)])
    add_many(log, 50)
    assert command(log, location, "run", "--once") == 0
    with FaultyDisk(tmp_path) as disk:
        for name, value in disk.environment().items():
            monkeypatch.setenv(name, value)
        disk.full()
        add_many(log, 50, start=50)
        done: list[int] = []

        def run() -> None:
            done.append(command(log, location, "run", "--once", program=UNCHECKED))

        process = threading.Thread(target=run)
        process.start()
        wait_for(lambda: disk.hits, "the disk to refuse a write")
        assert (done, equals_replay(log, location.stores)) == ([], True)
        disk.heal()
        process.join(100)
        for name in disk.environment():
            monkeypatch.delenv(name)
    assert (done, equals_replay(log, location.stores)) == ([0], True)


def _shows(stores: ViewStores, log: Log, count: int) -> bool:
    """Whether the serving generation has reached so many events."""
    try:
        generation = stores.serving("counting")
        if generation is None:
            return False
        store = stores.open(COUNTING, log.topic_id, log.partitions, generation=generation)
    except ViewFailed:
        return False  # the server is down
    try:
        position = store.position()
        return sum(position.offsets[log.topic_id].values()) >= count
    finally:
        store.close()
