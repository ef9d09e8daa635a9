"""A process is its pid and the moment it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import process_identity as module
from penstock.process_identity import Identity, identify, read_identity, write_identity
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_is_itself(child: subprocess.Popen[bytes]) -> None:
    first = identify(child.pid)

    assert first is not None
    assert first.pid == child.pid
    assert identify(child.pid) == first
    assert first.is_alive()


def test_identity_survives_exec() -> None:
    program = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'print(1); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        before = identify(process.pid)
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"

        assert identify(process.pid) == before
        process.kill()


def test_a_zombie_is_not_alive(child: subprocess.Popen[bytes]) -> None:
    alive = identify(child.pid)
    assert alive is not None

    os.kill(child.pid, signal.SIGKILL)  # not waited for: it stays in the table

    wait_for(lambda: identify(child.pid) is None, what="the corpse")
    assert not alive.is_alive()
    assert not alive.signal(signal.SIGTERM)


def test_an_unused_pid_has_no_identity() -> None:
    assert identify(2**22 + 1) is None
    assert identify(-1) is None


def test_a_pid_that_was_given_to_someone_else_is_neither_alive_nor_signalled(
    child: subprocess.Popen[bytes],
) -> None:
    stale = Identity(child.pid, "another boot:1")

    assert not stale.is_alive()
    assert not stale.signal(signal.SIGKILL)
    assert child.poll() is None


def test_a_signal_reaches_the_process_it_is_meant_for(child: subprocess.Popen[bytes]) -> None:
    living = identify(child.pid)
    assert living is not None

    assert living.signal(signal.SIGTERM)

    assert child.wait(30) == -signal.SIGTERM


def test_a_name_with_parentheses_and_spaces_is_read_right(tmp_path: Path) -> None:
    odd = tmp_path / "a) S 1 (b"
    odd.symlink_to(sys.executable)
    with subprocess.Popen([odd, "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        identity = identify(process.pid)
        by_psutil = module._identify_elsewhere(process.pid)
        process.kill()

    assert identity is not None
    assert identity.started.rpartition(":")[2].isdigit()
    assert by_psutil is not None


def test_without_proc_the_start_time_serves(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROC", Path("/nowhere"))

    identity = identify(child.pid)

    assert identity is not None
    assert identity.is_alive()
    assert not Identity(child.pid, "1.000").is_alive()
    child.kill()
    wait_for(lambda: identify(identity.pid) is None, what="the corpse")
    assert identify(2**22 + 1) is None


def test_without_a_boot_id_the_ticks_alone_serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "stat").write_text("")
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (java) S " + " ".join(str(n) for n in range(4, 53)))
    monkeypatch.setattr(module, "_PROC", tmp_path)

    assert identify(7) == Identity(7, ":22")


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_identity(tmp_path / "process.json", Identity(7, "x:1"), more=True)

    assert read_identity(tmp_path / "process.json") == Identity(7, "x:1")
    assert [p.name for p in tmp_path.iterdir()] == ["process.json"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "7", "{}", '{"pid": 1}', '{"pid": "x", "started": "y"}', '{"pid": null}', "\x80"],
)
def test_an_unreadable_record_counts_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "process.json").write_bytes(content.encode("latin-1"))

    assert read_identity(tmp_path / "process.json") is None


def test_no_record_is_no_record(tmp_path: Path) -> None:
    assert read_identity(tmp_path / "process.json") is None
