"""Control planes, a supervisor and a node are killed during a roll, which is completed zone by zone."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from penstock.control import leadership
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import load_fleet, load_fleet_document
from penstock.fleet.node_generations import adopt_document, generations
from tests.control.conftest import QUICK_SESSIONS
from tests.control.successive_kills import die_in_turn
from tests.control.test_takeover import Plane, PlaneProcesses, points, send
from tests.harness.command import Penstock
from tests.harness.fleet import wait_for
from tests.harness.platform import Platform
from tests.platform.test_rolls import Watcher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.platform.control_client import ControlClient
    from tests.harness.processes import Processes

RESTART = ("demoted", "stopped", "started", "in-sync", "elected")

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Platform]:
    """Three brokers in three zones with a supervisor; the control planes are the test's."""
    penstock = Penstock(home=tmp_path / "home", directory=tmp_path)
    platform = Platform(penstock)
    (tmp_path / "fleet.yaml").write_text(
        yaml.safe_dump({"clusters": [{"port": 0, "brokers": 3, "config": QUICK_SESSIONS}]})
    )
    platform.up("--fleet", str(tmp_path / "fleet.yaml"))
    yield platform
    penstock("down")
    penstock.end_everything()


@pytest.fixture
def planes(home: Platform, processes: Processes, tmp_path: Path) -> PlaneProcesses:
    fleet: Any = SimpleNamespace(local=SimpleNamespace(layout=Layout(home.penstock.home)))
    return PlaneProcesses(fleet, processes, tmp_path)


def changed(home: Platform) -> dict[str, Any]:
    """The fleet file with another setting that needs a restart."""
    (shape,) = dict(load_fleet_document(home.layout) or {})["clusters"]
    return {"clusters": [{**shape, "config": {**QUICK_SESSIONS, "socket.send.buffer.bytes": 204800}}]}


def start_roll(home: Platform, active: Plane) -> None:
    control = active.control()
    (physical,) = control.every("/physical-clusters")
    adopt_document(home.layout, changed(home), where="the test")
    send(control, "POST", "/rolls", {"physical_cluster": physical["id"], "zones": ["a", "b"]})


def wait_for_end(control: ControlClient) -> None:
    def ended() -> bool:
        (roll,) = control.every("/rolls")
        assert roll["state"] in ("running", "done"), roll
        return bool(roll["state"] == "done")

    wait_for(ended, what="the roll to end", seconds=300)


def check(home: Platform, control: ControlClient, watcher: Watcher) -> None:
    """Both zones were rolled one after the other, and nothing of the roll is left."""
    assert watcher.zones == [frozenset("a"), frozenset("b")]
    behind = {each.name for each in generations(load_fleet(home.layout)) if each.behind}
    assert behind == {"b3", "c1001"}
    (physical,) = control.every("/physical-clusters")
    rows = control.every(f"/physical-clusters/{physical['id']}/brokers")
    assert {tuple(row["states"]) for row in rows} == {("normal",)}


def test_a_roll_is_completed_whatever_point_the_control_plane_dies_at(
    home: Platform, planes: PlaneProcesses
) -> None:
    restart = [f"fleet.roll.{point}" for point in RESTART]
    settings, last = points("fleet.roll")
    at = [str(leadership.INTENT), settings, *restart, *restart, "fleet.roll.finalized", last]

    with Watcher(home) as watcher:
        survivor = die_in_turn(planes.start, at, partial(start_roll, home))
        control = planes.active(survivor).control()
        wait_for_end(control)

    check(home, control, watcher)


def test_a_roll_is_completed_although_its_supervisor_and_a_node_are_killed(
    home: Platform, planes: PlaneProcesses
) -> None:
    plane = planes.active(planes.start())
    before = home.process("b1")

    with Watcher(home) as watcher:
        start_roll(home, plane)
        wait_for(lambda: home.process("b1") != before, what="the old process of b1 to end")
        home.kill_supervisor()
        home.up()
        wait_for(lambda: home.process("b1") is not None, what="the new process of b1")
        home.kill("b1")
        wait_for_end(plane.control())

    check(home, plane.control(), watcher)
