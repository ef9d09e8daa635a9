"""The flags of `up`, and what it prints when the platform is ready."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli import local
from penstock.cli.settings import Options
from penstock.cli.up import FleetFlags, fleet_document, report_next_steps
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import save_fleet_document
from penstock.fleet.status import fleet_status
from tests.harness.java import fake_fleet

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.fleet.local_fleet import LocalFleet
    from penstock.fleet.status import FleetStatus
    from tests.harness.command import CommandResult

TINY = {"port": 0, "combined": True, "brokers": 1, "zones": ["a"]}


@pytest.fixture(autouse=True)
def _somewhere(here: Callable[..., CommandResult]) -> None:
    """Every test in a directory and an environment without settings."""


def requested(home: Path, **flags: Any) -> dict[str, Any]:
    none: dict[str, Any] = dict.fromkeys(("fleet", "brokers", "controllers", "zones", "port", "heap", "jit"))
    return fleet_document(FleetFlags(**(none | {"tiny": False} | flags)), Layout(home))


def test_without_anything_it_is_the_default_fleet(tmp_path: Path) -> None:
    assert requested(tmp_path) == {"clusters": [{}]}


def test_flags_make_one_cluster(tmp_path: Path) -> None:
    assert requested(tmp_path, brokers=6, zones="a,b", port=0) == {
        "clusters": [{"brokers": 6, "zones": ["a", "b"], "port": 0}]
    }


def test_tiny_is_one_combined_node(tmp_path: Path) -> None:
    assert requested(tmp_path, tiny=True, port=0) == {"clusters": [TINY]}


def test_without_flags_a_fleet_comes_up_as_it_was(tmp_path: Path) -> None:
    save_fleet_document(Layout(tmp_path), {"clusters": [TINY]})

    assert requested(tmp_path) == {"clusters": [TINY]}
    assert requested(tmp_path, heap=500) == {"clusters": [{"heap": 500}]}


def test_a_fleet_file_by_flag_or_setting_comes_before_what_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_fleet_document(Layout(tmp_path), {"clusters": [TINY]})
    Path("f.yaml").write_text("clusters: [{brokers: 2}]")
    assert requested(tmp_path, fleet=Path("f.yaml")) == {"clusters": [{"brokers": 2}]}

    monkeypatch.setenv("PENSTOCK_FLEET", "f.yaml")
    assert requested(tmp_path) == {"clusters": [{"brokers": 2}]}


@pytest.mark.parametrize(("demo", "count"), [(False, 3), (True, 6)])
def test_the_next_commands_can_be_pasted_whatever_the_home_is_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], demo: bool, count: int
) -> None:
    home = tmp_path / "my [bold] home"

    report_next_steps(Options(home=home), demo=demo)

    first, *steps = capsys.readouterr().err.splitlines()
    assert first == "Next:"
    assert len(steps) == count
    for step in steps:
        words = shlex.split(step.rpartition("  ")[0])
        assert words[words.index("--home") + 1] == str(home)


def test_the_usual_home_needs_no_mention(capsys: pytest.CaptureFixture[str]) -> None:
    report_next_steps(Options(), demo=True)

    assert "--home" not in capsys.readouterr().err


def test_watched_as_json_status_is_one_document_after_the_other(
    here: Callable[..., CommandResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = fake_fleet(tmp_path, TINY)
    save_fleet_document(fleet.layout, {"clusters": [TINY]})
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
