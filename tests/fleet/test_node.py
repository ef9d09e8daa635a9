"""The process of a node: started once, found again, never started twice, stopped."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.fleet import node as module
from penstock.fleet.spec import Listener
from penstock.model.errors.fleet import (
    DataInUse,
    DataOfAnotherCluster,
    DirectoryNotWritable,
    FormatFailed,
    MetadataLost,
)
from penstock.process_identity import identify
from tests.harness.fleet import wait_for, wait_gone
from tests.harness.java import fake_fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from penstock.fleet.node import Node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A broker with storage, not started."""
    fleet = fake_fleet(tmp_path)
    await fleet.prepare()
    yield fleet.node("b1")
    for one in fleet.nodes:
        if (identity := one.running()) is not None:
            identity.signal(signal.SIGKILL)
            wait_gone(one)


def another_view(node: Node, tmp_path: Path) -> Node:
    """The same node, as another process would load it."""
    return fake_fleet(tmp_path).node(node.name)


def console(node: Node) -> str:
    return node.layout.console.read_text()


async def test_a_node_runs_until_it_is_stopped(node: Node) -> None:
    await node.start()
    assert node.running() is not None
    wait_for(lambda: console(node) == "up\n", what="its output")

    assert await node.stop()

    assert node.running() is None
    assert node.last_exit() == 143


async def test_another_process_finds_the_node_by_its_record(node: Node, tmp_path: Path) -> None:
    await node.start()

    wait_for(lambda: another_view(node, tmp_path).running() == node.running(), what="the record")


async def test_a_running_node_is_not_started_twice(node: Node, tmp_path: Path) -> None:
    await node.start()
    first = node.running()

    await node.start()
    await another_view(node, tmp_path).start()

    assert node.running() == first
    wait_for(lambda: console(node) == "up\n", what="its output")


async def test_two_concurrent_starts_start_one_process(node: Node, tmp_path: Path) -> None:
    other = another_view(node, tmp_path)

    await asyncio.gather(node.start(), other.start())

    wait_for(lambda: node.running() == other.running() is not None, what="both to see one")


@pytest.fixture
def other_process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


async def test_a_record_with_a_reused_pid_is_ignored(
    node: Node, other_process: subprocess.Popen[bytes]
) -> None:
    node.layout.record.write_text(json.dumps({"pid": other_process.pid, "started": "another boot:1"}))

    assert node.running() is None
    assert await node.stop()
    await node.start()

    identity = node.running()
    assert identity is not None
    assert identity.pid != other_process.pid
    assert other_process.poll() is None, "another process was killed"


