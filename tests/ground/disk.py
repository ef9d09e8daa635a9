"""A disk that fills up, slows down, breaks or hangs while a process runs on it.

    disk = FaultyDisk(directory)
    child = subprocess.Popen(command, env={**os.environ, **disk.environment()})
    disk.full()      # writes and new files below the directory: no space left on device
    disk.heal()

Works on any process that calls the C library to write, Java's and Python's among them, without
root and without a file system of its own: a small library (disk.c) is preloaded into the process.
It does not see pages written through mmap (Kafka's index files), nor reads. Linux with a C
compiler only; elsewhere making one raises `NoFaultyDisk`, and `without_faulty_disk` is the reason
to skip by.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

SOURCE = Path(__file__).with_name("disk.c")
CACHE = SOURCE.parent.parent.parent / ".cache" / "ground"

_MODE = struct.Struct("=I")  # of `struct control` in disk.c
_DELAY_MS = struct.Struct("=I")
_HITS = struct.Struct("=Q")
_CONTROL_BYTES = 16


class Mode(IntEnum):
    """As in disk.c."""

    NORMAL = 0
    FULL = 1
    SLOW = 2
    ERROR = 3
    HANG = 4


class NoFaultyDisk(RuntimeError):
    """This machine cannot have one."""


def without_faulty_disk() -> str | None:
    """Why this machine cannot have one; None if it can."""
    if sys.platform != "linux":
        return "disk faults need Linux: system processes of others refuse preloaded libraries"
    if shutil.which("cc") is None:
        return "disk faults need a C compiler named `cc`"
    return None


class FaultyDisk:
    """Everything below one directory, for the processes started with `environment()`."""

    def __init__(self, directory: Path) -> None:
        if reason := without_faulty_disk():
            raise NoFaultyDisk(reason)
        self.directory = directory.resolve()
        self._library = compiled()
        descriptor, path = tempfile.mkstemp(prefix="penstock-disk-")
        try:
            os.ftruncate(descriptor, _CONTROL_BYTES)
            self._control = mmap.mmap(descriptor, _CONTROL_BYTES)
        finally:
            os.close(descriptor)
        self._control_path = Path(path)

    def environment(self) -> dict[str, str]:
        """Variables to start a process with, beside those it needs anyway."""
        return {
            "LD_PRELOAD": " ".join(filter(None, (str(self._library), os.environ.get("LD_PRELOAD")))),
            "FAULTY_DISK_DIRECTORY": str(self.directory),
            "FAULTY_DISK_CONTROL": str(self._control_path),
        }

    def full(self) -> None:
        """Whatever needs room fails with ENOSPC; what is written can still be flushed."""
        self._set(Mode.FULL)

    def slow(self, ms: int) -> None:
        """Every write, flush, truncation and creation takes this much longer."""
        self._set(Mode.SLOW, delay_ms=ms)

    def error(self) -> None:
        """Everything that writes or flushes fails with EIO."""
        self._set(Mode.ERROR)

    def hang(self) -> None:
        """Everything that writes or flushes waits until the mode changes."""
        self._set(Mode.HANG)

    def heal(self) -> None:
        self._set(Mode.NORMAL)

    @property
    def hits(self) -> int:
        """Calls that a fault has met so far: a test waits for this to grow."""
        return int(_HITS.unpack_from(self._control, 8)[0])

    def close(self) -> None:
        """Heal, so that nothing hangs for ever, and forget the control file."""
        if not self._control.closed:
            self.heal()
            self._control.close()
        self._control_path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _set(self, mode: Mode, *, delay_ms: int = 0) -> None:
        _DELAY_MS.pack_into(self._control, 4, delay_ms)
        _MODE.pack_into(self._control, 0, mode)  # last: whoever sees the mode sees its delay too


def compiled(cache: Path = CACHE) -> Path:
    """The library, built once for each version of its source."""
    library = cache / f"disk-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}.so"
    if library.exists():
        return library
    cache.mkdir(parents=True, exist_ok=True)
    descriptor, fresh = tempfile.mkstemp(dir=cache, suffix=".so")
    os.close(descriptor)
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-o", fresh, str(SOURCE), "-ldl"]
    try:
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            raise NoFaultyDisk(f"cc could not build {SOURCE.name}:\n{built.stderr}")
        Path(fresh).replace(library)  # whole or not at all: another run may look for it meanwhile
    finally:
        Path(fresh).unlink(missing_ok=True)
    return library
