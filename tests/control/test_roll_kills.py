"""Control planes are killed at every fault point of a roll; the next one completes it, zone by zone."""

from __future__ import annotations

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


def test_a_roll_is_completed_whatever_point_the_control_plane_dies_at(
    home: Platform, planes: PlaneProcesses
) -> None:
    restart = [f"fleet.roll.{point}" for point in RESTART]
    settings, last = points("fleet.roll")
    document = dict(load_fleet_document(home.layout) or {})
    (shape,) = document["clusters"]
    changed = {"clusters": [{**shape, "config": {**QUICK_SESSIONS, "socket.send.buffer.bytes": 204800}}]}

    def request(active: Plane) -> None:
        control = active.control()
        (physical,) = control.every("/physical-clusters")
        adopt_document(home.layout, changed, where="the test")
        body = {"physical_cluster": physical["id"], "zones": ["a", "b"]}
        send(control, "POST", "/rolls", body)

    at = [str(leadership.INTENT), settings, *restart, *restart, "fleet.roll.finalized", last]
    with Watcher(home) as watcher:
        survivor = die_in_turn(planes.start, at, request)
        control = planes.active(survivor).control()

        def ended() -> bool:
            (roll,) = control.every("/rolls")
            assert roll["state"] in ("running", "done"), roll
            return bool(roll["state"] == "done")

        wait_for(ended, what="the roll to end", seconds=300)

    assert watcher.zones == [frozenset("a"), frozenset("b")]
    behind = {each.name for each in generations(load_fleet(home.layout)) if each.behind}
    assert behind == {"b3", "c1001"}
    (physical,) = control.every("/physical-clusters")
    rows = control.every(f"/physical-clusters/{physical['id']}/brokers")
    assert {tuple(row["states"]) for row in rows} == {("normal",)}
