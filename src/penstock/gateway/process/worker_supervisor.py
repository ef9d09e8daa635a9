"""Starts, replaces and stops the workers behind one gateway's ports.

The parent serves no clients and has no thread and no event loop, so that it can fork at any time. `run`
returns twice, as fork does: in each worker with its slot, and in the parent when all have ended.

| event | reaction |
|---|---|
| all workers listen | the gateway is reported as serving |
| a worker ends before that | the others are stopped, and the gateway ends with its exit code |
| a worker ends after that | its counters are reclaimed and it is replaced, with a growing delay |
| a worker reports that the gateway must end | all drain, and the gateway ends with the reported exit code |
| SIGTERM, SIGINT, or standard input ends | all drain; late ones are killed |
| the parent dies | workers drain: no process would reclaim the counters of the next one to die |
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.gateway.process.listener_sockets import bind_port
from penstock.gateway.settings import Routing
from penstock.model.backoff import Backoff
from penstock.model.errors import Exit
from penstock.model.errors.gateway import ListenFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.gateway.config import GatewayConfig
    from penstock.gateway.settings import GatewaySettings

RESTART: Final = Backoff(0.2, 10.0)  # pauses before a worker that has ended is replaced
STEADY_SECONDS: Final = 30.0  # a worker that ran for so long starts with the short delay again
STATUS_BYTES_MAX: Final = 64 * 1024
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)

log = structlog.get_logger("penstock.gateway")


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """A worker's index, and its channel to the parent, where it reports its status and notices its end."""

    index: int
    channel: socket.socket

    def report_end(self, code: int) -> None:
        """The whole gateway must end, with this exit code."""
        self.report(end=code)

    def report(self, **what: object) -> None:
        self.channel.sendall(json.dumps(what).encode() + b"\n")


@dataclass(slots=True)
class Worker:
    index: int
    pid: int
    channel: socket.socket
    started: float
    buffer: bytes = b""
    status: dict[str, Any] | None = None  # once it serves


