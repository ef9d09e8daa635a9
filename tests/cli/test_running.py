"""What `up` takes its flags for, and what it says when it is up."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli import local
from penstock.cli.running import FleetFlags, _tell_next_steps, _unless, asked_document
from penstock.cli.settings import Options
from penstock.fleet.layout import Layout
from penstock.fleet.local import remember_spec
from penstock.fleet.status import fleet_status
from tests.ground.java import fake_fleet

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.fleet.local import LocalFleet
    from penstock.fleet.status import FleetStatus
    from tests.ground.command import Ran

TINY = {"port": 0, "combined": True, "brokers": 1, "zones": ["a"]}


@pytest.fixture(autouse=True)
def _somewhere(here: Callable[..., Ran]) -> None:
    """Every test in a directory and an environment without settings."""


def asked(home: Path, **flags: Any) -> dict[str, Any]:
    none: dict[str, Any] = dict.fromkeys(("fleet", "brokers", "controllers", "zones", "port", "heap", "jit"))
    return asked_document(FleetFlags(**(none | {"tiny": False} | flags)), Layout(home))


def test_without_anything_it_is_the_default_fleet(tmp_path: Path) -> None:
    assert asked(tmp_path) == {"clusters": [{}]}


def test_flags_make_one_cluster(tmp_path: Path) -> None:
    assert asked(tmp_path, brokers=6, zones="a,b", port=0) == {
        "clusters": [{"brokers": 6, "zones": ["a", "b"], "port": 0}]
    }


def test_tiny_is_one_combined_node(tmp_path: Path) -> None:
    assert asked(tmp_path, tiny=True, port=0) == {"clusters": [TINY]}


def test_without_flags_a_fleet_comes_up_as_it_was(tmp_path: Path) -> None:
    remember_spec(Layout(tmp_path), {"clusters": [TINY]})

    assert asked(tmp_path) == {"clusters": [TINY]}
    assert asked(tmp_path, heap=500) == {"clusters": [{"heap": 500}]}


def test_a_fleet_file_by_flag_or_setting_comes_before_what_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember_spec(Layout(tmp_path), {"clusters": [TINY]})
    Path("f.yaml").write_text("clusters: [{brokers: 2}]")
    assert asked(tmp_path, fleet=Path("f.yaml")) == {"clusters": [{"brokers": 2}]}

    monkeypatch.setenv("PENSTOCK_FLEET", "f.yaml")
    assert asked(tmp_path) == {"clusters": [{"brokers": 2}]}


@pytest.mark.parametrize(("demo", "count"), [(False, 3), (True, 6)])
def test_the_next_commands_can_be_pasted_whatever_the_home_is_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], demo: bool, count: int
) -> None:
    home = tmp_path / "my [bold] home"

    _tell_next_steps(Options(home=home), demo=demo)

    first, *steps = capsys.readouterr().err.splitlines()
    assert first == "Next:"
    assert len(steps) == count
    for step in steps:
        words = shlex.split(step.rpartition("  ")[0])
        assert words[words.index("--home") + 1] == str(home)


def test_the_usual_home_needs_no_mention(capsys: pytest.CaptureFixture[str]) -> None:
    _tell_next_steps(Options(), demo=True)

    assert "--home" not in capsys.readouterr().err


async def test_work_gives_its_result_unless_it_is_told_to_stop() -> None:
    stop, cleaned = asyncio.Event(), []

    async def quick() -> int:
        return 7

    async def slow() -> int:
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned.append(True)
        return 8

    assert await _unless(stop, quick()) == 7
    asyncio.get_running_loop().call_later(0.01, stop.set)
    assert await _unless(stop, slow()) is None
    assert cleaned == [True]


async def test_work_that_fails_fails() -> None:
    async def fails() -> None:
        raise ValueError("a fault")

    with pytest.raises(ValueError, match="a fault"):
        await _unless(asyncio.Event(), fails())


def test_watched_as_json_status_is_one_document_after_the_other(
    here: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = fake_fleet(tmp_path, TINY)
    remember_spec(fleet.layout, {"clusters": [TINY]})
    looks = []

    async def look_three_times(seen: LocalFleet) -> FleetStatus:
        looks.append(1)
        if len(looks) > 3:
            raise KeyboardInterrupt
        return await fleet_status(seen)

    monkeypatch.setattr(local, "fleet_status", look_three_times)
    monkeypatch.setattr(local, "WATCH_SECONDS", 0.0)

    ran = here("status", "--watch", "-o", "json", "--home", str(fleet.layout.home))

    assert ran.code == 130
    decoder, text, documents = json.JSONDecoder(), ran.out.strip(), []
    while text:
        document, end = decoder.raw_decode(text)
        documents.append(document["state"])
        text = text[end:].strip()
    assert documents == ["stopped"] * 3
