"""Files are replaced whole or not at all."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from penstock.atomic_files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_replaced_with_the_given_mode(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomically(path, "old")

    write_atomically(path, b"new", mode=0o600)

    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    write_atomically(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(path, "settings", mode=0o600)
        assert os.read(reader, 100) == b"settings"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)
