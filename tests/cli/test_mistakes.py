"""Mistakes of users: the error has a code, a text and a hint, and nothing half-done stays behind."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.control.physical.addresses import ADDRESS_FILE
from penstock.fleet import jars as jars_module
from penstock.fleet import local_fleet as local_module
from penstock.fleet.jars import jars_directory
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import save_fleet_document
from penstock.fleet.supervisor import sole_supervisor
from penstock.platform import local_platform
from tests.harness.fleet import wait_for
from tests.harness.java import fake_fleet, fake_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.fleet.node import Runtime
    from tests.harness.command import CommandResult

    Here = Callable[..., CommandResult]

TINY = {"port": 0, "combined": True, "brokers": 1, "zones": ["a"]}
FAILED, USAGE, NOT_FOUND, DENIED, UNHEALTHY = 1, 2, 3, 4, 5


def assert_error(ran: CommandResult, exit_code: int, code: str, text: str, way_out: str) -> None:
    """The last two lines are the error and its way out; nothing goes to standard output."""
    error, hint = ran.err.splitlines()[-2:]
    assert (ran.code, ran.out) == (exit_code, ""), ran.err
    assert error.startswith("error: ")
    assert error.endswith(f" ({code})")
    assert text in error
    assert way_out in hint


@pytest.fixture
def no_kafka(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`up` with a Java that is none: far enough for everything that goes wrong before Kafka answers."""

    async def obtain(*_: object) -> Runtime:
        return fake_runtime(tmp_path / "java")

    monkeypatch.setattr(local_platform, "obtain_runtime", obtain)


@pytest.fixture
def made(tmp_path: Path) -> Layout:
    """A fleet that was made under `.penstock`, and does not run."""
    return _made(tmp_path)


def _made(directory: Path, *clusters: dict[str, Any]) -> Layout:
    fleet = fake_fleet(directory, *(clusters or (TINY,)))
    save_fleet_document(fleet.layout, {"clusters": list(clusters or (TINY,))})
    fleet.layout.home.rename(directory / ".penstock")
    return Layout(directory / ".penstock")


# --- fleet files and flags ------------------------------------------------------------------------


def test_an_unknown_command(here: Here) -> None:
    ran = here("health", "status")

    assert_error(ran, USAGE, "PEN-1006", 'Unknown command "status"', "penstock health --help")
    assert ", (" not in ran.err


def test_an_unknown_fleet_key(here: Here) -> None:
    Path("f.yaml").write_text("clusters:\n  - brokrs: 3\n")

    assert_error(
        here("up", "--fleet", "f.yaml"),
        USAGE,
        "PEN-1001",
        "f.yaml: clusters[0]: unknown key `brokrs`",
        "brokers",
    )
    assert not Path(".penstock").exists()


def test_two_brokers_on_one_port(here: Here) -> None:
    Path("f.yaml").write_text("clusters: [{brokers: [{port: 5000}, {port: 5000}]}]")

    text = "f.yaml: port 5000 is assigned to both home/b1 (internal) and home/b2 (internal)"
    assert_error(here("up", "--fleet", "f.yaml"), USAGE, "PEN-2007", text, "its own port")
    assert_error(here("up", "-d", "--fleet", "f.yaml"), USAGE, "PEN-2007", text, "its own port")


@pytest.mark.parametrize("content", ["clusters: [", "", "3", None])
def test_a_fleet_file_that_is_no_yaml_mapping(here: Here, content: str | None) -> None:
    if content is not None:
        Path("f.yaml").write_text(content)

    assert_error(
        here("up", "--fleet", "f.yaml"), USAGE, "PEN-1003", "f.yaml: cannot be read as YAML", "YAML mapping"
    )


FLAGS = [
    (["--brokers", "0"], "`brokers` is 0"),
    (["--zones", ""], "`zones` is ['']"),
    (["--zones", "a,a"], "expected each zone once"),
    (["--port", "70000"], "`port` is 70000"),
    (["--heap", "1"], "`heap` is 1"),
    (["--tiny", "--brokers", "3"], "`--tiny` is True, expected no --brokers beside it"),
    (["--tiny", "--zones", "b"], "`--tiny` is True"),
    (["--fleet", "f.yaml", "--brokers", "3"], "`--fleet` is 'f.yaml', expected it alone"),
]


