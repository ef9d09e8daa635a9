"""A fleet started with `penstock up`, with its supervisor, which restarts the nodes that a test kills.

    platform = Platform(penstock)
    platform.up("--tiny")
    platform.kill("b1")
    platform.wait_ready()

It observes the fleet from outside: by the records below the home and by real requests.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import LocalFleet, load_fleet
from penstock.fleet.status import FleetState, FleetStatus, fleet_status
from penstock.fleet.supervisor import supervisor_of
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.process_identity import Identity
    from tests.harness.command import Penstock

READY_SECONDS_MAX = 110.0


@dataclass
class Platform:
    penstock: Penstock

    @property
    def layout(self) -> Layout:
        return Layout(self.penstock.home)

    @property
    def fleet(self) -> LocalFleet:
        return load_fleet(self.layout)

    def up(self, *flags: str) -> None:
        """Start the fleet with a supervisor in the background, on free ports."""
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
        """Send SIGKILL and wait for the end; returns the pid."""
        return self._kill(self.process(node))

    def kill_supervisor(self) -> int:
        return self._kill(self.supervisor())

    def client_config(self, **overrides: object) -> dict[str, Any]:
        """The output of `penstock fleet connect` with overrides; `group_id="x"` sets `group.id`."""
        ran = self.penstock("fleet", "connect", "--client", "python", "-o", "json")
        quiet = {"log_level": 0}  # failed connections are expected while nodes are down
        return dict(ran.data) | quiet | {key.replace("_", "."): value for key, value in overrides.items()}

    def _kill(self, identity: Identity | None) -> int:
        assert identity is not None
        assert identity.signal(signal.SIGKILL)
        wait_for(lambda: not identity.is_alive(), what=f"process {identity.pid} to end")
        return identity.pid


@dataclass
class StatusWatcher:
    """Records the status periodically in a thread."""

    platform: Platform
    recorded: list[tuple[float, FleetStatus]] = field(default_factory=list)  # with the time of the request
    deaths: dict[int, float] = field(default_factory=dict)  # pid → a time at which it was dead
    _end: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _failed: list[BaseException] = field(default_factory=list)

    def __enter__(self) -> StatusWatcher:
        self._thread = threading.Thread(target=self._record)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        assert self._thread is not None
        self._thread.join()
        assert not self._failed, self._failed

    def record_death(self, pid: int) -> None:
        self.deaths[pid] = time.monotonic()

    def false_reports(self) -> list[str]:
        """Status responses that called a node ready although its process was dead before the request."""
        return [
            f"{node.node} was reported ready as process {node.pid}, which was dead at {requested_at}"
            for requested_at, status in self.recorded
            for node in status.nodes
            if node.state == "ready" and node.pid in self.deaths and requested_at > self.deaths[node.pid]
        ]

    def states(self, node: str) -> list[str]:
        """The successive states of one node, without repetitions."""
        states = [str(n.state) for _, status in self.recorded for n in status.nodes if n.node == node]
        return [state for i, state in enumerate(states) if i == 0 or state != states[i - 1]]

    def _record(self) -> None:
        try:
            while not self._end.wait(0.1):
                requested_at = time.monotonic()
                self.recorded.append((requested_at, self.platform.status()))
        except BaseException as error:  # noqa: BLE001 - reported when the block ends
            self._failed.append(error)
