"""Keep the nodes of a local fleet running: start stopped nodes, take over running ones, restart dead ones.

A file lock allows one supervisor per home. It can be killed at any moment: nodes run in their own
sessions and continue, and the next supervisor finds them by their records. `supervisor.json` is only for
display; no decision depends on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import structlog

from penstock.fleet.layout import make_directory
from penstock.fleet.node_watch import NodeState, Observation, Watch, new_watch, next_watch, should_start
from penstock.fleet.readiness import Prober, wait_until_ready
from penstock.model.errors import PenstockError
from penstock.model.errors.fleet import AlreadyRunning, DirectoryNotWritable, StopTimedOut
from penstock.process_identity import (
    Identity,
    read_alive,
    read_identity,
    this_process,
    try_lock,
    write_identity,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

    from penstock.fleet.layout import Layout
    from penstock.fleet.local_fleet import LocalFleet
    from penstock.fleet.node import Node

WATCH_SECONDS_BETWEEN = 0.2
PROBE_SECONDS_BETWEEN = 2.0

log = structlog.get_logger()


@dataclass(slots=True)
class WatchedNode:
    node: Node
    prober: Prober
    watch: Watch
    probed: float = 0.0
    last_error: str = ""  # of the run that ended last


@dataclass(slots=True)
class Supervisor:
    fleet: LocalFleet
    on_change: Callable[[Node, Watch], None] = lambda node, watch: None
    watched: list[WatchedNode] = field(default_factory=list)
    stopping: bool = False
    already_running: frozenset[str] = frozenset()  # nodes that were running before this supervisor started

    async def start(self) -> None:
        """Start all nodes at once; running ones are taken over as they are."""
        running = [node.full_name for node in self.fleet.nodes if node.running() is not None]
        self.already_running = frozenset(running)
        await self.fleet.prepare()
        for node in self.fleet.nodes:
            await node.start()
            self.watched.append(WatchedNode(node, Prober(node), new_watch(time.monotonic())))
        self.publish()
        await wait_until_ready(self.fleet.nodes, on_ready=self._ready)
        self.publish()

    async def run(self, stop: asyncio.Event) -> None:
        """Watch and restart nodes until `stop` is set."""
        while not stop.is_set():
            async with asyncio.TaskGroup() as group:
                for watched in self.watched:
                    group.create_task(self._watch(watched))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), WATCH_SECONDS_BETWEEN)

    async def stop(self, *, only_started: bool = False) -> None:
        """Stop all nodes; or, after a failed start, only those that this supervisor started."""
        self.stopping = True
        self.publish()
        for watched in self.watched:
            await watched.prober.close()
        spared = self.already_running if only_started else frozenset[str]()
        try:
            await stop_nodes([node for node in self.fleet.nodes if node.full_name not in spared])
        finally:
            self.fleet.layout.supervisor_record.unlink(missing_ok=True)

    def publish(self) -> None:
        nodes = {each.node.full_name: _published(each, stopping=self.stopping) for each in self.watched}
        try:
            write_identity(self.fleet.layout.supervisor_record, this_process(), nodes=nodes)
        except OSError as error:  # a full disk is no reason to stop watching
            log.warning("supervisor.json not written", error=str(error))

    async def _watch(self, watched: WatchedNode) -> None:
        now = time.monotonic()
        alive = watched.node.running() is not None
        responds = watched.watch.state is NodeState.READY
        if alive and (now - watched.probed > PROBE_SECONDS_BETWEEN or not responds):
            watched.probed = now
            responds = (await watched.prober.probe()).ready
        before = watched.watch
        watched.watch = next_watch(before, Observation(alive, responds), time.monotonic())
        if watched.watch.state is before.state:
            return
        log.info("node state changed", node=watched.node.name, state=watched.watch.state, was=before.state)
        if watched.watch.state is NodeState.RESTARTING:
            watched.last_error = watched.node.last_error()
        if should_start(before, watched.watch):
            await self._restart(watched)
        self.on_change(watched.node, watched.watch)
        self.publish()

    async def _restart(self, watched: WatchedNode) -> None:
        try:
            watched.node.configure()
            await watched.node.start()
        except (OSError, PenstockError) as error:
            # The watch counts a failed start as a crash, so it is tried again.
            log.error("node start failed", node=watched.node.name, error=str(error))  # noqa: TRY400 - the text is enough

    def _ready(self, node: Node) -> None:
        now = time.monotonic()
        for watched in self.watched:
            if watched.node is node:
                watched.watch = next_watch(watched.watch, Observation(alive=True, responds=True), now)
                watched.probed = now
                self.on_change(node, watched.watch)


async def stop_nodes(nodes: Sequence[Node]) -> None:
    """Stop brokers first, all at once, while the controllers can still move their leaders."""
    killed = []
    for group in ([n for n in nodes if n.spec.is_broker], [n for n in nodes if not n.spec.is_broker]):
        clean = await asyncio.gather(*(node.stop() for node in group))
        killed += [node.name for node, was_clean in zip(group, clean) if not was_clean]
    if killed:
        from penstock.fleet.node import STOP_SECONDS_MAX

        raise StopTimedOut(nodes=", ".join(killed), seconds=STOP_SECONDS_MAX)


@contextlib.contextmanager
def sole_supervisor(layout: Layout) -> Iterator[None]:
    """Hold the home's lock; raises AlreadyRunning if another supervisor holds it."""
    make_directory(layout.home)
    with _locked(layout) as file:
        file.truncate(0)
        file.write(json.dumps(asdict(this_process())))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def supervisor_of(layout: Layout) -> Identity | None:
    """The process that supervises this home, as soon as it holds the lock."""
    return read_alive(layout.supervisor_lock)


def _locked(layout: Layout) -> TextIO:
    while True:
        try:
            file = layout.supervisor_lock.open("a+")
        except OSError as error:
            raise DirectoryNotWritable(directory=layout.home, reason=error.strerror or error) from error
        if not try_lock(file):
            file.close()
            holder = read_identity(layout.supervisor_lock)
            raise AlreadyRunning(pid=holder.pid if holder else "unknown", home=layout.home)
        try:
            # `reset` removes the file: a lock on a removed file would exclude no other process.
            if os.path.samestat(os.fstat(file.fileno()), layout.supervisor_lock.stat()):
                return file
            file.close()
        except FileNotFoundError:
            file.close()


def _published(watched: WatchedNode, *, stopping: bool) -> dict[str, object]:
    state = NodeState.STOPPING if stopping else watched.watch.state
    return {"state": state, "restarts": watched.watch.restarts, "last_error": watched.last_error}
