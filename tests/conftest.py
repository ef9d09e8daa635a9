"""Fixtures for every test: a real fleet, unique names, and the brokers' logs in failure reports."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import signal
import sys
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from penstock import log_lines
from penstock.fleet import cluster_record
from tests.harness.fleet import THREE_ZONES, TINY, Fleet
from tests.harness.kafka_python import closing_its_sockets
from tests.harness.reaper import reaper
from tests.harness.secured_kafka import SecuredKafka

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

pytest_plugins = ["tests.plugins.budget", "tests.plugins.order", "tests.harness.faults"]

LOG_LINES_SHOWN_MAX = 60
SHARED_FLEET = "fleet"

# Every run of the suite draws the same examples, so that a failure points at the change. `make soak`
# draws new ones, ten times as many.
settings.register_profile(
    "explore",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=1000,
)
settings.register_profile(
    "penstock", settings.get_profile("explore"), max_examples=100, derandomize=True, database=None
)
settings.load_profile("penstock")

# A run started in the background by a shell ignores SIGINT, and so would every command it starts;
# tests that press Ctrl-C want the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Running fleets: a failing test's report shows what their nodes logged meanwhile.
_fleets: list[Fleet] = []
_log_sizes = pytest.StashKey[dict[str, int]]()


@pytest.fixture(scope="session", autouse=True)
def _nothing_outlives_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with reaper(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture(scope="session", autouse=True)
def _ports_of_this_worker() -> Iterator[None]:
    """Workers take automatic ports from disjoint ranges: no worker takes a port of another's killed node."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = len(cluster_record.AUTOMATIC_PORTS) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports = cluster_record.AUTOMATIC_PORTS[number * size : (number + 1) * size]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_record, "AUTOMATIC_PORTS", ports)
        yield


@pytest.fixture(scope="session", autouse=True)
def _clients_close_their_sockets() -> Iterator[None]:
    with closing_its_sockets():
        yield


@pytest.fixture(autouse=True)
def _logs_of_no_service() -> Iterator[None]:
    """A service that a test ran in this process has configured the logs of all later ones."""
    hook = sys.excepthook
    yield
    if log_lines.active_format() is not None:
        log_lines._active = None
        structlog.reset_defaults()
        logging.captureWarnings(False)
        sys.excepthook = hook


@pytest.hookimpl(trylast=True)  # after pytest's own, which makes the directory
def pytest_configure(config: pytest.Config) -> None:
    """With several workers, the process that distributes the tests ends the fleet that they share."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        shared = config._tmp_path_factory.getbasetemp() / SHARED_FLEET  # type: ignore[attr-defined]  # private
        ending = ExitStack()
        ending.enter_context(reaper(shared))
        config.add_cleanup(ending.close)


@pytest.fixture(scope="session")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A node with TLS, mTLS, and every SASL mechanism."""
    one = SecuredKafka.start(tmp_path_factory.mktemp("secured"))
    yield one
    one.stop()


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One controller and three brokers in three zones, shared by all tests of the run, on all its workers.

    Tests take names from `unique`, look only at these, and leave the nodes as they found them; to kill
    and to stop there is `make_fleet`.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        home = tmp_path_factory.getbasetemp().parent / SHARED_FLEET
        home.mkdir(exist_ok=True)
        with (home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the first worker starts it, the others find it running
            one = Fleet.start(home, THREE_ZONES)
        _fleets.append(one)
        yield one
        warnings.simplefilter("ignore", ResourceWarning)  # its processes outlive this worker
    else:
        yield from _living(Fleet.start(tmp_path_factory.mktemp(SHARED_FLEET), THREE_ZONES))


@pytest.fixture
def make_fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Start separate fleets: `make_fleet()` is one combined node. Keys of a fleet file, such as
    `brokers=3`, give other shapes; `environment={"b1": {...}}` sets variables of single nodes."""
    made: list[Fleet] = []

    def make(*, environment: Mapping[str, Mapping[str, str]] | None = None, **keys: Any) -> Fleet:
        shape = {"port": 0, **keys} if keys else TINY
        one = Fleet.start(tmp_path / f"fleet-{len(made)}", shape, environment=environment)
        made.append(one)
        _fleets.append(one)
        return one

    yield make
    for one in made:
        _fleets.remove(one)
        one.destroy()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """`unique("orders")` is a name that no other test has, in this run or any before it."""
    counter = itertools.count(1)
    return lambda name: f"{name}-{os.urandom(4).hex()}-{next(counter)}"


@pytest.fixture(autouse=True)
def _shared_fleet_left_whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that breaks the shared fleet fails itself, not the next one."""
    yield
    if "fleet" in request.fixturenames:
        shared: Fleet = request.getfixturevalue("fleet")
        dead = [node.name for node in shared.nodes if node.running() is None]
        for name in dead:
            shared.start_node(name)
        assert not dead, f"left {', '.join(dead)} of the shared fleet dead; use make_fleet for that"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "setup":
        item.stash[_log_sizes] = {str(path): _size(path) for path in _logs()}
    if report.failed:
        before = item.stash.get(_log_sizes, {})
        for path in _logs():
            if lines := _logged_since(path, before.get(str(path), 0)):
                report.sections.append((f"log of {path.parent.parent.name}", lines))
    return report


def _living(one: Fleet) -> Iterator[Fleet]:
    _fleets.append(one)
    yield one
    _fleets.remove(one)
    one.destroy()


def _logs() -> list[Path]:
    files = [p for one in _fleets for node in one.nodes for p in (node.layout.log, node.layout.console)]
    return [path for path in files if path.exists()]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # a node puts a full log aside before it begins the next
        return 0


def _logged_since(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(offset if _size(path) >= offset else 0)
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(lines[-LOG_LINES_SHOWN_MAX:])
