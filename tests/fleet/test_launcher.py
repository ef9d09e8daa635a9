"""The launcher class: written once, valid for Java, and part of the class-data archive."""

from __future__ import annotations

import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from penstock.fleet.java import jvm_flags, metrics_flag
from penstock.fleet.launcher import MAIN_CLASS, ensure_launcher, launcher_jar, launcher_path
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import open_fleet
from penstock.fleet.readiness import wait_until_ready
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.spec import Jit, Listener
from penstock.fleet.spec_file import parse_fleet
from penstock.model.errors.fleet import DirectoryNotWritable, NodeFailed
from tests.harness.fleet import TINY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.fleet import Fleet


def test_it_is_written_once(tmp_path: Path) -> None:
    ensure_launcher(tmp_path)
    first = launcher_path(tmp_path).stat()
    ensure_launcher(tmp_path)

    assert list(tmp_path.iterdir()) == [launcher_path(tmp_path)]
    assert launcher_path(tmp_path).stat().st_ino == first.st_ino


@pytest.mark.parametrize("content", [b"", b"half", b"\0" * len(launcher_jar())])
def test_a_damaged_launcher_is_rewritten_with_the_same_time_and_size(tmp_path: Path, content: bytes) -> None:
    ensure_launcher(tmp_path)
    before = launcher_path(tmp_path).stat()
    launcher_path(tmp_path).write_bytes(content)

    ensure_launcher(tmp_path)

    after = launcher_path(tmp_path).stat()
    assert launcher_path(tmp_path).read_bytes() == launcher_jar()
    assert (after.st_mtime, after.st_size) == (before.st_mtime, before.st_size)


def test_a_directory_that_is_not_writable_is_an_error(tmp_path: Path) -> None:
    launcher_path(tmp_path).mkdir()

    with pytest.raises(DirectoryNotWritable):
        ensure_launcher(tmp_path)


@pytest.mark.kafka
def test_launcher_exporter_and_kafka_come_from_the_archive(fleet: Fleet) -> None:
    """Java does not report that it cannot use an archive: nodes would only start more slowly."""
    runtime = fleet.nodes[0].runtime
    assert runtime is not None
    flags = jvm_flags(heap_mb=256, jit=Jit.QUICK, archive=runtime.archive)
    words = [
        *flags,
        "-Xshare:on",
        "-Xlog:class+load",
        metrics_flag("127.0.0.1:0"),
        "-cp",
        runtime.jars.classpath,
    ]
    done = subprocess.run(
        [runtime.java.executable, *words, MAIN_CLASS], capture_output=True, text=True, timeout=60, check=False
    )

    loaded = dict(
        line.split("] ")[-1].split(" source: ") for line in done.stdout.splitlines() if "source: " in line
    )
    for name in (MAIN_CLASS, "io.prometheus.jmx.JmxCollector", "kafka.Kafka", "kafka.Kafka$"):
        assert loaded[name] == "shared objects file (top)"


@pytest.mark.kafka
async def test_an_exporter_that_cannot_listen_ends_its_node_with_an_error(tmp_path: Path) -> None:
    fleet = open_fleet(parse_fleet({"clusters": [dict(TINY)]}), Layout(tmp_path), await obtain_runtime())
    await fleet.prepare()
    (node,) = fleet.nodes
    with socket.create_server(("127.0.0.1", node.spec.ports[Listener.METRICS])):
        await node.start()
        try:
            with pytest.raises(NodeFailed) as caught:
                await wait_until_ready([node])
        finally:
            await node.stop()

    assert "code 1" in caught.value.message
    assert "BindException: Address already in use" in caught.value.advice
