"""The end of a file, and what comes after it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from penstock.cli import tail as module
from penstock.cli.tail import Follower, follow_files, last_lines

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("content", "count", "lines"),
    [
        ("", 5, []),
        ("a\n", 5, ["a"]),
        ("a\nb\nc\n", 2, ["b", "c"]),
        ("a\nb\nc", 2, ["b", "c"]),
        ("a\n\n\n", 2, ["", ""]),
        ("a\nb\n", 0, []),
        ("a\nb\n", -1, []),
        ("one\u2028line\n", 5, ["one\u2028line"]),
    ],
)
def test_the_last_lines_are_the_last(tmp_path: Path, content: str, count: int, lines: list[str]) -> None:
    (tmp_path / "f").write_text(content)

    assert last_lines(tmp_path / "f", count) == lines


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "f", 5) == []


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1000])
def test_lines_are_whole_wherever_a_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", block)
    (tmp_path / "f").write_text("first é\nsecond é\nthird é\n")

    assert last_lines(tmp_path / "f", 2) == ["second é", "third é"]


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "log").write_text("old\n")
    return tmp_path / "log"


def test_what_was_there_is_skipped_and_what_comes_is_read_in_whole_lines(path: Path) -> None:
    with closing(Follower(path)) as follower:
        follower.skip_to_end()
        assert follower.new_lines() == []

        append(path, "new\nha")
        assert follower.new_lines() == ["new"]
        append(path, "lf\n")
        assert follower.new_lines() == ["half"]


def test_a_file_that_comes_later_is_read_from_its_start(tmp_path: Path) -> None:
    with closing(Follower(tmp_path / "log")) as follower:
        follower.skip_to_end()
        assert follower.new_lines() == []

        append(tmp_path / "log", "first\n")

        assert follower.new_lines() == ["first"]


def test_of_a_rotated_file_nothing_is_lost(path: Path) -> None:
    with closing(Follower(path)) as follower:
        follower.skip_to_end()
        append(path, "last of the old\n")
        path.rename(path.with_suffix(".1"))
        append(path, "first of the new, and longer than the old one was\n")

        lines = follower.new_lines()

    assert lines == ["last of the old", "first of the new, and longer than the old one was"]


def test_a_file_that_was_emptied_is_read_from_its_start(path: Path) -> None:
    with closing(Follower(path)) as follower:
        follower.skip_to_end()
        path.write_text("x\n")

        assert follower.new_lines() == ["x"]


def test_the_last_lines_before_a_place_are_those_that_stood_there(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a\nb\nc\n")

    assert last_lines(tmp_path / "f", 2, until=4) == ["a", "b"]


async def test_lines_after_the_last_ones_are_printed_once(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    following = asyncio.create_task(follow_files({"b1": path}, prefix=False, last=5))
    printed = ""
    async with asyncio.timeout(60):
        while "old" not in printed:
            await asyncio.sleep(0)
            printed += capsys.readouterr().out
        append(path, "new\n")
        while "new" not in printed:
            await asyncio.sleep(0.01)
            printed += capsys.readouterr().out
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following

    assert printed == "old\nnew\n"


async def test_following_several_files_prefixes_each_line_with_its_node(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    following = asyncio.create_task(follow_files({"b1": path, "b2": tmp_path / "other"}, prefix=True))
    await asyncio.sleep(0)
    append(path, "one\n")
    append(tmp_path / "other", "two\n")

    printed = ""
    async with asyncio.timeout(60):
        while printed.count("\n") < 2:
            await asyncio.sleep(0.01)
            printed += capsys.readouterr().out
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following

    assert sorted(printed.splitlines()) == ["    b1  one", "    b2  two"]
