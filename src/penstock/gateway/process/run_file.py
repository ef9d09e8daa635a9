"""Which gateways run with a configuration file: each keeps a small run file beside it.

    gateway.yaml
    gateway.yaml.4711.run      process, start time, bootstrap servers, metrics address; its workers

Two gateways may run for a while, when one replaces the other. A run file whose process is gone, or whose
process id now belongs to another process, is removed by the next reader.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.error import URLError
from urllib.request import Request

import psutil
from prometheus_client.parser import text_string_to_metric_families

from penstock.http_calls import open_url
from penstock.model.errors.gateway import DrainTimedOut
from penstock.model.key_names import METRIC_PREFIX
from penstock.process_identity import Identity, read_record, this_process, write_identity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SUFFIX: Final = ".run"
POLL_SECONDS: Final = 0.1
METRICS_SECONDS: Final = 5.0
SHOWN: Final = ("connections", "tenants", "requests", "denials")


@dataclass(frozen=True, slots=True)
class Process:
    """One process that serves clients."""

    gateway: str
    pid: int
    metrics: str


@dataclass(frozen=True, slots=True)
class RunFile:
    """A gateway's run file."""

    process: Identity
    since: float  # seconds since the epoch
    gateway: str
    bootstrap: str
    metrics: str  # URL; empty if it has none
    workers: Sequence[Mapping[str, Any]] = ()  # its worker processes; none if it serves by itself

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def processes(self) -> list[Process]:
        """The processes that serve clients."""
        if not self.workers:
            return [Process(self.gateway, self.pid, self.metrics)]
        return [
            Process(f"{self.gateway}.{one['worker']}", one["pid"], one["metrics"]) for one in self.workers
        ]

    @property
    def alive(self) -> bool:
        return self.process.is_alive()


def announce(
    config: Path, gateway: str, bootstrap: str, metrics: str = "", workers: Sequence[Mapping[str, Any]] = ()
) -> Path:
    """Write this process's run file."""
    path = _path(config, os.getpid())
    write_identity(
        path,
        this_process(),
        since=psutil.Process().create_time(),
        gateway=gateway,
        bootstrap=bootstrap,
        metrics=metrics,
        workers=workers,
    )
    return path


def withdraw(config: Path) -> None:
    """Remove this process's run file."""
    _path(config, os.getpid()).unlink(missing_ok=True)


def _path(config: Path, pid: int) -> Path:
    return config.with_name(f"{config.name}.{pid}{SUFFIX}")


def running(config: Path) -> list[RunFile]:
    """The running gateways, oldest first."""
    alive = []
    for path in config.parent.glob(f"{config.name}.*{SUFFIX}"):
        record = read_record(path)
        if record is None:
            continue  # withdrawn meanwhile, or not a gateway's
        try:
            one = RunFile(record[0], **record[1])
        except TypeError:
            continue  # not a gateway's
        if one.alive:
            alive.append(one)
        else:
            with suppress(OSError):
                path.unlink()
    return sorted(alive, key=lambda one: one.since)


def end(chosen: Sequence[RunFile], seconds: float) -> Iterator[RunFile]:
    """Make these gateways drain, and yield each when it has ended."""
    for one in chosen:
        one.process.signal(signal.SIGTERM)
    deadline = time.monotonic() + seconds
    for one in chosen:
        while one.alive:
            if time.monotonic() > deadline:
                raise DrainTimedOut(gateway=one.gateway, pid=one.pid, seconds=seconds)
            time.sleep(POLL_SECONDS)
        yield one


def headline_metrics(metrics: str) -> dict[str, Any]:
    """Connections, tenants, requests and denials from a metrics URL; empty if it does not respond."""
    if not metrics:
        return {}
    try:
        with open_url(Request(metrics), timeout=METRICS_SECONDS) as response:  # noqa: S310 - from the run file
            text = response.read().decode()
    except (URLError, OSError, HTTPException):  # the gateway may stop meanwhile
        return {}
    area = METRIC_PREFIX + "gateway_"
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        sums[family.name.removeprefix(area)] = sum(
            sample.value for sample in family.samples if not sample.name.endswith("_created")
        )
    return {name: int(sums[name]) for name in SHOWN if name in sums}
