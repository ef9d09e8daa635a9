"""A platform that `penstock up` started, with its supervisor: what a test kills comes back.

    platform = Platform(penstock)
    platform.up("--tiny")
    platform.kill("b1")
    platform.wait_ready()

Everything is looked at from outside, by the records under the home and by real calls.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.fleet.layout import Layout
from penstock.fleet.local import LocalFleet, watched_fleet
from penstock.fleet.status import FleetState, FleetStatus, fleet_status
from penstock.fleet.supervisor import supervisor_of
from tests.ground.fleet import wait_for

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.fleet.identity import Identity
    from tests.ground.command import Penstock

READY_SECONDS_MAX = 110.0


@dataclass
class Platform:
    penstock: Penstock

    @property
    def layout(self) -> Layout:
        return Layout(self.penstock.home)

    @property
    def fleet(self) -> LocalFleet:
        return watched_fleet(self.layout)

    def up(self, *flags: str) -> None:
        """Start it with a supervisor in the background, on free ports."""
        ran = self.penstock("up", "--detach", *flags)
        assert ran.code == 0, ran.err

    def status(self) -> FleetStatus:
        return asyncio.run(fleet_status(self.fleet))

    def wait_ready(self) -> None:
        wait_for(lambda: self.status().state is FleetState.READY, what="the fleet", seconds=READY_SECONDS_MAX)

    def supervisor(self) -> Identity | None:
        return supervisor_of(self.layout)

    def process(self, node: str) -> Identity | None:
        return self.fleet.node(node).running()

    def processes(self) -> dict[str, Identity | None]:
        return {node.name: node.running() for node in self.fleet.nodes}

    def kill(self, node: str) -> int:
        """kill -9; the pid that is gone when this returns."""
        return self._kill(self.process(node))

    def kill_supervisor(self) -> int:
        return self._kill(self.supervisor())

    def client_config(self, **overrides: object) -> dict[str, Any]:
        """What `penstock fleet connect` says, and more; `group_id="x"` stands for `group.id`."""
        ran = self.penstock("fleet", "connect", "--client", "python", "-o", "json")
        quiet = {"log_level": 0}  # connections are refused while nodes are down, and that is expected
        return dict(ran.data) | quiet | {key.replace("_", "."): value for key, value in overrides.items()}

    def _kill(self, identity: Identity | None) -> int:
        assert identity is not None
        assert identity.signal(signal.SIGKILL)
        wait_for(lambda: not identity.is_alive(), what=f"process {identity.pid} to be gone")
        return identity.pid


@dataclass
class Witness:
    """Asks for the status again and again in a thread, and remembers what was said when."""

    platform: Platform
    said: list[tuple[float, FleetStatus]] = field(default_factory=list)
    gone: dict[int, float] = field(default_factory=dict)  # pid → when it was certainly dead
    _end: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _failed: list[BaseException] = field(default_factory=list)

    def __enter__(self) -> Witness:
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        assert self._thread is not None
        self._thread.join()
        assert not self._failed, self._failed

    def saw_die(self, pid: int) -> None:
        self.gone[pid] = time.monotonic()

    def lies(self) -> list[str]:
        """Every time a node was said to be ready by a process that had been dead when the question came."""
        return [
            f"{node.node} was said to be ready as process {node.pid}, which was dead at {asked}"
            for asked, status in self.said
            for node in status.nodes
            if node.state == "ready" and node.pid in self.gone and asked > self.gone[node.pid]
        ]

    def states(self, node: str) -> list[str]:
        """What was said of one node, one after the other, without repetitions."""
        states = [str(n.state) for _, status in self.said for n in status.nodes if n.node == node]
        return [state for i, state in enumerate(states) if i == 0 or state != states[i - 1]]

    def _look(self) -> None:
        try:
            while not self._end.wait(0.1):
                asked = time.monotonic()
                self.said.append((asked, self.platform.status()))
        except BaseException as error:  # noqa: BLE001 - told when the block ends
            self._failed.append(error)
