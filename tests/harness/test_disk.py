"""A faulty disk fails as configured, only below its directory, and heals."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.harness import disk as disk_module
from tests.harness.disk import FaultyDisk, NoFaultyDisk, compiled, without_faulty_disk
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

needs_faulty_disk = pytest.mark.skipif(without_faulty_disk() is not None, reason=str(without_faulty_disk()))

# Runs one action per line of input, and prints its errno and its duration in milliseconds.
CHILD = """
import os, sys, time
inside, outside = sys.argv[1:]
fd = os.open(inside + "/log", os.O_RDWR | os.O_CREAT)
other = os.open(outside + "/log", os.O_RDWR | os.O_CREAT)
actions = {
    "write": lambda: os.write(fd, b"x"),
    "writev": lambda: os.writev(fd, [b"x", b"y"]),
    "pwrite": lambda: os.pwrite(fd, b"x", 0),
    "pwritev": lambda: os.pwritev(fd, [b"x"], 0),
    "fsync": lambda: os.fsync(fd),
    "fdatasync": lambda: os.fdatasync(fd),
    "ftruncate": lambda: os.ftruncate(fd, 0),
    "posix_fallocate": lambda: os.posix_fallocate(fd, 0, 10),
    "create": lambda: os.close(os.open(inside + "/new", os.O_RDWR | os.O_CREAT)),
    "create relative": lambda: (os.chdir(inside), os.close(os.open("relative", os.O_RDWR | os.O_CREAT))),
    "reopen": lambda: os.close(os.open(inside + "/log", os.O_RDWR | os.O_CREAT)),
    "read": lambda: os.pread(fd, 1, 0),
    "write outside": lambda: os.write(other, b"x"),
    "create outside": lambda: os.close(os.open(outside + "/new", os.O_RDWR | os.O_CREAT)),
}
for line in sys.stdin:
    begin, number = time.monotonic(), 0
    try:
        actions[line.strip()]()
    except OSError as error:
        number = error.errno
    print(number, int((time.monotonic() - begin) * 1000), flush=True)
"""

WRITING = ["write", "writev", "pwrite", "pwritev"]
FLUSHING = ["fsync", "fdatasync", "ftruncate"]
CREATING = ["posix_fallocate", "create", "create relative"]
ELSEWHERE = ["write outside", "create outside", "read", "reopen"]


class Child:
    def __init__(self, disk: FaultyDisk, outside: Path) -> None:
        command = [sys.executable, "-c", CHILD, str(disk.directory), str(outside)]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **disk.environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, action: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(action + "\n")
        self.process.stdin.flush()

    def result(self) -> tuple[int, int]:
        assert self.process.stdout is not None
        number, milliseconds = self.process.stdout.readline().split()
        return int(number), int(milliseconds)

    def attempt(self, action: str) -> int:
        """The errno of the action; zero if it succeeded."""
        self.begin(action)
        return self.result()[0]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    directory = tmp_path / "faulty"
    directory.mkdir()
    with FaultyDisk(directory) as made:
        yield made


@pytest.fixture
def child(disk: FaultyDisk, tmp_path: Path) -> Iterator[Child]:
    outside = tmp_path / "faulty-not"  # another directory whose name begins with the same letters
    outside.mkdir()
    made = Child(disk, outside)
    assert made.attempt("read") == 0  # it has opened its files before the faults
    yield made
    disk.heal()
    made.process.communicate(timeout=30)


@needs_faulty_disk
def test_nothing_fails_on_a_healthy_disk(disk: FaultyDisk, child: Child) -> None:
    errors = {child.attempt(action) for action in WRITING + FLUSHING + CREATING + ELSEWHERE}

    assert errors == {0}
    assert disk.hits == 0


@needs_faulty_disk
def test_a_full_disk_fails_only_calls_that_need_space(disk: FaultyDisk, child: Child) -> None:
    disk.full()

    errors = {action: child.attempt(action) for action in WRITING + FLUSHING + CREATING + ELSEWHERE}

    assert {a for a, number in errors.items() if number == errno.ENOSPC} == {*WRITING, *CREATING}
    assert {a for a, number in errors.items() if number == 0} == {*FLUSHING, *ELSEWHERE}


@needs_faulty_disk
def test_a_broken_disk_fails_every_write_and_flush(disk: FaultyDisk, child: Child) -> None:
    disk.error()

    errors = {action: child.attempt(action) for action in WRITING + FLUSHING + CREATING + ELSEWHERE}

    assert {a for a, number in errors.items() if number == errno.EIO} == {*WRITING, *FLUSHING, *CREATING}
    assert {a for a, number in errors.items() if number == 0} == set(ELSEWHERE)


@needs_faulty_disk
@pytest.mark.parametrize("fault", [FaultyDisk.full, FaultyDisk.error], ids=["full", "error"])
def test_a_healed_disk_accepts_writes(
    disk: FaultyDisk, child: Child, fault: Callable[[FaultyDisk], None]
) -> None:
    fault(disk)
    assert child.attempt("write") != 0

    disk.heal()

    assert child.attempt("write") == 0


@needs_faulty_disk
def test_a_slow_disk_delays_and_succeeds(disk: FaultyDisk, child: Child) -> None:
    disk.slow(ms=50)

    child.begin("fsync")

    number, milliseconds = child.result()
    assert number == 0
    assert milliseconds >= 50


@needs_faulty_disk
def test_a_hanging_disk_continues_when_healed(disk: FaultyDisk, child: Child) -> None:
    disk.hang()
    child.begin("write")
    wait_for(lambda: disk.hits, what="the write to hang")
    assert child.process.poll() is None

    disk.heal()

    assert child.result()[0] == 0


@needs_faulty_disk
def test_affected_calls_are_counted(disk: FaultyDisk, child: Child) -> None:
    disk.full()

    for action in ("write", "create", "fsync", "write outside"):
        child.attempt(action)

    assert disk.hits == 2


@needs_faulty_disk
def test_a_process_without_its_control_file_does_not_start(disk: FaultyDisk) -> None:
    environment = disk.environment()
    disk.close()

    started = subprocess.run(
        [sys.executable, "-c", "pass"], env={**os.environ, **environment}, capture_output=True, check=False
    )

    assert started.returncode == 97
    assert b"disk faults: " in started.stderr


@needs_faulty_disk
def test_the_library_is_built_once(tmp_path: Path) -> None:
    first = compiled(tmp_path)
    made = first.stat().st_mtime_ns

    assert compiled(tmp_path) == first
    assert first.stat().st_mtime_ns == made
    assert list(tmp_path.iterdir()) == [first]


def test_an_unsupported_machine_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "without_faulty_disk", lambda: "no compiler")

    with pytest.raises(NoFaultyDisk, match="no compiler"):
        FaultyDisk(tmp_path)
