"""Two control plane processes: killed after each step or frozen past the session; nothing is half-done."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from penstock.control import leadership, operations
from penstock.control.gateways.state_publisher import BEFORE_PUBLISH
from penstock.control.physical.addresses import root_token
from penstock.fleet.local_fleet import save_fleet_document
from penstock.kafka.admin import topics
from penstock.kafka.client import Client
from penstock.model import fault_points
from penstock.model.errors import PenstockError
from penstock.model.errors.control import ControlUnreachable, NoneActive, NotActive
from penstock.platform.control_client import ControlClient
from tests.control.conftest import QUICK_SESSIONS, SESSION_SECONDS
from tests.harness.command import clean_environment
from tests.harness.fleet import TINY, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.harness.fleet import Fleet
    from tests.harness.processes import Processes

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]  # processes are started one after the other


@dataclass
class Plane:
    """A control plane process."""

    process: subprocess.Popen[Any]
    log: Path
    token: str
    url: str = ""

    def control(self) -> ControlClient:
        if not self.url:
            wait_for(lambda: self._url() or self.dead, what="the control plane to listen")
            self.url = self._url()
        return ControlClient(self.url, self.token)

    @property
    def dead(self) -> bool:
        return self.process.poll() is not None

    def role(self) -> str:
        with suppress(PenstockError):
            return str(self.control()._once("GET", "/status", None, {})[0]["role"])
        return "away"

    def _url(self) -> str:
        match = re.search(r'control plane at (http://[^\s"]+)', self.log.read_text())
        return match[1] if match else ""


@dataclass
class PlaneProcesses:
    """Starts control planes on one fleet."""

    fleet: Fleet
    processes: Processes
    directory: Path
    more: tuple[str, ...] = ()
    started: int = 0

    def start(self, fault: str = "") -> Plane:
        home = self.fleet.local.layout.home
        self.started += 1
        log = self.directory / f"plane-{self.started}.log"
        words = ["control", "run", "--home", str(home), "--listen", "127.0.0.1:0"]
        words += ["--session", str(SESSION_SECONDS), *self.more]
        with log.open("wb") as file:
            process = self.processes.start(
                [sys.executable, "-m", "penstock", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=clean_environment({fault_points.FAULT_VARIABLE: fault} if fault else {}),
            )
        return Plane(process, log, root_token(self.fleet.local.layout))

    def active(self, *planes: Plane) -> Plane:
        """The active one, once there is one. Fails at once if all of them have ended."""
        active: list[Plane] = []

        def is_active() -> bool:
            active[:] = [plane for plane in planes if plane.role() == "active"]
            ended = all(plane.dead for plane in planes)
            assert active or not ended, "".join(plane.log.read_text() for plane in planes)
            return bool(active)

        wait_for(is_active, what="an active control plane")
        return active[0]


@pytest.fixture
def planes(control_fleet: Fleet, processes: Processes, tmp_path: Path) -> PlaneProcesses:
    save_fleet_document(control_fleet.local.layout, {"clusters": [{**TINY, "config": QUICK_SESSIONS}]})
    return PlaneProcesses(control_fleet, processes, tmp_path)


def points(action: str) -> list[str]:
    return [str(point) for (of, _), point in operations.EFFECT_UNCOMMITTED.items() if of == action]


def send(control: ControlClient, method: str, path: str, body: Any = None) -> None:
    """Sends a change, which may kill the control plane. Retried while it is not active; raises if refused."""
    headers = {"Idempotency-Key": os.urandom(8).hex(), "If-Match": "*"}

    def sent() -> bool:
        try:
            control._once(method, path, body, headers)
        except ControlUnreachable:
            return True  # it died of it
        except PenstockError as failure:
            if failure.code not in (NotActive.code, NoneActive.code):
                raise
            return False
        return True

    wait_for(sent, what="an active control plane to accept the request")


def running(control: ControlClient, action: str) -> list[Any]:
    """Those of one kind: tests that share this registry may leave others, such as a rotation in its grace."""
    return [one for one in control.every("/operations", state="running") if one["action"] == action]


def finishes_despite_kills_at(
    planes: PlaneProcesses, at: Sequence[str], context: Callable[[ControlClient], None], action: str
) -> ControlClient:
    """Each control plane dies at the next fault point; the last one survives."""
    plane = planes.start(at[0])
    context(planes.active(plane).control())
    for point, following in zip(at, (*at[1:], "")):
        wait_for(lambda: plane.dead, what=f"the death at {point}")  # noqa: B023 - called at once
        assert plane.process.returncode == -signal.SIGKILL, plane.log.read_text()
        plane = planes.start(following)
    control = planes.active(plane).control()
    wait_for(lambda: not running(control, action), what=f"{action} to end")
    failed = list(control.every("/operations", state="failed"))
    assert not failed, failed
    wait_for(lambda: control.get("/check")["differences"] == [], what="brokers to apply everything")
    return control


def test_creating_a_cluster_finishes_although_every_step_kills_its_control_plane(
    planes: PlaneProcesses, unique: Callable[[str], str]
) -> None:
    name = unique("shop")
    *before, last = points("cluster.create")
    at = [str(leadership.INTENT), *before, str(BEFORE_PUBLISH), last]

    control = finishes_despite_kills_at(
        planes, at, lambda c: send(c, "POST", "/clusters", {"name": name}), "cluster.create"
    )

    assert control.get(f"/clusters/{name}")["state"] == "ready"


def test_deleting_a_cluster_finishes_although_every_step_kills_its_control_plane(
    planes: PlaneProcesses, unique: Callable[[str], str]
) -> None:
    name = unique("shop")
    creator = planes.start()
    control = planes.active(creator).control()
    control.wait(control.change("POST", "/clusters", {"name": name})["operation"])
    creator.process.terminate()
    wait_for(lambda: creator.dead, what="the creator to end")

    control = finishes_despite_kills_at(
        planes, points("cluster.delete"), lambda c: send(c, "DELETE", f"/clusters/{name}"), "cluster.delete"
    )

    assert [c for c in control.every("/clusters") if c["name"] == name] == []


@pytest.mark.soak  # like the others, with another operation
def test_rotating_a_key_finishes_although_every_step_kills_its_control_plane(
    planes: PlaneProcesses, unique: Callable[[str], str]
) -> None:
    name = unique("shop")
    creator = planes.start()
    control = planes.active(creator).control()
    control.wait(control.change("POST", "/clusters", {"name": name})["operation"])
    made = control.change("POST", f"/clusters/{name}/keys", {})
    control.wait(made["operation"])
    old = made["key"]["id"]
    creator.process.terminate()
    wait_for(lambda: creator.dead, what="the creator to end")

    control = finishes_despite_kills_at(
        planes,
        points("key.rotate"),
        lambda c: send(c, "POST", f"/keys/{old}/rotate", {"grace_seconds": 0}),
        "key.rotate",
    )

    (key,) = control.every(f"/clusters/{name}/keys")
    assert key["id"] != old


@pytest.mark.soak  # like the others, with another operation
def test_moving_a_cluster_finishes_although_every_step_kills_its_control_plane(
    make_fleet: Callable[..., Fleet], processes: Processes, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    shape = {"brokers": 2, "zones": ["a"], "port": 0, "config": QUICK_SESSIONS}
    fleet = make_fleet(**shape)
    save_fleet_document(fleet.local.layout, {"clusters": [shape]})
    planes = PlaneProcesses(fleet, processes, tmp_path, ("--cell-brokers", "1"))
    name = unique("shop")
    creator = planes.start()
    control = planes.active(creator).control()
    control.wait(control.change("POST", "/clusters", {"name": name, "zones": "single"})["operation"])
    before = control.get(f"/clusters/{name}")
    (at_home,) = [cell["brokers"][0] for cell in control.every("/cells") if cell["id"] == before["cell"]]
    asyncio.run(_topic_on(fleet, f"{before['id']}_orders", at_home))
    creator.process.terminate()
    wait_for(lambda: creator.dead, what="the creator to end")

    control = finishes_despite_kills_at(
        planes,
        points("cluster.move"),
        lambda c: send(c, "POST", f"/clusters/{name}/move", {}),
        "cluster.move",
    )

    after = control.get(f"/clusters/{name}")
    assert (after["state"], after["cell"] != before["cell"]) == ("ready", True)


async def _topic_on(fleet: Fleet, name: str, broker: int) -> None:
    async with Client(fleet.bootstrap, fleet.security()) as client:
        made = await topics.create(client, [topics.NewTopic(name, replicas={0: [broker], 1: [broker]})])
        assert not isinstance(made[name], PenstockError), made


def test_a_control_plane_frozen_past_its_session_cannot_write(
    planes: PlaneProcesses, processes: Processes, unique: Callable[[str], str]
) -> None:
    """It stops itself between an effect and its commit; when it resumes, a successor has finished."""
    name = unique("shop")
    point = operations.EFFECT_UNCOMMITTED["cluster.create", 1]
    frozen = planes.start(f"{point}!stop")
    planes.active(frozen)
    address = frozen.control()
    caller = subprocess.Popen(
        [sys.executable, "-c", _CALLER, address.url, address.token, name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        stopped = psutil.Process(frozen.process.pid)
        wait_for(lambda: stopped.status() == psutil.STATUS_STOPPED, what="it to stop itself")
        successor = planes.start()
        control = planes.active(successor).control()
        wait_for(lambda: not running(control, "cluster.create"), what="the creation to end")
        assert control.get(f"/clusters/{name}")["state"] == "ready"
        control.wait(control.change("DELETE", f"/clusters/{name}")["operation"])

        processes.thaw(frozen.process.pid)

        wait_for(lambda: frozen.role() == "standby", what="the frozen control plane to step down")
        wait_for(
            lambda: frozen.control().get("/status")["active"] == successor.url,
            what="the frozen control plane to learn of its successor",
        )
        wait_for(lambda: control.get("/check")["differences"] == [], what="brokers to apply everything")
        assert [c for c in control.every("/clusters") if c["name"] == name] == []
    finally:
        caller.kill()
        caller.wait()


_CALLER = """
import json, sys, time, urllib.error, urllib.request
url, token, name = sys.argv[1:]
request = urllib.request.Request(
    url + "/v1/clusters", json.dumps({"name": name}).encode(),
    {"Authorization": "Bearer " + token, "Content-Type": "application/json"}, method="POST")
end = time.monotonic() + 5
while True:
    try:
        urllib.request.urlopen(request, timeout=60)
        break
    except urllib.error.HTTPError as refused:
        if refused.code != 503 or time.monotonic() > end:  # it may be inactive for a moment
            raise
    time.sleep(0.2)
"""


def test_every_step_of_every_operation_is_a_fault_point() -> None:
    named = {str(point) for point in fault_points.points("control")}

    assert {p for action in operations.STEPS for p in points(action)} <= named
