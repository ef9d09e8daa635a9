"""Supervising a fleet: dead nodes are restarted, running ones taken over, one supervisor per home."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import IO, TYPE_CHECKING, Any

import pytest

from penstock.fleet import supervisor as module
from penstock.fleet.layout import Layout
from penstock.fleet.node import Node
from penstock.fleet.node_watch import NodeState
from penstock.fleet.readiness import Prober, ProbeResult
from penstock.fleet.supervisor import Supervisor, sole_supervisor, stop_nodes, supervisor_of
from penstock.model.errors.fleet import AlreadyRunning, DirectoryNotWritable, NodeFailed, StopTimedOut
from penstock.process_identity import identify, try_lock
from tests.harness.fleet import wait_for, wait_gone
from tests.harness.java import fake_fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from penstock.fleet.local_fleet import LocalFleet


@pytest.fixture
def live_nodes_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    async def probe(prober: Prober) -> ProbeResult:
        console = prober.node.layout.console
        up = prober.node.running() is not None and console.exists() and console.read_text() == "up\n"
        return ProbeResult(ready=up, reason="down")

    monkeypatch.setattr(Prober, "probe", probe)


@pytest.fixture
def local(tmp_path: Path, live_nodes_respond: None) -> Iterator[LocalFleet]:
    fleet = fake_fleet(tmp_path)
    yield fleet
    for node in fleet.nodes:
        if (identity := node.running()) is not None:
            identity.signal(signal.SIGKILL)
            wait_gone(node)


@asynccontextmanager
async def supervising(supervisor: Supervisor) -> AsyncIterator[None]:
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    try:
        yield
    finally:
        stop.set()
        await running


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


def pids(local: LocalFleet) -> list[int | None]:
    return [identity.pid if (identity := node.running()) else None for node in local.nodes]


def killed(node: Node) -> None:
    identity = node.running()
    assert identity is not None
    identity.signal(signal.SIGKILL)


def published(local: LocalFleet) -> dict[str, str]:
    document = json.loads(local.layout.supervisor_record.read_text())
    return {name: node["state"] for name, node in document["nodes"].items()}


async def test_all_nodes_are_started_and_reported_ready(local: LocalFleet) -> None:
    states: list[str] = []
    supervisor = Supervisor(local, on_change=lambda node, watch: states.append(f"{node.name} {watch.state}"))

    await supervisor.start()

    assert sorted(states) == ["b1 ready", "c1001 ready"]
    assert published(local) == {"home/c1001": "ready", "home/b1": "ready"}
    assert None not in pids(local)


async def test_a_killed_node_is_restarted_and_the_other_stays(local: LocalFleet) -> None:
    supervisor = Supervisor(local)
    await supervisor.start()
    controller, broker = pids(local)

    async with supervising(supervisor):
        killed(local.node("b1"))
        await until(lambda: pids(local)[1] not in (None, broker))

    assert pids(local)[0] == controller
    assert [one.watch.restarts for one in supervisor.watched] == [0, 1]


async def test_a_failed_restart_is_tried_again(local: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor(local)
    await supervisor.start()
    node = local.node("b1")
    node.layout.properties.unlink()
    node.layout.properties.mkdir()  # so that it cannot be written
    (node.layout.properties / "x").touch()

    async with supervising(supervisor):
        killed(node)
        await until(lambda: supervisor.watched[1].watch.restarts == 1)
        await until(lambda: supervisor.watched[1].watch.state is NodeState.RESTARTING)
        (node.layout.properties / "x").unlink()
        node.layout.properties.rmdir()
        await until(lambda: node.running() is not None)


async def test_a_full_disk_does_not_end_the_supervisor(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    supervisor = Supervisor(local)
    await supervisor.start()
    before = pids(local)
    monkeypatch.setattr(module, "write_identity", full)

    async with supervising(supervisor):
        killed(local.node("b1"))
        await until(lambda: pids(local)[1] not in (None, before[1]))


async def test_running_nodes_are_taken_over_with_their_processes(local: LocalFleet, tmp_path: Path) -> None:
    await Supervisor(local).start()
    before = [node.running() for node in local.nodes]
    wait_for(lambda: all(node.layout.record.exists() for node in local.nodes), what="records")

    second = Supervisor(fake_fleet(tmp_path))
    await second.start()

    assert [node.running() for node in second.fleet.nodes] == before


async def test_a_taken_over_node_that_dies_is_restarted(local: LocalFleet, tmp_path: Path) -> None:
    await Supervisor(local).start()
    wait_for(lambda: all(node.layout.record.exists() for node in local.nodes), what="records")
    second = Supervisor(fake_fleet(tmp_path))
    await second.start()
    before = pids(second.fleet)

    async with supervising(second):
        killed(local.node("b1"))
        await until(lambda: pids(second.fleet)[1] not in (None, before[1]))

    await second.stop()


async def test_a_failed_start_does_not_stop_nodes_that_were_running(
    local: LocalFleet, tmp_path: Path
) -> None:
    await local.prepare()
    await local.node("c1001").start()
    wait_for(lambda: local.node("c1001").layout.record.exists(), what="its record")
    second = Supervisor(fake_fleet(tmp_path))
    second.fleet.node("b1").environment = {"FAKE_JAVA_NODE": "dies"}

    with pytest.raises(NodeFailed) as caught:
        await second.start()
    await second.stop(only_started=True)

    assert caught.value.message == "b1 exited with code 3 before it was ready"
    assert "Could not find or load main class" in caught.value.advice
    assert local.node("c1001").running() is not None
    assert second.fleet.node("b1").running() is None


async def test_stopping_ends_all_nodes_without_restarting_them(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(local)
    await supervisor.start()
    seen: list[dict[str, str]] = []
    stop = Node.stop

    async def observed_stop(node: Node) -> bool:
        seen.append(published(local))
        return await stop(node)

    monkeypatch.setattr(Node, "stop", observed_stop)

    await supervisor.stop()

    assert [set(states.values()) for states in seen] == [{"stopping"}, {"stopping"}]
    assert pids(local) == [None, None]
    assert not local.layout.supervisor_record.exists()


async def test_brokers_are_stopped_before_controllers(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []

    async def stop(node: Node, **_: object) -> bool:
        order.append(node.name)
        return True

    monkeypatch.setattr(Node, "stop", stop)

    await stop_nodes(local.nodes)

    assert order == ["b1", "c1001"]


async def test_nodes_that_had_to_be_killed_are_named(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stop(node: Node, **_: object) -> bool:
        return node.name != "b1"

    monkeypatch.setattr(Node, "stop", stop)

    with pytest.raises(StopTimedOut) as caught:
        await stop_nodes(local.nodes)

    assert caught.value.message == "b1 did not stop within 30 s and had to be killed"
    assert "No data is lost" in caught.value.advice


def test_a_home_has_one_supervisor(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "home")

    with sole_supervisor(layout), pytest.raises(AlreadyRunning) as caught, sole_supervisor(layout):
        pass

    expected = f"this fleet is already running: process {os.getpid()} supervises {layout.home}"
    assert caught.value.message == expected
    assert "penstock down" in caught.value.advice


def test_the_supervisor_of_a_home_is_known_while_it_holds_the_lock(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "home")
    assert supervisor_of(layout) is None

    with sole_supervisor(layout):
        assert supervisor_of(layout) == identify(os.getpid())

    assert supervisor_of(layout) is None
    with sole_supervisor(layout):
        assert supervisor_of(layout) is not None


def test_a_killed_supervisor_releases_the_lock(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "home")
    program = (
        "import sys, time, pathlib\n"
        "from penstock.fleet.supervisor import sole_supervisor\n"
        "from penstock.fleet.layout import Layout\n"
        "with sole_supervisor(Layout(pathlib.Path(sys.argv[1]))):\n"
        "    print('held', flush=True); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(layout.home)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(AlreadyRunning, match=f"process {process.pid} "), sole_supervisor(layout):
            pass
        process.kill()

    assert supervisor_of(layout) is None
    with sole_supervisor(layout):
        pass


def test_a_lock_file_that_was_removed_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path / "home")
    removed: list[bool] = []

    def locked(file: IO[Any]) -> bool:
        taken = try_lock(file)
        if not removed:
            layout.supervisor_lock.unlink()
            removed.append(True)
        return taken

    monkeypatch.setattr(module, "try_lock", locked)

    with sole_supervisor(layout):
        assert supervisor_of(layout) is not None
        with pytest.raises(AlreadyRunning), sole_supervisor(layout):
            pass


def test_a_home_that_is_not_writable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "home" / "supervisor.lock").mkdir(parents=True)

    message = "home is not writable: Is a directory"
    with pytest.raises(DirectoryNotWritable, match=message), sole_supervisor(Layout(tmp_path / "home")):
        pass
