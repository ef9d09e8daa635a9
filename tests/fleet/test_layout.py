"""Where things lie, and how they get there whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock.fleet import layout as module
from penstock.fleet.layout import Layout, make_directory, write_atomically
from penstock.model.errors import Exit
from penstock.model.errors.fleet import DirectoryNotWritable


def test_everything_lies_below_home() -> None:
    layout = Layout(Path("/h"))
    node = layout.node("home", "b1")

    places = [
        layout.secrets, layout.supervisor_lock, layout.supervisor_record, layout.supervisor_log,
        layout.adopted, layout.fleet_file, layout.cluster_record("home"), node.properties, node.data,
        node.meta, node.log, node.console, node.console_before, node.lock, node.record, node.keystore,
    ]  # fmt: skip
    assert len(set(places)) == len(places)
    assert all(place.is_relative_to("/h") for place in places)


def test_a_file_is_replaced_and_has_the_mode_asked_for(tmp_path: Path) -> None:
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

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    assert make_directory(tmp_path / "a" / "b").is_dir()
    assert make_directory(tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("kind", ["a file in its place", "a file above it", "a place nobody may write"])
def test_a_directory_that_cannot_be_is_named_with_the_reason(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("")
    path = {
        "a file in its place": tmp_path / "file",
        "a file above it": tmp_path / "file" / "below",
        "a place nobody may write": Path("/dev/null/penstock"),  # not even root
    }[kind]

    with pytest.raises(DirectoryNotWritable) as caught:
        make_directory(path)

    assert str(path) in caught.value.message
    assert "PENSTOCK_HOME" in caught.value.advice
    assert caught.value.exit_code is Exit.DENIED


def test_a_directory_without_the_right_to_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write wherever the mode says otherwise, so the question to the system is answered here.
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    with pytest.raises(DirectoryNotWritable, match="permission denied"):
        make_directory(tmp_path)
