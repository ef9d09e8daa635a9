"""A disk that fills up, slows down, fails or hangs while a process uses it.

    disk = FaultyDisk(directory)
    child = subprocess.Popen(command, env={**os.environ, **disk.environment()})
    disk.full()      # writes and new files below the directory fail: no space left on device
    disk.heal()

It works without root and without a separate file system for every process that writes through the C
library, such as Java and Python: a small library (disk.c) is preloaded into the process. It does not
affect reads, or pages written through mmap (Kafka's index files). It needs Linux and a C compiler;
elsewhere the constructor raises `NoFaultyDisk`, and `without_faulty_disk` returns the reason for a skip.
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
CACHE = SOURCE.parent.parent.parent / ".cache" / "harness"

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
    """This machine does not support faulty disks."""


def without_faulty_disk() -> str | None:
    """Why this machine does not support faulty disks; None if it does."""
    if sys.platform != "linux":
        return "disk faults need Linux: other systems refuse preloaded libraries for system processes"
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
        """Additional variables for the processes."""
        return {
            "LD_PRELOAD": " ".join(filter(None, (str(self._library), os.environ.get("LD_PRELOAD")))),
            "FAULTY_DISK_DIRECTORY": str(self.directory),
            "FAULTY_DISK_CONTROL": str(self._control_path),
        }

    def full(self) -> None:
        """Calls that need space fail with ENOSPC; flushes still work."""
        self._set(Mode.FULL)

    def slow(self, ms: int) -> None:
        """Every write, flush, truncation and creation takes this much longer."""
        self._set(Mode.SLOW, delay_ms=ms)

    def error(self) -> None:
        """Writes and flushes fail with EIO."""
        self._set(Mode.ERROR)

    def hang(self) -> None:
        """Writes and flushes wait until the mode changes."""
        self._set(Mode.HANG)

    def heal(self) -> None:
        self._set(Mode.NORMAL)

    @property
    def hits(self) -> int:
        """The number of calls affected by faults so far, for tests to wait for."""
        return int(_HITS.unpack_from(self._control, 8)[0])

    def close(self) -> None:
        """Heal, so that nothing hangs forever, and delete the control file."""
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
        _MODE.pack_into(
            self._control, 0, mode
        )  # last, so that a process that sees the mode also sees its delay


def compiled(cache: Path = CACHE) -> Path:
    """Compile the library once per version of its source; returns its path."""
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
        Path(fresh).replace(library)  # atomically: another run may look for it
    finally:
        Path(fresh).unlink(missing_ok=True)
    return library
