"""Several workers behind one gateway's ports: who starts them, keeps up their number, and ends them.

The parent serves nobody and has no thread and no event loop, so that it can fork at any time. `run`
returns twice, as a fork does: in each worker with its seat, and in the parent when all have ended.

| what happens | what follows |
|---|---|
| all workers listen | the gateway is handed over: whoever waits for it is told |
| one ends before that | the others are ended, and the gateway ends with its exit code |
| one ends after that | what it counted is reclaimed, and another takes its seat, later each time |
| SIGTERM, SIGINT, or standard input ends | all drain; who takes too long is killed |
| the parent dies | workers drain: nobody would reclaim what the next one to die had counted |
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

from penstock.gateway.settings import Routing
from penstock.model.errors import Exit
from penstock.model.errors.gateway import ListenFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.gateway.config import GatewayConfig
    from penstock.gateway.settings import GatewaySettings

PAUSE_SECONDS: Final = 0.2  # before a worker that has ended is replaced; doubled each time
PAUSE_SECONDS_MAX: Final = 10.0
STEADY_SECONDS: Final = 30.0  # a worker that lived for so long begins with the short pause again
SAID_BYTES_MAX: Final = 64 * 1024
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)

log = structlog.get_logger("penstock.gateway")


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's place, and its line to the parent: it says there that it serves, and hears it end."""

    index: int
    line: socket.socket

    def say(self, **what: object) -> None:
        self.line.sendall(json.dumps(what).encode() + b"\n")


@dataclass(slots=True)
class Worker:
    index: int
    pid: int
    line: socket.socket
    started: float
    heard: bytes = b""
    said: dict[str, Any] | None = None  # once it serves


@dataclass(slots=True)
class Empty:
    """A seat whose worker has ended."""

    due: float
    pause: float


