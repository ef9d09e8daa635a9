"""Control planes are killed at every step while a fleet grows and shrinks; the next one completes it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import load_fleet, load_fleet_document
from penstock.fleet.supervisor import supervisor_of
from tests.control.conftest import QUICK_SESSIONS
from tests.control.successive_kills import die_in_turn
from tests.control.test_takeover import Plane, PlaneProcesses, points, send
from tests.harness.command import Penstock
from tests.harness.fleet import wait_for
from tests.harness.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.platform.control_client import ControlClient
    from tests.harness.processes import Processes

# Between the steps: a plan is made, run, and ends.
PLAN = (
    "control.resize.proposed",
    "balance.plan.written",
    "balance.move.throttled",
    "balance.move.started",
    "balance.plan.lifted",
)

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Platform]:
    """Two brokers in two zones with a supervisor; the control planes are the test's."""
    penstock = Penstock(home=tmp_path / "home", directory=tmp_path)
    platform = Platform(penstock)
    shape = {"port": 0, "zones": ["a", "b"], "brokers": 2, "config": QUICK_SESSIONS}
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump({"clusters": [shape]}))
    platform.up("--fleet", str(tmp_path / "fleet.yaml"))
    yield platform
    penstock("down")
    penstock.end_everything()


@pytest.fixture
def planes(home: Platform, processes: Processes, tmp_path: Path) -> PlaneProcesses:
    fleet: Any = SimpleNamespace(local=SimpleNamespace(layout=Layout(home.penstock.home)))
    return PlaneProcesses(fleet, processes, tmp_path)


def physical(control: ControlClient) -> dict[str, Any]:
    (one,) = control.every("/physical-clusters")
    return dict(one)


def ended(control: ControlClient, action: str) -> bool:
    rows = [one for one in control.every("/operations") if one["action"] == action]
    assert all(one["state"] != "failed" for one in rows), rows
    return bool(rows) and all(one["state"] == "done" for one in rows)


def finish(planes: PlaneProcesses, at: Sequence[str], action: str, body: dict[str, Any]) -> Plane:
    """The active control plane dies at the next fault point until none is left."""

    def request(active: Plane) -> None:
        control = active.control()
        wait_for(lambda: physical(control)["state"] == "ready", what="the cluster")
        send(control, "POST", f"/physical-clusters/{physical(control)['id']}/{action}", body)

    last = die_in_turn(planes.start, at, request)
    control = planes.active(last).control()
    wait_for(lambda: ended(control, f"fleet.{action}"), what="the operation to end", seconds=300)
    return last


def brokers(control: ControlClient) -> dict[int, tuple[str, ...]]:
    rows = control.every(f"/physical-clusters/{physical(control)['id']}/brokers")
    return {row["id"]: tuple(row["states"]) for row in rows}


def test_a_growth_and_a_shrinking_are_completed_whatever_step_the_control_plane_dies_at(
    home: Platform, planes: PlaneProcesses
) -> None:
    before, supervisor = load_fleet_document(home.layout), supervisor_of(home.layout)
    running = home.processes()

    start, state, *others = points("fleet.grow")
    last = finish(planes, [start, state, *PLAN, *others], "grow", {"brokers": 2})
    assert brokers(last.control()) == dict.fromkeys((1, 2, 3, 4), ("normal",))
    last.process.kill()
    wait_for(lambda: last.dead, what="the last control plane to end")
    state, cordon, *others = points("fleet.shrink")

    last = finish(planes, [state, cordon, *PLAN, *others], "shrink", {"brokers": [3, 4]})

    assert brokers(last.control()) == dict.fromkeys((1, 2), ("normal",))
    assert load_fleet_document(home.layout) == before
    assert [node.name for node in load_fleet(home.layout).nodes if node.spec.is_broker] == ["b1", "b2"]
    assert home.processes() == running
    assert supervisor_of(home.layout) == supervisor
