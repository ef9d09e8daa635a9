"""Two control planes as processes: killed after each step, frozen past the session, nothing half-done."""

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

from penstock.cli.remote import Control
from penstock.control import operations, reign
from penstock.control.feeder import WRITE_BEFORE
from penstock.control.running import root_token
from penstock.fleet.local import remember_spec
from penstock.kafka import topics
from penstock.kafka.client import Client
from penstock.model import faults
from penstock.model.errors import PenstockError
from penstock.model.errors.control import NotActive
from tests.control.conftest import QUICK_SESSIONS, SESSION_SECONDS
from tests.ground.command import clean_environment
from tests.ground.fleet import TINY, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.ground.fleet import Fleet
    from tests.ground.processes import Processes

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]  # one process after the other is started


@dataclass
class Plane:
    """A control plane in a process of its own."""

    process: subprocess.Popen[Any]
    log: Path
    token: str
    url: str = ""

    def control(self) -> Control:
        if not self.url:
            wait_for(lambda: self._url() or self.dead, what="the control plane to listen")
            self.url = self._url()
        return Control(self.url, self.token)

    @property
    def dead(self) -> bool:
        return self.process.poll() is not None

    def role(self) -> str:
        with suppress(PenstockError):
            return str(self.control()._once("GET", "/status", None, {})[0]["role"])
        return "away"

    def _url(self) -> str:
        found = re.search(r"control plane at (http://\S+)\s", self.log.read_text())
        return found[1] if found else ""


@dataclass
class Palace:
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
                env=clean_environment({faults.FAULT_VARIABLE: fault} if fault else {}),
            )
        return Plane(process, log, root_token(self.fleet.local.layout))

    def active(self, *planes: Plane) -> Plane:
        """The one that reigns, once one does."""
        found: list[Plane] = []

        def reigns() -> bool:
            found[:] = [plane for plane in planes if plane.role() == "active"]
            return bool(found)

        wait_for(reigns, what="somebody to be active")
        return found[0]


@pytest.fixture
def palace(control_fleet: Fleet, processes: Processes, tmp_path: Path) -> Palace:
    remember_spec(control_fleet.local.layout, {"clusters": [{**TINY, "config": QUICK_SESSIONS}]})
    return Palace(control_fleet, processes, tmp_path)


def points(action: str) -> list[str]:
    return [str(point) for (of, _), point in operations.DONE_UNWRITTEN.items() if of == action]


def begun(control: Control, method: str, path: str, body: Any = None) -> None:
    """Asks; whoever was asked may die of it. One that is not active for a moment is asked again."""
    headers = {"Idempotency-Key": os.urandom(8).hex(), "If-Match": "*"}

    def asked() -> bool:
        try:
            control._once(method, path, body, headers)
        except PenstockError as failure:
            return failure.code != NotActive.code
        return True

    wait_for(asked, what="somebody who is active to be asked")


def finishes_though_killed_at(
    palace: Palace, at: Sequence[str], ask: Callable[[Control], None], action: str
) -> Control:
    """One control plane after the other dies at the next point; the last one lives."""
    plane = palace.start(at[0])
    ask(palace.active(plane).control())
    for point, following in zip(at, (*at[1:], "")):
        wait_for(lambda: plane.dead, what=f"the death at {point}")  # noqa: B023 - called at once
        assert plane.process.returncode == -signal.SIGKILL, plane.log.read_text()
        plane = palace.start(following)
    control = palace.active(plane).control()
    wait_for(lambda: not list(control.every("/operations", state="running")), what=f"{action} to end")
    failed = list(control.every("/operations", state="failed"))
    assert not failed, failed
    wait_for(lambda: control.get("/check")["differences"] == [], what="brokers to have heard of it all")
    return control


def test_creating_a_cluster_finishes_though_every_step_kills_somebody(
    palace: Palace, unique: Callable[[str], str]
) -> None:
    name = unique("shop")
    *before, last = points("cluster.create")
    at = [str(reign.INTENT), *before, str(WRITE_BEFORE), last]

    control = finishes_though_killed_at(
        palace, at, lambda c: begun(c, "POST", "/clusters", {"name": name}), "cluster.create"
    )

    assert control.get(f"/clusters/{name}")["state"] == "ready"


