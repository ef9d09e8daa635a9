"""Keeps the gateways of dedicated clusters running: starts those that are down, leaves running ones alone.

    gateway.yaml, gateway.log
    gateway.lock        held by the gateway process as long as it lives
    gateway.process     the identity of that process
    gateway.served      a hash of the settings it was started with

Like a broker, a gateway outlives the process that started it: its tenants do not notice that a control
plane ends. The gateway inherits the lock, so two supervisors cannot start it twice, and a free lock means
that it has died. A gateway whose settings file changed is restarted, but brokers are followed without one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import structlog
import yaml

from penstock.process_identity import read_identity, try_lock

if TYPE_CHECKING:
    from pathlib import Path

POLL_SECONDS: Final = 0.5
START_SECONDS_MIN: Final = 2.0  # between two starts, so that a failing gateway does not spin
STOP_SECONDS_MAX: Final = 10.0  # to drain; then SIGKILL
LOG_BYTES_MAX: Final = 10_000_000  # truncated at the next start

log = structlog.get_logger("penstock.control")


class GatewaySupervisor:
    """The gateways of all clusters of one provisioner."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._gateways: dict[str, _SupervisedGateway] = {}

    def supervise(self, cluster: str, path: Path) -> None:
        """Starts supervising; `path` is the gateway's settings file."""
        if cluster not in self._tasks:
            gateway = self._gateways[cluster] = _SupervisedGateway(path)
            self._tasks[cluster] = asyncio.create_task(gateway.run())

    async def stop(self, cluster: str, path: Path) -> None:
        """Stops the gateway. Its file is deleted first: another supervisor would restart it."""
        await self._release(cluster)
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - one small file
        await stop_gateway(path)

    async def close(self) -> None:
        """Stops supervising. The gateways keep running, and a successor finds them."""
        for cluster in list(self._tasks):
            await self._release(cluster)

    async def _release(self, cluster: str) -> None:
        task = self._tasks.pop(cluster, None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            self._gateways.pop(cluster).leave()
            if not task.cancelled():
                task.result()  # raises the error that ended it


class _SupervisedGateway:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._child: subprocess.Popen[bytes] | None = None
        self._started = -START_SECONDS_MIN

    async def run(self) -> None:
        while self._path.exists():
            try:
                self._check()
            except OSError as failure:  # for example a full disk; tried again
                log.warning("gateway not started", path=str(self._path), error=str(failure))
            await asyncio.sleep(POLL_SECONDS)

    def leave(self) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.returncode = 0  # it keeps running; suppresses Popen's ResourceWarning

    def _check(self) -> None:
        if self._child is not None:
            self._child.poll()  # reaps it
        descriptor = os.open(_lock_file(self._path), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not try_lock(descriptor):
                process = read_identity(_process_file(self._path))
                if process is not None and _settings(self._path) != _served(self._path):
                    process.signal(signal.SIGTERM)  # it drains, and is restarted with its new settings
            elif time.monotonic() - self._started >= START_SECONDS_MIN:
                self._start(descriptor)
        finally:
            os.close(descriptor)

    def _start(self, lock: int) -> None:
        again = self._child is not None
        self._started = time.monotonic()
        output = self._path.with_suffix(".log")
        if output.exists() and output.stat().st_size > LOG_BYTES_MAX:
            output.unlink()
        _process_file(self._path).unlink(missing_ok=True)
        self._path.with_suffix(".served").write_text(_settings(self._path))
        command = [sys.executable, "-m", "penstock", "gateway", "run", "--config", str(self._path)]
        with output.open("ab") as output_file:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "penstock.fleet.spawn", str(_process_file(self._path)), *command],
                stdin=subprocess.DEVNULL,
                stdout=output_file,
                stderr=output_file,
                pass_fds=(lock,),
                start_new_session=True,
            )
        log.info("gateway started", path=str(self._path), pid=self._child.pid, again=again)


async def stop_gateway(path: Path) -> None:
    """Returns when no gateway with this file is running: drained, or killed."""
    if not _lock_file(path).exists():
        return
    deadline = time.monotonic() + STOP_SECONDS_MAX
    terminated = False
    while _is_running(path):
        # A gateway started a moment ago has not written its identity yet.
        if (process := read_identity(_process_file(path))) is not None:
            late = time.monotonic() > deadline
            if late or not terminated:
                process.signal(signal.SIGKILL if late else signal.SIGTERM)
                terminated = True
        await asyncio.sleep(0.05)


def _is_running(path: Path) -> bool:
    try:
        descriptor = os.open(_lock_file(path), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def _lock_file(path: Path) -> Path:
    return path.with_suffix(".lock")


def _process_file(path: Path) -> Path:
    return path.with_suffix(".process")


def _settings(path: Path) -> str:
    """A hash of what only a restart changes."""
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    rest = {key: value for key, value in document.items() if key != "brokers"}
    return hashlib.sha256(yaml.safe_dump(rest).encode()).hexdigest()


def _served(path: Path) -> str:
    """The hash of the settings it was started with."""
    served = path.with_suffix(".served")
    return served.read_text() if served.exists() else ""
