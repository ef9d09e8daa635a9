"""Which gateways run with a configuration file: each says so in a small file beside it.

    gateway.yaml
    gateway.yaml.4711.run      pid, when it started, where it listens, where its metrics are; its workers

There may be two for a while, when one takes over from another. A file whose process is gone, or
whose number belongs to another process by now, is taken away by whoever looks.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.error import URLError
from urllib.request import urlopen

import psutil
from prometheus_client.parser import text_string_to_metric_families

from penstock.fleet.layout import write_atomically
from penstock.model.errors.gateway import DrainTimedOut
from penstock.model.keys import METRIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SUFFIX: Final = ".run"
POLL_SECONDS: Final = 0.1
METRICS_SECONDS: Final = 5.0
SHOWN: Final = ("connections", "tenants", "requests", "denials")
STARTED_SECONDS_APART: Final = 0.5  # at which two starts are different processes'


@dataclass(frozen=True, slots=True)
class Process:
    gateway: str
    pid: int
    metrics: str


@dataclass(frozen=True, slots=True)
class Running:
    pid: int
    started: float  # seconds since the epoch, as the operating system has it
    gateway: str
    bootstrap: str
    metrics: str  # its address; empty if it has none
    workers: Sequence[Mapping[str, Any]] = ()  # processes of it that serve; none: it serves by itself

    @property
    def processes(self) -> list[Process]:
        """Those that serve."""
        if not self.workers:
            return [Process(self.gateway, self.pid, self.metrics)]
        return [
            Process(f"{self.gateway}.{one['worker']}", one["pid"], one["metrics"]) for one in self.workers
        ]

    @property
    def alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < STARTED_SECONDS_APART
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def announce(
    config: Path, gateway: str, bootstrap: str, metrics: str = "", workers: Sequence[Mapping[str, Any]] = ()
) -> Path:
    """This process serves, or its workers do; `withdraw` takes the file away."""
    pid = os.getpid()
    said = Running(pid, psutil.Process(pid).create_time(), gateway, bootstrap, metrics, workers)
    path = _said_in(config, pid)
    write_atomically(path, json.dumps(asdict(said)))
    return path


def withdraw(config: Path) -> None:
    """This process serves no more."""
    _said_in(config, os.getpid()).unlink(missing_ok=True)


def _said_in(config: Path, pid: int) -> Path:
    return config.with_name(f"{config.name}.{pid}{SUFFIX}")


def running(config: Path) -> list[Running]:
    """Those that live, the one that started first in front."""
    found = []
    for path in config.parent.glob(f"{config.name}.*{SUFFIX}"):
        try:
            one = Running(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError):
            continue  # not ours
        if one.alive:
            found.append(one)
        else:
            with suppress(OSError):
                path.unlink()
    return sorted(found, key=lambda one: one.started)


def end(chosen: Sequence[Running], seconds: float) -> Iterator[Running]:
    """Tell them to drain, and yield each when it has ended."""
    for one in chosen:
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    for one in chosen:
        while one.alive:
            if time.monotonic() > deadline:
                raise DrainTimedOut(gateway=one.gateway, pid=one.pid, seconds=seconds)
            time.sleep(POLL_SECONDS)
        yield one


def figures(metrics: str) -> dict[str, Any]:
    """Connections, tenants and refusals as the gateway counts them; nothing if it does not tell."""
    if not metrics:
        return {}
    try:
        with urlopen(metrics, timeout=METRICS_SECONDS) as answer:  # noqa: S310  (an address of our own)
            text = answer.read().decode()
    except (URLError, OSError, HTTPException):  # it may end in the middle of a word
        return {}
    area = METRIC_PREFIX + "gateway_"
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        sums[family.name.removeprefix(area)] = sum(
            sample.value for sample in family.samples if not sample.name.endswith("_created")
        )
    return {
        name: int(sums[name]) for name in ("connections", "tenants", "requests", "denials") if name in sums
    }