@pytest.mark.parametrize(("flags", "text"), FLAGS, ids=[" ".join(flags) for flags, _ in FLAGS])
def test_flags_that_make_no_fleet(here: Here, flags: list[str], text: str) -> None:
    Path("f.yaml").write_text("clusters: [{}]")

    assert_error(here("up", *flags), USAGE, "PEN-1002", text, "Correct the value")


# --- what the machine lacks -----------------------------------------------------------------------


def java_home(directory: Path, version: str) -> str:
    (directory / "bin").mkdir(parents=True)
    (directory / "release").write_text(f'JAVA_VERSION="{version}"\n')
    java = directory / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return str(directory)


def test_java_11(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home(tmp_path / "jdk11", "11.0.22"))

    text = f"{tmp_path}/jdk11/bin/java is Java 11.0.22; Kafka needs 17 or newer"
    assert_error(here("up"), FAILED, "PEN-2002", text, "set JAVA_HOME")
    assert_error(here("fleet", "fetch"), FAILED, "PEN-2002", text, "set JAVA_HOME")
    assert here("version", "-o", "json").data["java"] is None


def test_no_java(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/gone")

    assert_error(
        here("up"),
        FAILED,
        "PEN-2001",
        "no usable Java runtime: JAVA_HOME=/gone has no bin/java",
        "Install Java",
    )


def test_no_maven_and_no_jars(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home(tmp_path / "jdk", "17.0.1"))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/nowhere")

    assert_error(here("up"), FAILED, "PEN-2003", "Maven is missing", "penstock fleet fetch")
    finding = {row["what"]: row for row in here("doctor", "-o", "json").data}
    assert finding["maven"]["state"] == "failed"
    assert "Install Maven" in finding["maven"]["hint"]


@pytest.mark.parametrize("state", ["missing", "damaged", "unexpected"])
def test_a_jar_that_is_not_what_it_should_be(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home(tmp_path / "jdk", "17.0.1"))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(jars_module, "jar_checksums", lambda: {"k.jar": hashlib.sha256(b"k").hexdigest()})
    directory = jars_directory(tmp_path / "cache")
    directory.mkdir(parents=True)
    if state != "missing":
        (directory / "k.jar").write_bytes(b"k" if state == "unexpected" else b"x")
    (directory / "z.jar").touch()

    jar = "z.jar" if state == "unexpected" else "k.jar"
    assert_error(
        here("up"), FAILED, "PEN-2005", f"{jar} is {state} in {directory}", "penstock fleet fetch --force"
    )


def test_doctor_finds_all_that_is_wrong_at_once(
    here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/gone")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/nowhere")

    ran = here("doctor", "--home", "/dev/null/x")

    assert ran.code == UNHEALTHY
    states = {line.split()[0]: line.split()[1] for line in ran.out.splitlines()[1:]}
    assert states == {
        "python": "fine", "java": "failed", "maven": "failed", "jars": "fine", "archive": "failed",
        "data-path": "fine", "home": "failed", "ports": "fine", "control-plane": "fine",
    }  # fmt: skip
    assert "Install Java 17 or newer, or set JAVA_HOME to such a runtime." in ran.out


# --- homes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("detached", [[], ["--detach"]])
def test_a_home_that_cannot_be_written(here: Here, detached: list[str]) -> None:
    Path("file").touch()

    for home in ("/dev/null/x", "file", "file/below"):  # where not even root can make a directory
        ran = here("up", "--home", home, *detached)
        assert_error(ran, DENIED, "PEN-2009", "is not writable: ", "PENSTOCK_HOME")


def test_a_home_that_kafka_would_split(here: Here, no_kafka: None) -> None:
    assert_error(
        here("up", "--tiny", "--home", "a,b"), USAGE, "PEN-1002", "expected a path without commas", "Correct"
    )


@pytest.mark.parametrize("words", [["status"], ["down"], ["logs"], ["reset", "--yes"], ["fleet", "connect"]])
def test_a_home_that_is_not_there(here: Here, words: list[str]) -> None:
    assert_error(here(*words), NOT_FOUND, "PEN-2011", "no fleet is running under ", "penstock up")
    assert not Path(".penstock").exists()


@pytest.mark.parametrize("file", ["fleet.json", "clusters/home/cluster.json"])
def test_a_home_that_is_damaged(here: Here, made: Layout, no_kafka: None, file: str) -> None:
    (made.home / file).write_text("{")

    for words in (["status"], ["up"], ["reset", "--yes"]):
        assert_error(here(*words), USAGE, "PEN-1003", f"{file}: cannot be read", "Check that the file")


def test_too_little_room(here: Here, no_kafka: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_module, "DISK_MB_FREE_MIN", 10**9)

    assert_error(
        here("up", "--tiny", "--port", "0"), FAILED, "PEN-2016", " MB free; a fleet needs ", "PENSTOCK_HOME"
    )


def test_a_fleet_that_is_up_already(here: Here, made: Layout) -> None:
    with sole_supervisor(made):
        for words in (["up"], ["up", "--detach"]):
            text = f"this fleet is already running: process {os.getpid()} supervises {made.home}"
            assert_error(here(*words), FAILED, "PEN-2010", text, "penstock down")
        text = "reset needs a stopped fleet; still running: the supervisor"
        assert_error(here("reset", "--yes"), FAILED, "PEN-2019", text, "penstock down")
        assert "in use by this fleet" in here("doctor").out
        silent = {"url": "http://127.0.0.1:1", "pid": os.getpid()}
        (made.home / ADDRESS_FILE).write_text(json.dumps(silent))
        ran = here("doctor", "-o", "json")
        assert ran.code == UNHEALTHY
        (finding,) = (row for row in ran.data if row["what"] == "control-plane")
        text = "the control plane at http://127.0.0.1:1 accepts no changes: no response (PEN-5026)"
        assert (finding["state"], finding["detail"]) == ("failed", text)
    assert made.fleet_file.exists()


# --- starting -------------------------------------------------------------------------------------


def test_a_port_in_use_is_named(here: Here, no_kafka: None) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        Path("f.yaml").write_text(f"clusters: [{{port: 0, brokers: [{{port: {port}}}]}}]")

        ran = here("up", "--fleet", "f.yaml")
        findings = {row["what"]: row for row in here("doctor", "-o", "json").data}

    text = f"port {port} (internal of home/b1) is taken by process {os.getpid()}"
    assert_error(ran, FAILED, "PEN-2006", text, "penstock up --port <first port>")
    assert "stop" not in ran.err.splitlines()[0], "nothing was started, so nothing is stopped"
    assert findings["ports"]["state"] == "failed"


def test_after_a_start_that_created_nothing_another_shape_is_accepted(here: Here, no_kafka: None) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        Path("f.yaml").write_text(f"clusters: [{{port: 0, brokers: [{{port: {server.getsockname()[1]}}}]}}]")
        assert here("up", "--fleet", "f.yaml").code == FAILED

        Path("f.yaml").write_text(
            f"clusters: [{{port: 0, controllers: 3, brokers: [{{port: {server.getsockname()[1]}}}]}}]"
        )
        again = here("up", "--fleet", "f.yaml")

    assert "PEN-2006" in again.err


def test_an_address_of_another_machine(here: Here, no_kafka: None) -> None:
    Path("f.yaml").write_text("clusters: [{host: 192.0.2.1}]")

    text = "home/c1001: `host` is '192.0.2.1', expected an address of this machine"
    assert_error(here("up", "--fleet", "f.yaml"), USAGE, "PEN-1002", text, "Correct the value")


def test_data_of_another_cluster(here: Here, made: Layout, no_kafka: None) -> None:
    meta = made.node("home", "b1").meta
    meta.parent.mkdir(parents=True)
    meta.write_text("cluster.id=SomebodyElsesClusterId\nnode.id=1\n")

    ran = here("up")

    text = f"{meta.parent} holds data of node 1 of cluster SomebodyElsesClusterId; this node is node 1 of "
    assert_error(ran, FAILED, "PEN-2008", text, "Nothing was changed")
    assert meta.read_text() == "cluster.id=SomebodyElsesClusterId\nnode.id=1\n"


def test_a_fleet_that_was_made_otherwise(here: Here, made: Layout, no_kafka: None) -> None:
    meta = made.node("home", "b1").meta
    meta.parent.mkdir(parents=True)
    meta.touch()

    ran = here("up", "--brokers", "3", "--port", "0")

    text = "cluster home was created as b1 (combined in a), but is now declared as b1 (broker in a), "
    assert_error(ran, USAGE, "PEN-2018", text, "penstock reset")
    assert json.loads(made.fleet_file.read_text()) == {"clusters": [TINY]}


def test_storage_that_cannot_be_formatted(
    here: Here, no_kafka: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_JAVA_FORMAT", "fails")

    ran = here("up", "--tiny", "--port", "0")

    assert_error(
        ran,
        FAILED,
        "PEN-2015",
        "formatting the storage of b1 failed: Error while formatting",
        "data directory",
    )


def test_a_node_that_dies_at_once(here: Here, no_kafka: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_JAVA_NODE", "dies")

    ran = here("up", "--tiny", "--port", "0")

    text = "b1 exited with code 3 before it was ready"
    assert_error(
        ran, UNHEALTHY, "PEN-2013", text, "`penstock logs b1`; its last error: Error: Could not find"
    )


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_stale_pid_that_is_now_someone_elses(
    here: Here, made: Layout, stranger: subprocess.Popen[bytes]
) -> None:
    stale = json.dumps({"pid": stranger.pid, "started": "another boot:1"})
    node = made.node("home", "b1")
    node.root.mkdir(parents=True)
    node.record.write_text(stale)
    made.supervisor_lock.write_text(stale)
    made.supervisor_record.write_text(stale)

    seen = here("status", "-o", "json")

    assert (seen.code, seen.data["state"], seen.data["supervisor"]) == (UNHEALTHY, "stopped", None)
    assert seen.data["nodes"][0]["pid"] is None
    assert_error(here("down"), NOT_FOUND, "PEN-2011", "no fleet is running under ", "penstock up")
    assert stranger.poll() is None, "the stranger was signalled"


# --- nodes, clusters and files that are not there ---------------------------------------------------


def test_an_unknown_node(here: Here, made: Layout) -> None:
    assert_error(
        here("logs", "b9"), NOT_FOUND, "PEN-2017", "there is no node 'b9' in this fleet", "Its nodes are: b1."
    )


def test_an_unknown_cluster(here: Here, made: Layout) -> None:
    ran = here("fleet", "connect", "--cluster", "east")

    assert_error(
        ran, NOT_FOUND, "PEN-2025", "there is no cluster 'east' in this fleet", "Its clusters are: home."
    )


def test_a_document_cannot_be_followed(here: Here, made: Layout) -> None:
    ran = here("logs", "-f", "-o", "json")

    assert (ran.code, ran.error["code"]) == (USAGE, "PEN-1006")
    assert_error(here("logs", "-n", "-1"), USAGE, "PEN-1006", "--lines is -1", "0 lines or more")


# --- reset ----------------------------------------------------------------------------------------


def test_reset_needs_a_confirmation(here: Here, made: Layout) -> None:
    assert_error(here("reset"), USAGE, "PEN-1006", "reset deletes data", "--yes")

    assert made.fleet_file.exists()
    assert made.secrets.exists()


def test_reset_deletes_all_but_what_was_adopted(here: Here, made: Layout) -> None:
    made.adopted.mkdir()
    (made.home / "pipeline" / "state").mkdir(parents=True)

    assert here("reset", "--yes").code == 0

    assert list(made.home.iterdir()) == [made.adopted]
    assert_error(here("reset", "--yes"), NOT_FOUND, "PEN-2011", "no fleet is running", "penstock up")


def test_a_reset_that_was_interrupted_can_be_done_again(here: Here, made: Layout) -> None:
    shutil.rmtree(made.home / "clusters")

    assert here("reset", "-y").code == 0
    assert not made.home.exists()


async def _started(directory: Path) -> Any:
    fleet = fake_fleet(directory, TINY)
    save_fleet_document(fleet.layout, {"clusters": [TINY]})
    await fleet.prepare()
    await fleet.node("b1").start()
    return fleet


def test_reset_while_a_node_runs(here: Here, tmp_path: Path) -> None:
    fleet = asyncio.run(_started(tmp_path))
    node = fleet.node("b1")
    wait_for(node.layout.record.exists, what="its record")

    ran = here("reset", "--yes", "--home", str(fleet.layout.home))
    running = node.running()
    assert running is not None
    running.signal(signal.SIGKILL)
    wait_for(lambda: node.running() is None, what="its end")

    assert_error(ran, FAILED, "PEN-2019", "reset needs a stopped fleet; still running: b1", "penstock down")
    assert node.layout.meta.exists()
