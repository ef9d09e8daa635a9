"""Prints the end of log files, and follows them."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

BLOCK_BYTES = 64 * 1024
POLL_SECONDS = 0.25


def last_lines(path: Path, count: int, until: int | None = None) -> list[str]:
    """The last lines of a file, or of its first `until` bytes, read from the end."""
    if count <= 0 or not path.exists():
        return []
    with path.open("rb") as file:
        position = file.seek(0, 2)
        position = position if until is None else min(position, until)
        tail = b""
        while position > 0 and tail.count(b"\n") <= count:
            step = min(BLOCK_BYTES, position)
            position -= step
            file.seek(position)
            tail = file.read(step) + tail
    lines = tail.decode(errors="replace").removesuffix("\n").split("\n")
    return lines[-count:] if tail else []


@dataclass(slots=True)
class Follower:
    """Reads whole lines as they are written. Reads a rotated file to its end before the new one."""

    path: Path
    _file: BinaryIO | None = None
    _rest: bytes = field(default=b"", repr=False)  # of an incomplete line

    def skip_to_end(self) -> int:
        """The bytes that are skipped."""
        self._open()
        return 0 if self._file is None else self._file.seek(0, 2)

    def new_lines(self) -> list[str]:
        lines = self._read()
        if self._is_replaced():
            lines += self._read()  # written between the first read and the rotation
            self.close()
            self._open()
            lines += self._read()
        return lines

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _open(self) -> None:
        self._rest = b""
        self._file = self.path.open("rb") if self.path.exists() else None

    def _read(self) -> list[str]:
        if self._file is None:
            return []
        if os.fstat(self._file.fileno()).st_size < self._file.tell():  # emptied in place
            self._file.seek(0)
            self._rest = b""
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def _is_replaced(self) -> bool:
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        return self._file is None or not os.path.samestat(there, os.fstat(self._file.fileno()))


async def follow_files(files: Mapping[str, Path], *, prefix: bool, last: int = 0, width: int = 6) -> None:
    """Print the last lines, then new lines for ever, without a gap between the two."""

    def print_lines(name: str, lines: Iterable[str]) -> None:
        for line in lines:
            print(f"{name:>{width}}  {line}" if prefix else line, flush=True)

    with ExitStack() as stack:
        followers = {name: Follower(path) for name, path in files.items()}
        for name, follower in followers.items():
            stack.callback(follower.close)
            print_lines(name, last_lines(follower.path, last, until=follower.skip_to_end()))
        while True:
            for name, follower in followers.items():
                print_lines(name, follower.new_lines())
            await asyncio.sleep(POLL_SECONDS)
