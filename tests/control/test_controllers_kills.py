"""Control planes are killed at every step while controllers come and go; the next one completes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.control.successive_kills import die_in_turn
from tests.control.test_resizing_kills import ended, home, physical, planes
from tests.control.test_takeover import PlaneProcesses, points, send
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from penstock.platform.control_client import ControlClient
    from tests.control.test_takeover import Plane
    from tests.harness.platform import Platform

__all__ = ["home", "planes"]

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(1200)]


def finish(
    planes: PlaneProcesses, action: str, path: str, body: dict[str, Any] | None = None
) -> dict[int, str]:
    """The active control plane dies at the next fault point until none is left; returns the voters' disks."""

    def request(active: Plane) -> None:
        control = active.control()
        wait_for(lambda: physical(control)["state"] == "ready", what="the cluster")
        send(control, "POST", f"/physical-clusters/{physical(control)['id']}/controllers{path}", body)

    last = die_in_turn(planes.start, points(action), request)
    control = planes.active(last).control()
    wait_for(lambda: ended(control, action), what="the operation to end", seconds=300)
    after = voters(control)
    last.process.kill()
    wait_for(lambda: last.dead, what="the last control plane to end")
    return after


def voters(control: ControlClient) -> dict[int, str]:
    rows = control.get(f"/physical-clusters/{physical(control)['id']}/controllers")["controllers"]
    return {row["id"]: row["directory_id"] for row in rows if row["role"] in ("active", "voter")}


def test_controllers_are_added_replaced_and_removed_whatever_step_the_control_plane_dies_at(
    home: Platform, planes: PlaneProcesses
) -> None:
    running = {name: process for name, process in home.processes().items() if name.startswith("b")}

    added = finish(planes, "fleet.controllers-add", "", {"count": 2})
    replaced = finish(planes, "fleet.controllers-replace", "/1002/replace")
    left = finish(planes, "fleet.controllers-remove", "/remove", {"controllers": [1002, 1003]})

    assert added.keys() == replaced.keys() == {1001, 1002, 1003}
    assert {node for node in added if added[node] != replaced[node]} == {1002}
    assert left == {1001: added[1001]}
    assert {name: each for name, each in home.processes().items() if name.startswith("b")} == running
    assert [node.name for node in home.fleet.nodes if node.spec.is_controller] == ["c1001"]
