"""Keeps a local fleet up: starts what is down, adopts what runs, restarts what dies.

One supervisor a home, by a lock that ends with its process. It can be killed at any moment: the
nodes are in sessions of their own and do not notice, and the next supervisor finds them by their
records. What it publishes in supervisor.json is for display; nobody decides anything by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from penstock.fleet.identity import Identity, identify, read_identity
from penstock.fleet.layout import make_directory, write_atomically
from penstock.fleet.readiness import Prober, wait_until_ready
from penstock.fleet.watch import NodeState, Observation, Watch, asks_to_start, observed, started
from penstock.model.errors import PenstockError
from penstock.model.errors.fleet import AlreadyRunning, DirectoryNotWritable, StopTimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

    from penstock.fleet.layout import Layout
    from penstock.fleet.local import LocalFleet
    from penstock.fleet.node import Node

LOOK_SECONDS_BETWEEN = 0.2
PROBE_SECONDS_BETWEEN = 2.0

log = structlog.get_logger()


@dataclass(slots=True)
class Watched:
    node: Node
    prober: Prober
    watch: Watch
    probed: float = 0.0
    words: str = ""  # the last of the run that ended last


@dataclass(slots=True)
class Supervisor:
    fleet: LocalFleet
    told: Callable[[Node, Watch], None] = lambda node, watch: None
    watched: list[Watched] = field(default_factory=list)
    stopping: bool = False
    found: frozenset[str] = frozenset()  # nodes that ran before this supervisor did

    async def start(self) -> None:
        """All nodes at once; those that run already are taken as they are."""
        self.found = frozenset(node.full_name for node in self.fleet.nodes if node.running() is not None)
        await self.fleet.prepare()
        for node in self.fleet.nodes:
            await node.start()
            self.watched.append(Watched(node, Prober(node), started(time.monotonic())))
        self.publish()
        await wait_until_ready(self.fleet.nodes, told=self._ready)
        self.publish()

    async def keep(self, stop: asyncio.Event) -> None:
        """Watch until told to stop."""
        while not stop.is_set():
            async with asyncio.TaskGroup() as group:
                for one in self.watched:
                    group.create_task(self._look(one))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_SECONDS_BETWEEN)

    async def stop(self, *, leave_found: bool = False) -> None:
        """End all nodes; or, after a start that failed, only those that did not run before it."""
        self.stopping = True
        self.publish()
        for one in self.watched:
            await one.prober.close()
        left = self.found if leave_found else frozenset[str]()
        try:
            await stop_nodes([node for node in self.fleet.nodes if node.full_name not in left])
        finally:
            self.fleet.layout.supervisor_record.unlink(missing_ok=True)

    def publish(self) -> None:
        me = identify(os.getpid())
        assert me is not None
        nodes = {one.node.full_name: _published(one, stopping=self.stopping) for one in self.watched}
        document = {"pid": me.pid, "started": me.started, "nodes": nodes}
        try:
            write_atomically(self.fleet.layout.supervisor_record, json.dumps(document))
        except OSError as error:  # a full disk is no reason to stop watching
            log.warning("supervisor.json could not be written", error=str(error))

    async def _look(self, one: Watched) -> None:
        now = time.monotonic()
        alive = one.node.running() is not None
        answers = one.watch.state is NodeState.READY
        if alive and (now - one.probed > PROBE_SECONDS_BETWEEN or not answers):
            one.probed = now
            answers = (await one.prober.ask()).ready
        before, one.watch = one.watch, observed(one.watch, Observation(alive, answers), time.monotonic())
        if one.watch.state is before.state:
            return
        log.info("node changed", node=one.node.name, state=one.watch.state, was=before.state)
        if one.watch.state is NodeState.RESTARTING:
            one.words = one.node.last_words()
        if asks_to_start(before, one.watch):
            await self._restart(one)
        self.told(one.node, one.watch)
        self.publish()

    async def _restart(self, one: Watched) -> None:
        try:
            one.node.configure()
            await one.node.start()
        except (OSError, PenstockError) as error:
            # It stays down and is tried again: to the watch, a start that failed is a crash.
            log.error("node did not start", node=one.node.name, error=str(error))  # noqa: TRY400 - the text says all

    def _ready(self, node: Node) -> None:
        now = time.monotonic()
        for one in self.watched:
            if one.node is node:
                one.watch = observed(one.watch, Observation(alive=True, answers=True), now)
                one.probed = now
                self.told(node, one.watch)


async def stop_nodes(nodes: Sequence[Node]) -> None:
    """Brokers first, all at once, while the controllers can still move their leaders away."""
    killed = []
    for group in ([n for n in nodes if n.spec.is_broker], [n for n in nodes if not n.spec.is_broker]):
        clean = await asyncio.gather(*(node.stop() for node in group))
        killed += [node.name for node, was_clean in zip(group, clean) if not was_clean]
    if killed:
        from penstock.fleet.node import STOP_SECONDS_MAX

        raise StopTimedOut(nodes=", ".join(killed), seconds=STOP_SECONDS_MAX)


@contextlib.contextmanager
def sole_supervisor(layout: Layout) -> Iterator[None]:
    """Hold the home's lock, or say who does."""
    make_directory(layout.home)
    me = identify(os.getpid())
    assert me is not None
    with _locked(layout) as file:
        file.truncate(0)
        file.write(json.dumps({"pid": me.pid, "started": me.started}))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def supervisor_of(layout: Layout) -> Identity | None:
    """The process that supervises this home now, from the moment it holds the lock."""
    identity = read_identity(layout.supervisor_lock)
    return identity if identity is not None and identity.is_alive() else None


def _locked(layout: Layout) -> TextIO:
    while True:
        try:
            file = layout.supervisor_lock.open("a+")
        except OSError as error:
            raise DirectoryNotWritable(directory=layout.home, reason=error.strerror or error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # `reset` removes the file: a lock on one that is gone would keep nobody out.
            if os.path.samestat(os.fstat(file.fileno()), layout.supervisor_lock.stat()):
                return file
            file.close()
        except FileNotFoundError:
            file.close()
        except BlockingIOError:
            file.close()
            holder = read_identity(layout.supervisor_lock)
            raise AlreadyRunning(pid=holder.pid if holder else "unknown", home=layout.home) from None


def _published(one: Watched, *, stopping: bool) -> dict[str, object]:
    state = NodeState.STOPPING if stopping else one.watch.state
    return {"state": state, "restarts": one.watch.restarts, "last_words": one.words}