@dataclass(slots=True)
class Supervisor:
    count: int
    reclaim: Callable[[int], None]  # the worker of this seat is gone
    serving: Callable[[Sequence[Worker]], None]  # all of them; again whenever one was replaced
    ended: Callable[[], None]  # none of them will serve any more
    drain_seconds: float
    until_stdin_ends: bool = False
    _workers: dict[int, Worker] = field(default_factory=dict)
    _empty: dict[int, Empty] = field(default_factory=dict)
    _pauses: dict[int, float] = field(default_factory=dict)
    _served: bool = False
    _kill_at: float | None = None  # once it is to end
    _code: int = Exit.FINE

    def run(self) -> Seat | int:
        """In a worker its seat; in the parent, at the end, the exit code."""
        awake, wake = socket.socketpair()
        with awake, wake, selectors.PollSelector() as selector:
            wake.setblocking(False)
            signal.set_wakeup_fd(wake.fileno())
            for number in SIGNALS:
                signal.signal(number, lambda *_: None)
            selector.register(awake, selectors.EVENT_READ)
            if self.until_stdin_ends:
                selector.register(sys.stdin, selectors.EVENT_READ)
            self._empty = {index: Empty(0.0, PAUSE_SECONDS) for index in range(self.count)}
            while self._workers or (self._empty and self._kill_at is None):
                seat = self._fill(selector)
                if seat is not None:
                    return seat
                for key, _ in selector.select(self._patience()):
                    self._happened(key, awake, selector)
                self._kill_late()
            signal.set_wakeup_fd(-1)
        self.ended()
        return self._code

    def _happened(
        self, key: selectors.SelectorKey, awake: socket.socket, selector: selectors.BaseSelector
    ) -> None:
        if key.fileobj is awake:
            told = awake.recv(4096)
            if signal.SIGTERM in told or signal.SIGINT in told:
                self._end()
            self._bury(selector)
        elif isinstance(key.data, Worker):
            self._listen_to(key.data, selector)
        else:
            selector.unregister(key.fileobj)
            self._end()

    # Beginning

    def _fill(self, selector: selectors.BaseSelector) -> Seat | None:
        """Start whoever is due; in the new process, its seat."""
        now = time.monotonic()
        for index in [index for index, empty in self._empty.items() if empty.due <= now]:
            if self._kill_at is not None:
                return None
            ours, theirs = socket.socketpair()
            before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for number in SIGNALS:
                    signal.signal(number, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, too, and drains us
                for line in (ours, *(worker.line for worker in self._workers.values())):
                    line.close()
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                return Seat(index, theirs)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
            self._pauses[index] = self._empty.pop(index).pause
            worker = self._workers[index] = Worker(index, pid, ours, now)
            selector.register(ours, selectors.EVENT_READ, worker)
        return None

    def _listen_to(self, worker: Worker, selector: selectors.BaseSelector) -> None:
        if self._workers.get(worker.index) is not worker:
            return  # it was buried a moment ago
        with suppress(ConnectionError):
            heard = worker.line.recv(SAID_BYTES_MAX)
            if heard:
                worker.heard += heard
                *lines, worker.heard = worker.heard.split(b"\n")
                for line in lines:
                    worker.said = json.loads(line)
                if lines and self._kill_at is None:
                    self._tell()
                return
        selector.unregister(worker.line)  # it ends; what remains of it comes with SIGCHLD

    def _tell(self) -> None:
        workers = [self._workers[index] for index in sorted(self._workers)]
        if len(workers) == self.count and all(worker.said is not None for worker in workers):
            self._served = True
            self.serving(workers)

    # End

    def _end(self) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self.drain_seconds
            for worker in self._workers.values():
                os.kill(worker.pid, signal.SIGTERM)

    def _bury(self, selector: selectors.BaseSelector) -> None:
        """Reclaim what ended workers have left, and see who follows them."""
        for worker in list(self._workers.values()):
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if not pid:
                continue
            with suppress(KeyError):
                selector.unregister(worker.line)
            worker.line.close()
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
            pause = PAUSE_SECONDS if steady else self._pauses[worker.index]
            self._empty[worker.index] = Empty(now + pause, min(pause * 2, PAUSE_SECONDS_MAX))
            log.warning(
                "worker ended", worker=worker.index, process=worker.pid, code=code, again_in_seconds=pause
            )

    def _kill_late(self) -> None:
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            for worker in self._workers.values():
                log.warning("worker killed", worker=worker.index, process=worker.pid)
                os.kill(worker.pid, signal.SIGKILL)
            self._kill_at = float("inf")

    def _patience(self) -> float | None:
        """Seconds until something is due by itself; None: nothing is."""
        due = [empty.due for empty in self._empty.values()] if self._kill_at is None else [self._kill_at]
        if not due or min(due) == float("inf"):
            return None
        return max(0.0, min(due) - time.monotonic())


def hold_ports(
    settings: GatewaySettings, config: GatewayConfig
) -> tuple[list[socket.socket], GatewaySettings, GatewayConfig]:
    """Ports that all workers will listen on: those of the file, and for each that may be any, one.

    The sockets do not listen, so that no connection waits with them; they keep the ports ours while no
    worker lives.
    """
    if settings.routing is Routing.SNI:
        held = [_held(settings.listen, settings.port)]
        return held, replace(settings, port=held[0].getsockname()[1]), config
    held = []
    try:
        for broker in config.brokers:
            held.append(_held(settings.listen, broker.offered_port))
    except ListenFailed:
        for one in held:
            one.close()
        raise
    brokers = [
        replace(broker, offered_port=one.getsockname()[1])
        for broker, one in zip(config.brokers, held, strict=True)
    ]
    return held, settings, replace(config, brokers=tuple(brokers))


def _held(host: str, port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        found.bind((host, port))
    except OSError as failure:
        found.close()
        raise ListenFailed(host=host, port=port, reason=failure.strerror or failure) from failure
    return found


def as_worker(settings: GatewaySettings, index: int) -> GatewaySettings:
    """A worker reports, and is dealt quota, under a name of its own; its figures have their own port."""
    port = settings.metrics_port
    return replace(
        settings,
        gateway=f"{settings.gateway}.{index}",
        gateways=settings.gateways * settings.workers,
        metrics_port=port + index if port else port,
    )