async def test_data_in_use_by_an_unknown_process_is_an_error(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS_MAX", 0.1)
    monkeypatch.setattr(module.Node._lock, "__kwdefaults__", {"patience": 0.1})
    own = identify(os.getpid())
    assert own is not None
    node.layout.record.write_text(json.dumps({"pid": own.pid, "started": "another boot:1"}))
    with node.layout.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        with pytest.raises(DataInUse) as caught:
            await node.start()

    assert f"names process {own.pid}, which is not this node any more" in caught.value.message
    assert f"lsof {node.layout.lock}" in caught.value.advice
    assert node.running() is None


async def test_the_lock_is_held_by_the_node_itself(node: Node) -> None:
    await node.start()

    with node.layout.lock.open("w") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_a_killed_node_can_be_started_at_once(node: Node) -> None:
    await node.start()
    first = node.running()
    assert first is not None
    first.signal(signal.SIGKILL)

    wait_for(lambda: node.running() is None, what="its end")
    await node.start()

    assert node.running() not in (None, first)


async def test_a_node_that_ignores_sigterm_is_killed_and_stop_returns_false(node: Node) -> None:
    node.environment = {"FAKE_JAVA_NODE": "deaf"}
    await node.start()
    wait_for(lambda: node.layout.console.exists() and console(node) == "up\n", what="its output")

    assert not await node.stop(deadline=0.2)

    assert node.running() is None
    assert node.last_exit() == -signal.SIGKILL


async def test_a_suspended_process_can_be_stopped(node: Node) -> None:
    await node.start()
    wait_for(lambda: node.layout.console.exists() and console(node) == "up\n", what="its output")
    identity = node.running()
    assert identity is not None
    identity.signal(signal.SIGSTOP)

    assert await node.stop()


async def test_the_last_error_is_of_this_run(node: Node) -> None:
    node.layout.log.write_text("2030 ERROR of long ago\n")
    node.environment = {"FAKE_JAVA_NODE": "dies"}
    await node.start()
    wait_for(lambda: node.last_exit() is not None, what="its end")
    assert node.last_error() == "Error: Could not find or load main class kafka.Kafka"

    node.environment = {}
    await node.start()
    wait_for(lambda: console(node) == "up\n", what="its output")

    assert node.last_error() == ""
    assert "Error:" in node.layout.console_before.read_text()


async def test_the_last_error_comes_from_the_log_when_the_jvm_printed_nothing(node: Node) -> None:
    node.layout.log.write_text("old\n")
    await node.start()
    with node.layout.log.open("a") as log:
        log.write("2030 INFO fine\n2030 ERROR while writing (x)\njava.io.IOException: no room\n\tat y\n")
        log.write("2030 FATAL gone\n")

    assert node.last_error() == "2030 ERROR while writing (x): java.io.IOException: no room"


async def test_properties_are_private_and_follow_the_spec(node: Node) -> None:
    node.layout.properties.write_text("listeners=somewhere.else\n")

    node.configure()

    assert stat.S_IMODE(node.layout.properties.stat().st_mode) == 0o600
    port = node.spec.ports[Listener.INTERNAL]
    assert f"listeners=INTERNAL://127.0.0.1:{port}" in node.layout.properties.read_text()


async def test_a_node_directory_that_is_not_writable_is_an_error(tmp_path: Path) -> None:
    fleet = fake_fleet(tmp_path)
    root = fleet.node("b1").layout.root
    root.parent.mkdir(parents=True, exist_ok=True)
    root.write_text("a file where a directory is needed")

    with pytest.raises(DirectoryNotWritable, match="b1 is not writable"):
        await fleet.prepare()


async def test_storage_is_formatted_once(node: Node) -> None:
    await node.format()

    assert (node.layout.data / "formatted").read_text() == "once\n"


async def test_two_concurrent_formats_format_once(tmp_path: Path) -> None:
    views = [fake_fleet(tmp_path) for _ in range(2)]

    await asyncio.gather(*(fleet.prepare() for fleet in views))

    for node in views[0].nodes:
        assert (node.layout.data / "formatted").read_text() == "once\n"


@pytest.mark.parametrize("line", ["cluster.id=AAAAAAAAAAAAAAAAAAAAAA", "node.id=9", ""])
async def test_data_of_another_cluster_or_node_is_an_error_and_stays_unchanged(
    node: Node, tmp_path: Path, line: str
) -> None:
    key = line.partition("=")[0]
    others = [old for old in node.layout.meta.read_text().splitlines() if not key or not old.startswith(key)]
    node.layout.meta.write_text("\n".join([*others, line] if line else []))
    before = node.layout.meta.read_text()

    with pytest.raises(DataOfAnotherCluster) as caught:
        await fake_fleet(tmp_path).prepare()

    assert str(node.layout.data) in caught.value.message
    assert node.cluster.kafka_id in caught.value.message
    assert "Nothing was changed" in caught.value.advice
    assert node.layout.meta.read_text() == before


@pytest.mark.parametrize(
    ("how", "reason"), [("fails", "Error while formatting: no such luck"), ("nothing", "exit 0")]
)
async def test_a_failed_format_names_the_reason_and_leaves_no_password_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, reason: str
) -> None:
    monkeypatch.setenv("FAKE_JAVA_FORMAT", how)
    fleet = fake_fleet(tmp_path)

    with pytest.raises(FormatFailed) as caught:
        await fleet.prepare()

    assert caught.value.message.endswith(f" failed: {reason}")
    leftover = [p for n in fleet.nodes for p in n.layout.root.rglob("*") if p.name == "arguments"]
    assert leftover == []


async def test_no_password_is_on_a_command_line(node: Node) -> None:
    credentials = node.access.credentials

    command = " ".join(node._command())

    assert credentials.node not in command
    assert credentials.platform not in command


async def test_files_of_a_killed_formatter_are_removed_with_their_passwords(node: Node) -> None:
    leftover = node.layout.root / "format-x"
    leftover.mkdir()
    (leftover / "arguments").touch()

    await node.start()

    assert not leftover.exists()


def format_arguments(node: Node) -> str:
    return (node.layout.data / "arguments").read_text()


async def test_the_first_controllers_are_formatted_as_each_others_voters(tmp_path: Path) -> None:
    fleet = fake_fleet(tmp_path, {"brokers": 1, "controllers": 3})
    await fleet.prepare()

    assert "--initial-controllers 1001@" in format_arguments(fleet.node("c1002"))


async def test_a_controller_whose_disk_was_lost_joins_as_an_observer(tmp_path: Path) -> None:
    """As the voter it was, with an empty log, it could elect a leader that lacks committed records."""
    fleet = fake_fleet(tmp_path, {"brokers": 1, "controllers": 3})
    await fleet.prepare()
    lost, other = fleet.node("c1002"), fleet.node("c1001")
    await other.start()
    shutil.rmtree(lost.layout.root)

    await fleet.prepare([lost])

    assert "--no-initial-controllers" in format_arguments(lost)
    await other.stop()


async def test_an_empty_disk_of_the_only_controller_is_an_error(tmp_path: Path) -> None:
    fleet = fake_fleet(tmp_path, {"brokers": 1})
    await fleet.prepare()
    controller, broker = fleet.node("c1001"), fleet.node("b1")
    await broker.start()
    shutil.rmtree(controller.layout.data)

    with pytest.raises(MetadataLost, match="c1001 was the only controller of home"):
        await fleet.prepare([controller])

    assert not controller.layout.data.exists()
    await broker.stop()
