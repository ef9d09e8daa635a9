"""The files and directories below PENSTOCK_HOME."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.fleet.layout import Layout, make_directory
from penstock.model.errors import Exit
from penstock.model.errors.fleet import DirectoryNotWritable


def test_every_path_is_unique_and_below_home() -> None:
    layout = Layout(Path("/h"))
    node = layout.node("home", "b1")

    paths = [
        layout.secrets, layout.supervisor_lock, layout.supervisor_record, layout.supervisor_log,
        layout.adopted, layout.fleet_file, layout.cluster_record("home"), node.properties, node.data,
        node.meta, node.log, node.console, node.console_before, node.lock, node.record, node.keystore,
    ]  # fmt: skip
    assert len(set(paths)) == len(paths)
    assert all(path.is_relative_to("/h") for path in paths)


def test_a_directory_is_created_with_its_parents(tmp_path: Path) -> None:
    assert make_directory(tmp_path / "a" / "b").is_dir()
    assert make_directory(tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("kind", ["a file in its place", "a file above it", "a path that cannot exist"])
def test_a_directory_that_cannot_be_created_is_an_error_with_the_reason(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("")
    path = {
        "a file in its place": tmp_path / "file",
        "a file above it": tmp_path / "file" / "below",
        "a path that cannot exist": Path("/dev/null/penstock"),  # not even root
    }[kind]

    with pytest.raises(DirectoryNotWritable) as caught:
        make_directory(path)

    assert str(path) in caught.value.message
    assert "PENSTOCK_HOME" in caught.value.advice
    assert caught.value.exit_code is Exit.DENIED


def test_a_directory_without_write_permission_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write regardless of the mode, so the check is patched.
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    with pytest.raises(DirectoryNotWritable, match="permission denied"):
        make_directory(tmp_path)
