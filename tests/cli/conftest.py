"""The command for tests: `penstock` in a separate process, `here` in this one, which is quicker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import structlog

from penstock.cli.app import run
from tests.control.in_memory_plane import ROOT
from tests.harness.command import CommandResult, Penstock
from tests.harness.control_api import ControlApi, serve_control_api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.control.in_memory_plane import InMemoryPlane


@pytest.fixture
def penstock(tmp_path: Path) -> Iterator[Penstock]:
    (tmp_path / "work").mkdir()
    command = Penstock(home=tmp_path / "home", directory=tmp_path / "work")
    yield command
    command.end_everything()


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., CommandResult]]:
    """Run a command in this process, with `tmp_path` as working directory and `.penstock` in it."""
    for variable in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def command(*words: str) -> CommandResult:
        capsys.readouterr()
        code = run(list(words))
        printed = capsys.readouterr()
        return CommandResult(code, printed.out, printed.err)

    yield command
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def control_api() -> Iterator[ControlApi]:
    with serve_control_api() as api:
        yield api


@pytest.fixture
def plane(
    control_api: ControlApi, here: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> InMemoryPlane:
    del here  # which cleans the environment first
    monkeypatch.setenv("PENSTOCK_URL", control_api.url)
    monkeypatch.setenv("PENSTOCK_TOKEN", ROOT)
    return control_api.new_plane()
