"""Runs a service for each cluster, with metrics and health, until a signal stops the process.

A service that fails is replaced after a pause by a new one, which starts from scratch. Until then `/readyz`
reports why it failed. The services of other clusters continue. If there is only one cluster, an error that a
retry cannot help ends the process.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import structlog

from penstock.cancellation import run_separately
from penstock.metrics_server import metrics_at, on_loop, page_of
from penstock.model import fault_points, key_names
from penstock.model.backoff import Backoff
from penstock.model.errors import PenstockError
from penstock.stop_signals import stop_event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from prometheus_client.registry import Collector

RESTART: Final = Backoff(1.0, 30.0)
STEADY_SECONDS: Final = 60.0  # after a run this long the pauses start over
STARTING: Final = "its clusters are not known yet"

log = structlog.get_logger("penstock.services")


class Service(Protocol):
    async def run(self) -> None:
        """Runs until cancelled, or raises why it cannot."""

    def not_ready(self) -> str:
        """Why it does not serve; empty if it does."""


S = TypeVar("S", bound=Service)


class ClusterServices(Generic[S]):
    """The services of a process. Fills `running`, by the name of the cluster."""

    def __init__(self, running: dict[str, S]) -> None:
        self._running = running
        self._failures: dict[str, str] = {}  # by cluster: why its last service ended

    def not_ready(self) -> str:
        if not self._running and not self._failures:
            return STARTING
        # Copied: it is called from the threads of the metrics server.
        reasons = {name: each.not_ready() for name, each in self._running.copy().items()} | self._failures
        return ", ".join(f"{name}: {why}" for name, why in reasons.items() if why)

    async def run(self, services: Mapping[str, Callable[[], S]]) -> None:
        """Runs each service until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name, make in services.items():
                group.create_task(self._keep_running(name, make, alone=len(services) == 1))

    async def _keep_running(self, name: str, make: Callable[[], S], *, alone: bool) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            service = self._running[name] = make()
            try:
                await run_separately(service.run())
            except Exception as failure:
                error = _cause(failure)
                known = isinstance(error, PenstockError)
                if alone and not (isinstance(error, PenstockError) and error.retriable):
                    raise
                reason = str(error) if known else f"{type(error).__name__}: {error}"
                facts = {key_names.CLUSTER: name, key_names.ERROR: reason}
                log.warning("service failed", **facts, exc_info=None if known else error)
                self._failures[name] = reason
            failures = 1 if time.monotonic() - began > STEADY_SECONDS else failures + 1
            await asyncio.sleep(RESTART.seconds(failures))
            self._failures.pop(name, None)


def _cause(failure: BaseException) -> BaseException:
    """The first error of a group."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


async def run_cluster_services(
    services: Callable[[], Awaitable[Mapping[str, Callable[[], S]]]],
    running: dict[str, S],
    collector: Collector,
    *,
    title: Callable[[str], str],
    metrics: str | None,
    until_stdin_ends: bool,
    report: Callable[[str], None],
) -> None:
    """`services` returns how to make each cluster's service, once the clusters are known. `title` gets their
    names. `metrics` is host:port, or None for none."""
    fault_points.check_armed()
    stop = stop_event(until_stdin_ends=until_stdin_ends)
    loop, all_services = asyncio.get_running_loop(), ClusterServices(running)

    def not_ready() -> str:
        return "it is stopping" if stop.is_set() else all_services.not_ready()

    async def run() -> None:
        known = await services()
        report(title(", ".join(known)))
        await all_services.run(known)

    with metrics_at(metrics, on_loop(loop, page_of(collector)), not_ready=not_ready, loop=loop) as url:
        if url:
            report(f"metrics on {url}")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(run())
            await stop.wait()
            task.cancel()