@dataclass(slots=True)
class Supervisor:
    """The parent process of a gateway's workers."""

    count: int
    reclaim: Callable[[int], None]  # called with the index of an ended worker
    serving: Callable[[Sequence[Worker]], None]  # called when all serve, and whenever one was replaced
    ended: Callable[[], None]  # called when none will serve any more
    drain_seconds: float
    until_stdin_ends: bool = False
    _workers: dict[int, Worker] = field(default_factory=dict)
    _due: dict[int, float] = field(default_factory=dict)  # when slots without a worker get one
    _failures: dict[int, int] = field(default_factory=dict)  # in a row, of each slot
    _served: bool = False
    _kill_at: float | None = None  # set once it stops
    _code: int = Exit.FINE

    def run(self) -> WorkerSlot | int:
        """In a worker, its slot; in the parent, the exit code when all have ended."""
        awake, wake = socket.socketpair()
        with awake, wake, selectors.PollSelector() as selector:
            wake.setblocking(False)
            signal.set_wakeup_fd(wake.fileno())
            for number in SIGNALS:
                signal.signal(number, lambda *_: None)
            selector.register(awake, selectors.EVENT_READ)
            if self.until_stdin_ends:
                selector.register(sys.stdin, selectors.EVENT_READ)
            self._due = dict.fromkeys(range(self.count), 0.0)
            while self._workers or (self._due and self._kill_at is None):
                slot = self._start_due(selector)
                if slot is not None:
                    return slot
                for key, _ in selector.select(self._timeout()):
                    self._handle(key, awake, selector)
                self._kill_late()
            signal.set_wakeup_fd(-1)
        self.ended()
        return self._code

    def _handle(
        self, key: selectors.SelectorKey, awake: socket.socket, selector: selectors.BaseSelector
    ) -> None:
        if key.fileobj is awake:
            signals = awake.recv(4096)
            if signal.SIGTERM in signals or signal.SIGINT in signals:
                self._end()
            self._reap(selector)
        elif isinstance(key.data, Worker):
            self._read_status(key.data, selector)
        else:
            selector.unregister(key.fileobj)
            self._end()

    # Starting

    def _start_due(self, selector: selectors.BaseSelector) -> WorkerSlot | None:
        """Start the workers that are due; in the new process, returns its slot."""
        now = time.monotonic()
        for index in [index for index, due in self._due.items() if due <= now]:
            if self._kill_at is not None:
                return None
            parent_end, worker_end = socket.socketpair()
            before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for number in SIGNALS:
                    signal.signal(number, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, too, and drains
                for channel in (parent_end, *(worker.channel for worker in self._workers.values())):
                    channel.close()
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                return WorkerSlot(index, worker_end)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            worker_end.close()
            del self._due[index]
            worker = self._workers[index] = Worker(index, pid, parent_end, now)
            selector.register(parent_end, selectors.EVENT_READ, worker)
        return None

    def _read_status(self, worker: Worker, selector: selectors.BaseSelector) -> None:
        if self._workers.get(worker.index) is not worker:
            return  # it has just been reaped
        with suppress(ConnectionError):
            received = worker.channel.recv(STATUS_BYTES_MAX)
            if received:
                worker.buffer += received
                *lines, worker.buffer = worker.buffer.split(b"\n")
                for line in lines:
                    status = json.loads(line)
                    if "end" in status:
                        self._code = status["end"]
                        self._end()
                    else:
                        worker.status = status
                if lines and self._kill_at is None:
                    self._notify_serving()
                return
        selector.unregister(worker.channel)  # it ends; SIGCHLD follows

    def _notify_serving(self) -> None:
        workers = [self._workers[index] for index in sorted(self._workers)]
        if len(workers) == self.count and all(worker.status is not None for worker in workers):
            self._served = True
            self.serving(workers)

    # Stopping

    def _end(self) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self.drain_seconds
            for worker in self._workers.values():
                os.kill(worker.pid, signal.SIGTERM)

    def _reap(self, selector: selectors.BaseSelector) -> None:
        """Reclaim what ended workers have left, and schedule their replacement."""
        for worker in list(self._workers.values()):
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if not pid:
                continue
            with suppress(KeyError):
                selector.unregister(worker.channel)
            worker.channel.close()
            del self._workers[worker.index]
            self.reclaim(worker.index)
            code = os.waitstatus_to_exitcode(status)
            if self._kill_at is not None:
                continue
            if not self._served:
                self._code = code if code > 0 else Exit.FAILED
                self._end()
                continue
            now = time.monotonic()
            steady = now - worker.started >= STEADY_SECONDS
            failures = self._failures[worker.index] = 1 if steady else self._failures.get(worker.index, 0) + 1
            pause = RESTART.seconds(failures)
            self._due[worker.index] = now + pause
            log.warning(
                "worker ended", worker=worker.index, process=worker.pid, code=code, again_in_seconds=pause
            )

    def _kill_late(self) -> None:
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            for worker in self._workers.values():
                log.warning("worker killed", worker=worker.index, process=worker.pid)
                os.kill(worker.pid, signal.SIGKILL)
            self._kill_at = float("inf")

    def _timeout(self) -> float | None:
        """Seconds until something is due; None if nothing is."""
        due = list(self._due.values()) if self._kill_at is None else [self._kill_at]
        if not due or min(due) == float("inf"):
            return None
        return max(0.0, min(due) - time.monotonic())


def reserve_ports(
    settings: GatewaySettings, config: GatewayConfig
) -> tuple[list[socket.socket], GatewaySettings, GatewayConfig]:
    """Bind the ports that all workers will listen on, choosing free ones where the file has 0.

    The sockets do not listen, so no connection waits on them; they keep the ports while no worker lives.
    """
    if settings.routing is Routing.SNI:
        reserved = [bind_port(settings.listen, settings.port)]
        return reserved, replace(settings, port=reserved[0].getsockname()[1]), config
    reserved = []
    try:
        for broker in config.brokers:
            reserved.append(bind_port(settings.listen, broker.listen_port))
    except ListenFailed:
        for sock in reserved:
            sock.close()
        raise
    brokers = [
        replace(broker, listen_port=sock.getsockname()[1])
        for broker, sock in zip(config.brokers, reserved, strict=True)
    ]
    return reserved, settings, replace(config, brokers=tuple(brokers))


def as_worker(settings: GatewaySettings, index: int) -> GatewaySettings:
    """The settings of one worker: it reports under a separate name, and has a separate metrics port."""
    port = settings.metrics_port
    return replace(
        settings,
        gateway=f"{settings.gateway}.{index}",
        gateways=settings.gateways * settings.workers,
        metrics_port=port + index if port else port,
    )
