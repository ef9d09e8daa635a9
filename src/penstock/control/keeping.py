"""Keeps the gateways of dedicated clusters up: starts what is down, leaves alone what runs.

    gateway.yaml, gateway.log
    gateway.lock        held by the gateway's own process for as long as it lives
    gateway.process     who that process is
    gateway.served      a hash of the settings that it was started by

A gateway outlives whoever started it, as brokers do: its tenants do not notice that a control plane
ends. Since the lock passes to the gateway when it is started, no two keepers can start it twice, and
a free lock means that it has died. Settings that were written anew have it started anew.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import structlog

from penstock.fleet.identity import read_identity

if TYPE_CHECKING:
    from pathlib import Path

LOOK_SECONDS_BETWEEN: Final = 0.5
START_SECONDS_BETWEEN: Final = 2.0  # at least, so that one that cannot serve does not spin
STOP_SECONDS_MAX: Final = 10.0  # for its clients' answers; then the hard way
LOG_BYTES_MAX: Final = 10_000_000  # begun anew at the first start after this

log = structlog.get_logger("penstock.control")


class GatewayKeeper:
    """Those of all clusters of one provisioner."""

    def __init__(self) -> None:
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._kept: dict[str, _Kept] = {}

    def keep(self, cluster: str, path: Path) -> None:
        """From now on; `path` is the gateway's file of settings."""
        if cluster not in self._keeping:
            kept = self._kept[cluster] = _Kept(path)
            self._keeping[cluster] = asyncio.create_task(kept.run())

    async def stop(self, cluster: str, path: Path) -> None:
        """End it, whoever started it. Its file goes first: another keeper would start it again."""
        await self._let_go(cluster)
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - one small file
        await end_gateway(path)

    async def close(self) -> None:
        """They go on, and a successor finds them."""
        for cluster in list(self._keeping):
            await self._let_go(cluster)

    async def _let_go(self, cluster: str) -> None:
        task = self._keeping.pop(cluster, None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            self._kept.pop(cluster).leave()
            if not task.cancelled():
                task.result()  # raises what it ended by, if that was a fault of ours


class _Kept:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._child: subprocess.Popen[bytes] | None = None
        self._started = -START_SECONDS_BETWEEN

    async def run(self) -> None:
        while self._path.exists():
            try:
                self._look()
            except OSError as failure:  # a full disk, say: it is tried again
                log.warning("gateway not started", path=str(self._path), error=str(failure))
            await asyncio.sleep(LOOK_SECONDS_BETWEEN)

    def leave(self) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.returncode = 0  # it goes on without us, which is no loss to warn of

    def _look(self) -> None:
        if self._child is not None:
            self._child.poll()  # buries it
        descriptor = os.open(_lock(self._path), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _locked(descriptor):
                found = read_identity(_record(self._path))
                if found is not None and _settings(self._path) != _served(self._path):
                    found.signal(signal.SIGTERM)  # it drains, and is started by its new settings
            elif time.monotonic() - self._started >= START_SECONDS_BETWEEN:
                self._start(descriptor)
        finally:
            os.close(descriptor)

    def _start(self, lock: int) -> None:
        again = self._child is not None
        self._started = time.monotonic()
        output = self._path.with_suffix(".log")
        if output.exists() and output.stat().st_size > LOG_BYTES_MAX:
            output.unlink()
        _record(self._path).unlink(missing_ok=True)
        _told(self._path).write_text(_settings(self._path))
        words = [sys.executable, "-m", "penstock", "gateway", "run", "--config", str(self._path)]
        with output.open("ab") as said:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "penstock.fleet.spawn", str(_record(self._path)), *words],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=(lock,),
                start_new_session=True,
            )
        log.info("gateway started", path=str(self._path), pid=self._child.pid, again=again)


async def end_gateway(path: Path) -> None:
    """Returns when none runs by this file: drained, or the hard way."""
    if not _lock(path).exists():
        return
    hard = time.monotonic() + STOP_SECONDS_MAX
    asked = False
    while _runs(path):
        # One that was started this moment has not written down who it is.
        if (found := read_identity(_record(path))) is not None:
            late = time.monotonic() > hard
            if late or not asked:
                found.signal(signal.SIGKILL if late else signal.SIGTERM)
                asked = True
        await asyncio.sleep(0.05)


def _runs(path: Path) -> bool:
    try:
        descriptor = os.open(_lock(path), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _locked(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock(path: Path) -> Path:
    return path.with_suffix(".lock")


def _record(path: Path) -> Path:
    return path.with_suffix(".process")


def _told(path: Path) -> Path:
    return path.with_suffix(".served")


def _settings(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _served(path: Path) -> str:
    """The settings it was started by."""
    return _told(path).read_text() if _told(path).exists() else ""
