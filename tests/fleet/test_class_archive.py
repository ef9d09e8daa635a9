"""The class-data archive is created once, by one process, and its absence is never an error."""

from __future__ import annotations

import asyncio
import fcntl
from typing import TYPE_CHECKING

import pytest

from penstock.fleet import class_archive as module
from penstock.fleet.class_archive import archive_path, ensure_archive
from penstock.fleet.jars import Jars
from tests.harness.java import fake_runtime

if TYPE_CHECKING:
    from pathlib import Path


async def test_an_existing_archive_is_used(tmp_path: Path) -> None:
    runtime = fake_runtime(tmp_path)
    archive_path(runtime.java, runtime.jars).touch()

    assert await ensure_archive(runtime.java, runtime.jars) == archive_path(runtime.java, runtime.jars)


def test_another_class_path_uses_another_archive(tmp_path: Path) -> None:
    java, jars = fake_runtime(tmp_path).java, Jars(tmp_path / "jars")
    before = archive_path(java, jars)
    (jars.directory / "more.jar").touch()

    assert archive_path(java, Jars(jars.directory)) != before


async def test_an_archive_that_cannot_be_created_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = fake_runtime(tmp_path)
    for faults in ({"FAKE_JAVA_NODE": "dies"}, {"FAKE_JAVA_FORMAT": "fails"}):
        with monkeypatch.context() as patch:
            for name, value in faults.items():
                patch.setenv(name, value)

            assert await ensure_archive(runtime.java, runtime.jars) is None

    assert left_in(tmp_path) == {"java", "jars"}


def left_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if not path.name.endswith(".lock")}


async def test_a_second_caller_waits_and_uses_the_archive_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    runtime = fake_runtime(tmp_path)
    path = archive_path(runtime.java, runtime.jars)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = asyncio.create_task(ensure_archive(runtime.java, runtime.jars))
        await asyncio.sleep(0.05)
        assert not second.done()
        path.write_text("created by the first")

    assert await second == path
    assert path.read_text() == "created by the first"


async def test_waiting_for_another_process_can_be_cancelled(tmp_path: Path) -> None:
    runtime = fake_runtime(tmp_path)
    with archive_path(runtime.java, runtime.jars).with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = asyncio.create_task(ensure_archive(runtime.java, runtime.jars))
        await asyncio.sleep(0)
        waiting.cancel()

        with pytest.raises(asyncio.CancelledError):
            await waiting
