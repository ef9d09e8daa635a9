"""Probes a log directory: a child process writes, flushes and reads a file there.

Storage that hangs blocks only the child: this process waits for it with a time limit, and starts no second
one meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

FILE: Final = ".penstock-probe"
PROBE_SECONDS_MAX: Final = 5.0
# Isolated and without site packages: it starts fast, and reads nothing from the directory that it probes.
_CHILD: Final = """
import os, sys
path = sys.argv[1]
for line in sys.stdin:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
            same = os.pread(descriptor, 100, 0) == line.encode()
        finally:
            os.close(descriptor)
        print("ok" if same else "EIO: read other bytes than written", flush=True)
    except OSError as failure:
        print(f"{failure.strerror or failure}", flush=True)
"""


class DirectoryProbe:
    """One directory. `probe` may be called again while an earlier call's write still hangs."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._child: asyncio.subprocess.Process | None = None
        self._pending: asyncio.Task[bytes] | None = None
        self._count = 0

    async def probe(self, seconds: float = PROBE_SECONDS_MAX) -> str:
        """What is wrong with the directory; empty if it can be written."""
        child = await self._running()
        assert child.stdin is not None
        assert child.stdout is not None
        if self._pending is None:
            self._count += 1
            child.stdin.write(f"{self._count} {time.time():.6f}\n".encode())
            self._pending = asyncio.create_task(child.stdout.readline())
        done, _ = await asyncio.wait({self._pending}, timeout=seconds)
        if not done:
            return f"no write within {seconds:g} s"
        line = self._pending.result().decode().strip()
        self._pending = None
        return "" if line == "ok" else line or "the probe's process ended"

    async def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            with contextlib.suppress(TimeoutError):  # one in an uninterruptible write cannot end
                async with asyncio.timeout(1.0):
                    await child.wait()

    async def _running(self) -> asyncio.subprocess.Process:
        if self._child is None or self._child.returncode is not None:
            self._pending = None
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", _CHILD, str(self._path),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        return self._child
