"""The class-data archive: made once, by one, and never a reason to fail."""

from __future__ import annotations

import asyncio
import fcntl
from typing import TYPE_CHECKING

import pytest

from penstock.fleet import archive as module
from penstock.fleet.archive import archive_path, ensure_archive
from penstock.fleet.jars import Jars
from tests.ground.java import fake_runtime

if TYPE_CHECKING:
    from pathlib import Path


async def test_one_that_is_there_is_used(tmp_path: Path) -> None:
    runtime = fake_runtime(tmp_path)
    archive_path(runtime.java, runtime.jars).touch()

    assert await ensure_archive(runtime.java, runtime.jars) == archive_path(runtime.java, runtime.jars)


def test_another_class_path_is_another_archive(tmp_path: Path) -> None:
    java, jars = fake_runtime(tmp_path).java, Jars(tmp_path / "jars")
    before = archive_path(java, jars)
    (jars.directory / "more.jar").touch()

    assert archive_path(java, Jars(jars.directory)) != before


async def test_a_fleet_goes_without_one_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = fake_runtime(tmp_path)
    for trouble in ({"FAKE_JAVA_NODE": "dies"}, {"FAKE_JAVA_FORMAT": "fails"}):
        with monkeypatch.context() as patch:
            for name, value in trouble.items():
                patch.setenv(name, value)

            assert await ensure_archive(runtime.java, runtime.jars) is None

    assert left_in(tmp_path) == {"java", "jars"}


def left_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if not path.name.endswith(".lock")}


async def test_who_comes_second_waits_and_takes_what_the_first_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS_BETWEEN", 0.01)
    runtime = fake_runtime(tmp_path)
    path = archive_path(runtime.java, runtime.jars)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = asyncio.create_task(ensure_archive(runtime.java, runtime.jars))
        await asyncio.sleep(0.05)
        assert not second.done()
        path.write_text("made by the first")

    assert await second == path
    assert path.read_text() == "made by the first"


async def test_waiting_for_another_maker_can_be_ended(tmp_path: Path) -> None:
    runtime = fake_runtime(tmp_path)
    with archive_path(runtime.java, runtime.jars).with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = asyncio.create_task(ensure_archive(runtime.java, runtime.jars))
        await asyncio.sleep(0)
        waiting.cancel()

        with pytest.raises(asyncio.CancelledError):
            await waiting