def test_deleting_a_cluster_finishes_though_every_step_kills_somebody(
    palace: Palace, unique: Callable[[str], str]
) -> None:
    name = unique("shop")
    maker = palace.start()
    control = palace.active(maker).control()
    control.wait(control.change("POST", "/clusters", {"name": name})["operation"])
    maker.process.terminate()
    wait_for(lambda: maker.dead, what="the maker to end")

    control = finishes_though_killed_at(
        palace, points("cluster.delete"), lambda c: begun(c, "DELETE", f"/clusters/{name}"), "cluster.delete"
    )

    assert [c for c in control.every("/clusters") if c["name"] == name] == []


@pytest.mark.soak  # as the others, with another operation
def test_rotating_a_key_finishes_though_every_step_kills_somebody(
    palace: Palace, unique: Callable[[str], str]
) -> None:
    name = unique("shop")
    maker = palace.start()
    control = palace.active(maker).control()
    control.wait(control.change("POST", "/clusters", {"name": name})["operation"])
    made = control.change("POST", f"/clusters/{name}/keys", {})
    control.wait(made["operation"])
    old = made["key"]["id"]
    maker.process.terminate()
    wait_for(lambda: maker.dead, what="the maker to end")

    control = finishes_though_killed_at(
        palace, points("key.rotate"), lambda c: begun(c, "POST", f"/keys/{old}/rotate", {}), "key.rotate"
    )

    (key,) = control.every(f"/clusters/{name}/keys")
    assert key["id"] != old


@pytest.mark.soak  # as the others, with another operation
def test_moving_a_cluster_finishes_though_every_step_kills_somebody(
    make_fleet: Callable[..., Fleet], processes: Processes, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    shape = {"brokers": 2, "zones": ["a"], "port": 0, "config": QUICK_SESSIONS}
    fleet = make_fleet(**shape)
    remember_spec(fleet.local.layout, {"clusters": [shape]})
    palace = Palace(fleet, processes, tmp_path, ("--cell-brokers", "1"))
    name = unique("shop")
    maker = palace.start()
    control = palace.active(maker).control()
    control.wait(control.change("POST", "/clusters", {"name": name, "zones": "single"})["operation"])
    before = control.get(f"/clusters/{name}")
    (at_home,) = [cell["brokers"][0] for cell in control.every("/cells") if cell["id"] == before["cell"]]
    asyncio.run(_topic_on(fleet, f"{before['id']}_orders", at_home))
    maker.process.terminate()
    wait_for(lambda: maker.dead, what="the maker to end")

    control = finishes_though_killed_at(
        palace,
        points("cluster.move"),
        lambda c: begun(c, "POST", f"/clusters/{name}/move", {}),
        "cluster.move",
    )

    after = control.get(f"/clusters/{name}")
    assert (after["state"], after["cell"] != before["cell"]) == ("ready", True)


async def _topic_on(fleet: Fleet, name: str, broker: int) -> None:
    async with Client(fleet.bootstrap, fleet.security()) as client:
        made = await topics.create(client, [topics.NewTopic(name, replicas={0: [broker], 1: [broker]})])
        assert not isinstance(made[name], PenstockError), made


def test_one_that_was_frozen_past_its_session_finds_that_it_may_not_write(
    palace: Palace, processes: Processes, unique: Callable[[str], str]
) -> None:
    """It stops itself between an effect and its commit; when it goes on, all of it is history."""
    name = unique("shop")
    point = operations.DONE_UNWRITTEN["cluster.create", 1]
    frozen = palace.start(f"{point}!stop")
    palace.active(frozen)
    address = frozen.control()
    asked = subprocess.Popen(
        [sys.executable, "-c", _ASK, address.url, address.token, name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        stopped = psutil.Process(frozen.process.pid)
        wait_for(lambda: stopped.status() == psutil.STATUS_STOPPED, what="it to stop itself")
        successor = palace.start()
        control = palace.active(successor).control()
        wait_for(lambda: not list(control.every("/operations", state="running")), what="the creation to end")
        assert control.get(f"/clusters/{name}")["state"] == "ready"
        control.wait(control.change("DELETE", f"/clusters/{name}")["operation"])

        processes.thaw(frozen.process.pid)

        wait_for(lambda: frozen.role() == "standby", what="the frozen one to step down")
        assert frozen.control().get("/status")["active"] == successor.url
        wait_for(lambda: control.get("/check")["differences"] == [], what="brokers to have heard of it all")
        assert [c for c in control.every("/clusters") if c["name"] == name] == []
    finally:
        asked.kill()
        asked.wait()


_ASK = """
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
    named = {str(point) for point in faults.points("control")}

    assert {p for action in operations.STEPS for p in points(action)} <= named
