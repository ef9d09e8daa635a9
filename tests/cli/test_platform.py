"""The local platform by its commands, on real Kafka: up, status, logs, connect, down."""

from __future__ import annotations

import fcntl
import json
import signal
import stat
import threading
from ast import literal_eval
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from inline_snapshot import snapshot

from penstock.fleet.node import FORMATTING
from penstock.model.fault_points import FAULT_VARIABLE
from tests.cli.test_snapshots import shape
from tests.harness.command import Penstock
from tests.harness.fleet import wait_for
from tests.harness.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.kafka

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One combined node under a supervisor, in a home whose name is not easy; tests leave it ready."""
    directory = tmp_path_factory.mktemp("platform")
    penstock = Penstock(home=directory / "my home [bold]", directory=directory)
    platform = Platform(penstock)
    ran = penstock("up", "--tiny", "--port", "0", "--detach", "-o", "json")
    assert ran.code == 0, ran.err
    assert ran.data["state"] == "ready"
    yield platform
    penstock.end_everything()


def topics(platform: Platform) -> set[str]:
    admin = AdminClient(platform.client_config())
    return set(admin.list_topics(timeout=SECONDS_MAX).topics)


def created(platform: Platform, topic: str) -> None:
    admin = AdminClient(platform.client_config())
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS_MAX)


def test_status_shows_the_node_and_ends_well_when_all_is(platform: Platform) -> None:
    ran = platform.penstock("status", "-o", "json", "--exit-when-healthy", "--timeout", "60")

    process, supervisor = platform.process("b1"), platform.supervisor()
    assert process is not None
    assert supervisor is not None
    assert (ran.code, ran.data["state"], ran.data["supervisor"]) == (0, "ready", supervisor.pid)
    assert [(node["node"], node["state"], node["pid"]) for node in ran.data["nodes"]] == [
        ("b1", "ready", process.pid)
    ]
    assert shape(ran.data) == snapshot(
        {
            "state": "str",
            "home": "str",
            "supervisor": "int",
            "clusters": {
                "home": {"id": "str", "shape": "str", "bootstrap": "str", "gateway_bootstrap": "str"}
            },
            "nodes": [
                {
                    "cluster": "str",
                    "node": "str",
                    "role": "str",
                    "zone": "str",
                    "state": "str",
                    "address": "str",
                    "metrics": "str",
                    "pid": "int",
                    "uptime_seconds": "float",
                    "memory_mb": "float",
                    "restarts": "int",
                    "reason": "str",
                    "kafka": "str",
                    "behind": [],
                    "health": "nothing",
                }
            ],
            "services": [],
            "jobs": [],
        }
    )


def test_what_connect_prints_connects(platform: Platform) -> None:
    ran = platform.penstock("fleet", "connect", "--client", "python")

    config: dict[str, Any] = literal_eval(ran.out)
    admin = AdminClient(config)
    assert admin.list_topics(timeout=SECONDS_MAX).cluster_id == platform.fleet.clusters[0].cluster.kafka_id


def test_logs_gives_the_last_lines(platform: Platform) -> None:
    log = platform.fleet.node("b1").layout.log

    ran = platform.penstock("logs", "b1", "-n", "3")
    everyone = platform.penstock("logs", "-n", "2")

    assert ran.code == everyone.code == 0
    assert len(ran.out.splitlines()) == 3
    assert all(line in log.read_text().splitlines() for line in ran.out.splitlines())
    assert all(line.startswith("    b1  ") for line in everyone.out.splitlines())


def test_logs_follows_what_is_logged(platform: Platform, unique: Callable[[str], str]) -> None:
    topic = unique("followed")
    matches = threading.Event()
    process = platform.penstock.start("logs", "b1", "--follow", "-n", "1")

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if topic in line:
                matches.set()

    with process:
        assert process.stdout is not None
        assert process.stdout.readline(), "the last line first"
        reader = threading.Thread(target=read)
        reader.start()
        try:
            created(platform, topic)
            noticed = matches.wait(SECONDS_MAX)
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS_MAX)
        finally:
            process.kill()  # its end ends the reader, whatever went wrong
            reader.join()

    assert noticed
    assert process.returncode == 130


def test_secrets_are_where_only_this_user_looks(platform: Platform) -> None:
    home, credentials = platform.penstock.home, platform.fleet.access.credentials
    private = [home / "secrets" / "platform.key", home / "secrets" / "ca.key.pem"]
    private.append(platform.fleet.node("b1").layout.properties)

    assert stat.S_IMODE((home / "secrets").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    secrets = (credentials.node.encode(), credentials.platform.encode())
    readable = [p for p in home.rglob("*") if p.is_file() and p not in private and "data" not in p.parts]
    assert [p for p in readable if any(secret in _content(p) for secret in secrets)] == []


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # written beside its place, and in it by now
        return b""


def test_no_password_is_printed_logged_or_shown_by_ps(platform: Platform) -> None:
    credentials = platform.fleet.access.credentials
    process, supervisor = platform.process("b1"), platform.supervisor()
    assert process is not None
    assert supervisor is not None

    shown = [" ".join(psutil.Process(one.pid).cmdline()) for one in (process, supervisor)]
    shown += [str(psutil.Process(one.pid).environ()) for one in (process, supervisor)]
    for words in (["status"], ["logs", "-n", "5000"], ["doctor", "-o", "yaml"]):
        ran = platform.penstock(*words)
        shown.append(ran.out + ran.err)

    assert all(shown)
    assert not [text for text in shown if credentials.node in text or credentials.platform in text]


def test_what_was_made_outlives_a_killed_supervisor_a_down_an_up_and_a_ctrl_c(
    platform: Platform, unique: Callable[[str], str]
) -> None:
    topic, penstock = unique("kept"), platform.penstock
    created(platform, topic)
    node = platform.process("b1")
    platform.kill_supervisor()
    assert platform.process("b1") == node, "a node does not notice"

    stopped = penstock("down")
    assert stopped.code == 0
    assert platform.process("b1") is None
    assert json.loads(penstock("status", "-o", "json").out)["state"] == "stopped"

    foreground = penstock.start("up")
    platform.wait_ready()
    assert topic in topics(platform)
    foreground.send_signal(signal.SIGINT)
    printed, _ = foreground.communicate(timeout=SECONDS_MAX)
    assert foreground.returncode == 0, printed
    assert printed.splitlines()[-1] == "stopped; the data is kept"
    assert platform.process("b1") is None
    assert platform.supervisor() is None

    platform.up()
    assert topic in topics(platform)


def test_a_start_that_is_interrupted_leaves_nothing_running(tmp_path: Path) -> None:
    penstock = Penstock(home=tmp_path / "home", directory=tmp_path)
    process = penstock.start("up", "--tiny", "--port", "0")
    other = Platform(penstock)
    try:
        wait_for(lambda: other.supervisor() is not None, what="the supervisor")
        wait_for(lambda: any(penstock.home.glob("clusters/home/b1/lock")), what="it to begin")
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=SECONDS_MAX)
    finally:
        penstock.end_everything()

    assert process.returncode == 0, printed
    assert other.supervisor() is None
    assert other.process("b1") is None
    with (penstock.home / "clusters/home/b1/lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if a process still holds its data


def test_of_two_starts_at_once_one_wins_and_a_kill_while_formatting_blocks_no_later_start(
    tmp_path: Path,
) -> None:
    penstock = Penstock(home=tmp_path / "home", directory=tmp_path)
    platform = Platform(penstock)
    pause = {FAULT_VARIABLE: f"{FORMATTING}!stop"}
    both = [penstock.start("up", "--tiny", "--port", "0", "-o", "json", env=pause) for _ in range(2)]
    try:
        wait_for(lambda: [one for one in both if one.poll() is not None], what="one to give way")
        (loser,) = (one for one in both if one.poll() is not None)
        (winner,) = (one for one in both if one is not loser)
        printed = json.loads(loser.communicate()[0].splitlines()[-1])["error"]
        wait_for(lambda: any(penstock.home.glob("clusters/home/b1/format-*")), what="the formatter")
        assert platform.kill_supervisor() == winner.pid
        winner.communicate()
        platform.up()
        assert platform.penstock("down").code == 0
    finally:
        penstock.end_everything()

    assert (loser.returncode, printed["code"]) == (1, "PEN-2010")
    assert platform.process("b1") is None
    assert not list(penstock.home.glob("clusters/home/b1/format-*")), "passwords were left behind"
