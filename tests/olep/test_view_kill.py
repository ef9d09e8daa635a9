"""kill -9 of a view and of a rebuild at every named fault point, and of the store itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from penstock.model import faults
from penstock.model.faults import FAULT_VARIABLE
from penstock.olep.log import ends
from penstock.olep.view import COMMIT_AFTER, COMMIT_INSIDE, digest
from penstock.olep.view.memory import MemoryViews
from penstock.olep.view.postgres import PostgresViews
from penstock.olep.view.rebuild import BUILT, COMPARED, SWAPPED
from penstock.olep.view.redis import RedisViews
from penstock.olep.view.runner import CLAIMED, ViewRunner, catch_up
from penstock.olep.view.sqlite import SqliteViews
from penstock.olep.view.warehouse import WarehouseViews
from tests.ground.disk import FaultyDisk, without_faulty_disk
from tests.ground.postgres import PostgresServer, without_postgres
from tests.ground.valkey import ValkeyServer, without_valkey
from tests.olep.ground import ROOT, wait_for
from tests.olep.viewing import COUNTING, RunningView, add_many

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.olep.log import Log
    from penstock.olep.view import ViewStores

pytestmark = pytest.mark.kafka

OF_REBUILDS = (BUILT, COMPARED, SWAPPED)
# Left to the soak: each starts several processes.
LONG = [pytest.param(name, marks=pytest.mark.soak) for name in ("tantivy", "warehouse", "postgres", "valkey")]
AT_WORK = [point for point in faults.points("view") if point not in OF_REBUILDS]


@dataclass
class Place:
    """Where a view lives, for this process and for one that is killed."""

    stores: ViewStores
    flags: list[str]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "sqlite":
            return Place(SqliteViews(tmp_path), ["--sqlite", str(tmp_path)])
        case "tantivy":
            from penstock.olep.view.tantivy import TantivyViews

            return Place(TantivyViews(tmp_path), ["--tantivy", str(tmp_path)])
        case "warehouse":
            return Place(WarehouseViews(tmp_path), ["--warehouse", str(tmp_path)])
        case "postgres":
            dsn = request.getfixturevalue("postgres").dsn
            stores = PostgresViews(dsn)
            for generation in stores.generations("counting"):
                stores.drop("counting", generation)
            return Place(stores, ["--postgres", dsn])
        case _:
            import redis

            url = request.getfixturevalue("valkey").url
            with redis.Redis.from_url(url) as client:
                client.flushall()
            return Place(RedisViews(url), ["--redis", url])


PENSTOCK = ("-m", "penstock", "olep", "view")
# Without the check of the environment, in which a faulty disk leaves keys that the command does not know.
UNCHECKED = (
    "-c",
    "import sys; from penstock.cli.olep_view import app; sys.exit(app(result_action='return_value'))",
)


def command(
    log: Log,
    place: Place,
    word: str,
    *more: str,
    fault: str | None = None,
    program: tuple[str, ...] = PENSTOCK,
) -> int:
    """`penstock olep view …` in a process of its own; its exit status."""
    config: dict[str, Any] = dict(log.config)
    words = ["--bootstrap", config.pop("bootstrap.servers"), "--topic", log.topic, *place.flags, *more]
    options = [each for key, value in config.items() for each in ("-X", f"{key}={value}")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    environment.pop(FAULT_VARIABLE, None)
    if fault is not None:
        environment[FAULT_VARIABLE] = fault
    projection = ["--projection", "tests.olep.viewing:COUNTING"]
    done = subprocess.run(
        [sys.executable, *program, word, *projection, *words, *options],
        env=environment,
        cwd=ROOT,
        check=False,
        capture_output=True,
        timeout=100,
    )
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr.decode()
    return done.returncode


def equals_replay(log: Log, stores: ViewStores) -> bool:
    """Whether the view that serves has the rows of the replayed log at its position."""
    generation = stores.serving("counting")
    assert generation is not None
    store = stores.open(COUNTING, log.topic_id, log.partitions, generation=generation)
    memory = MemoryViews()
    catch_up(ViewRunner(COUNTING, log, memory), threading.Event())
    replayed = memory.open(COUNTING, log.topic_id, log.partitions, generation=1)
    try:
        cut = store.position()
        with store.reading(cut) as ours, replayed.reading(cut) as theirs:
            return digest(ours, COUNTING) == digest(theirs, COUNTING)
    finally:
        store.close()


@pytest.mark.parametrize("place", ["sqlite", "warehouse", "postgres", "valkey", LONG[0]], indirect=True)
def test_a_view_killed_at_every_point_equals_the_replayed_log(place: Place, log: Log) -> None:
    # All points for the first store; for the others those at which stores differ.
    points = AT_WORK if "--sqlite" in place.flags else [COMMIT_INSIDE, COMMIT_AFTER]
    for number, point in enumerate(points):
        add_many(log, 60, start=60 * number)
        arrival = "" if point == CLAIMED else "@2"
        status = command(log, place, "run", "--once", "--batch", "10", fault=f"{point}{arrival}")
        assert status == -signal.SIGKILL, point
        assert equals_replay(log, place.stores), point
    catch_up(ViewRunner(COUNTING, log, place.stores), threading.Event())
    assert equals_replay(log, place.stores)


@pytest.mark.parametrize("place", ["sqlite", *LONG], indirect=True)
def test_a_rebuild_killed_at_every_point_goes_on_and_swaps_once(place: Place, log: Log) -> None:
    add_many(log, 100)
    catch_up(ViewRunner(COUNTING, log, place.stores), threading.Event())
    for point in OF_REBUILDS:
        assert command(log, place, "rebuild", fault=point) == -signal.SIGKILL
        assert equals_replay(log, place.stores), point
    # The last one had swapped already; the next rebuild makes a generation of its own.
    assert place.stores.serving("counting") == 2
    assert command(log, place, "rebuild", "--drop") == 0
    assert (place.stores.serving("counting"), place.stores.generations("counting")) == (3, [3])
    assert equals_replay(log, place.stores)


@pytest.mark.skipif(without_valkey() is not None, reason=without_valkey() or "")
def test_a_cache_that_was_killed_and_lost_its_memory_is_built_again(log: Log, tmp_path: Path) -> None:
    with ValkeyServer.start() as server:
        cache, other = RedisViews(server.url), SqliteViews(tmp_path)
        with (
            RunningView(ViewRunner(COUNTING, log, cache)) as cached,
            RunningView(ViewRunner(COUNTING, log, other)) as beside,
        ):
            add_many(log, 50)
            wait_for(lambda: cached.runner.position().covers(ends(log)), "the cache to be at work")
            server.end()
            add_many(log, 50, start=50)
            wait_for(lambda: beside.runner.position().covers(ends(log)), "the other view to go on")
            server.run()
            add_many(log, 1, start=100)  # what comes next shows the runner that the position is gone
            wait_for(lambda: _shows(cache, log, 101), "the cache to be built again")
        assert equals_replay(log, cache)


@pytest.mark.soak
@pytest.mark.skipif(without_postgres() is not None, reason=without_postgres() or "")
def test_a_database_that_was_killed_comes_back_and_its_view_catches_up(log: Log, tmp_path: Path) -> None:
    with PostgresServer.start() as server:
        database, other = PostgresViews(server.dsn), SqliteViews(tmp_path)
        with (
            RunningView(ViewRunner(COUNTING, log, database)) as view,
            RunningView(ViewRunner(COUNTING, log, other)) as beside,
        ):
            add_many(log, 50)
            wait_for(lambda: view.runner.position().covers(ends(log)), "the database to be at work")
            server.end()
            add_many(log, 50, start=50)
            wait_for(lambda: beside.runner.position().covers(ends(log)), "the other view to go on")
            server.run()
            wait_for(lambda: view.runner.position().covers(ends(log)), "the view to catch up")
        assert equals_replay(log, database)


def test_a_full_disk_holds_one_view_back_and_loses_nothing(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := without_faulty_disk():
        pytest.skip(reason)
    place = Place(SqliteViews(tmp_path), ["--sqlite", str(tmp_path)])
    add_many(log, 50)
    assert command(log, place, "run", "--once") == 0
    with FaultyDisk(tmp_path) as disk:
        for name, value in disk.environment().items():
            monkeypatch.setenv(name, value)
        disk.full()
        add_many(log, 50, start=50)
        done: list[int] = []

        def run() -> None:
            done.append(command(log, place, "run", "--once", program=UNCHECKED))

        process = threading.Thread(target=run)
        process.start()
        wait_for(lambda: disk.hits, "the disk to refuse a write")
        assert (done, equals_replay(log, place.stores)) == ([], True)
        disk.heal()
        process.join(100)
        for name in disk.environment():
            monkeypatch.delenv(name)
    assert (done, equals_replay(log, place.stores)) == ([0], True)


def _shows(stores: ViewStores, log: Log, count: int) -> bool:
    store = stores.open(COUNTING, log.topic_id, log.partitions, generation=1)
    try:
        position = store.position()
        return sum(position.offsets[log.topic_id].values()) >= count
    finally:
        store.close()
