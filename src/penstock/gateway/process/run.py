"""Runs a gateway from its file: assembles the parts, supervises workers, serves metrics, drains."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.gateway.connection.routes import routes
from penstock.gateway.limits.broker_pressure import AutoTuner
from penstock.gateway.limits.calibration import Calibration
from penstock.gateway.limits.pressure_reports import PressureWatch
from penstock.gateway.limits.quota_shares import QuotaShareFollower, UsageReporter
from penstock.gateway.limits.shared_counters import SharedCounters
from penstock.gateway.limits.worker_quota import WorkerQuotas
from penstock.gateway.process.acceptor import fitted, raise_descriptor_limit
from penstock.gateway.process.ack_writer import AckWriter
from penstock.gateway.process.broker_source import BrokerSource
from penstock.gateway.process.config_source import FileSource
from penstock.gateway.process.discovery import with_brokers
from penstock.gateway.process.intent_writer import IntentWriter
from penstock.gateway.process.management import Management
from penstock.gateway.process.metrics import GatewayMetrics
from penstock.gateway.process.registration import Registration
from penstock.gateway.process.run_file import announce, withdraw
from penstock.gateway.process.server import Gateway
from penstock.gateway.process.tenant_source import gateway_client, state_source
from penstock.gateway.process.worker_supervisor import Supervisor, WorkerSlot, as_worker, reserve_ports
from penstock.gateway.settings import TenantsFrom, read_gateway_file
from penstock.model.errors import Exit
from penstock.model.errors.gateway import GatewayNameTaken
from penstock.model.errors.settings import ExtraMissing
from penstock.model.plural import counted
from penstock.stop_signals import stop_event

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from pathlib import Path

    from penstock.gateway.config import GatewayConfig
    from penstock.gateway.process.tenant_source import StateSource
    from penstock.gateway.process.worker_supervisor import Worker
    from penstock.gateway.settings import GatewaySettings
    from penstock.kafka.client import Client
    from penstock.model.schema import Event

GARBAGE_CHECKED_EVERY: Final = 20_000  # allocations; ended connections alone leave cycles, of some 50 objects
DRAIN_SECONDS_MORE: Final = 15.0  # beyond what a gateway gives its clients


def run_gateway(
    path: Path, *, workers: int | None = None, until_stdin_ends: bool = False, report: Callable[[str], None]
) -> int:
    """Serve until SIGTERM or SIGINT, then drain; the exit code. `workers` overrides the file.

    With several workers this returns in each of them and in their supervisor.
    """
    try:
        import uvloop
    except ImportError as missing:
        raise ExtraMissing(what="the gateway", module="uvloop", extra="platform") from missing
    settings, config = read_gateway_file(path)
    if settings.kafka is not None:
        config = asyncio.run(with_brokers(path, settings, config, report))
    if workers is not None:
        settings = replace(settings, workers=workers)
    descriptors = raise_descriptor_limit() * settings.workers
    settings = replace(settings, bounds=fitted(settings.bounds, descriptors))
    gc.set_threshold(GARBAGE_CHECKED_EVERY)
    counters = SharedCounters(settings.workers)
    process = _Process(settings, config, path, counters, report)
    if settings.workers > 1:
        reserved, settings, config = reserve_ports(settings, config)
        process = replace(process, settings=settings, config=config)
        outcome = process.supervisor(until_stdin_ends=until_stdin_ends).run()
        for port in reserved:
            port.close()
        if not isinstance(outcome, WorkerSlot):
            return outcome
        counters.become(outcome.index)
        until_stdin_ends = False
        process = replace(process, settings=as_worker(settings, outcome.index), slot=outcome)
    try:
        uvloop.run(process.serve(until_stdin_ends=until_stdin_ends))
    except GatewayNameTaken as taken:
        if process.slot is not None:  # the other workers serve under this name, too
            process.slot.report_end(taken.exit_code)
        raise
    return Exit.FINE


@dataclass(frozen=True, slots=True)
class _Process:
    """One process of a gateway: the only one, the supervisor of workers, or a worker with its slot."""

    settings: GatewaySettings
    config: GatewayConfig
    path: Path
    counters: SharedCounters
    report: Callable[[str], None]
    slot: WorkerSlot | None = None

    def supervisor(self, *, until_stdin_ends: bool) -> Supervisor:
        """Workers share the plans and routes that are prepared here, since preparing them takes time."""
        routes(restricted=False)
        gc.collect()
        gc.freeze()

        def serving(workers: Sequence[Worker]) -> None:
            records = [{"worker": one.index, "pid": one.pid, **(one.status or {})} for one in workers]
            bootstrap = records[0]["bootstrap"]
            announce(self.path, self.settings.gateway, bootstrap, workers=records)
            count = counted(len(records), "worker")
            self.report(f"gateway {self.settings.gateway} serves with {count} at {bootstrap}")

        return Supervisor(
            self.settings.workers,
            reclaim=lambda index: self.counters.columns[index].reclaim(),
            serving=serving,
            ended=lambda: withdraw(self.path),
            drain_seconds=self.settings.bounds.drain_seconds + DRAIN_SECONDS_MORE,
            until_stdin_ends=until_stdin_ends,
        )

    async def serve(self, *, until_stdin_ends: bool) -> None:
        stop = stop_event(until_stdin_ends=until_stdin_ends)
        if self.slot is not None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor receives it, and drains us
            loop.add_reader(self.slot.channel.fileno(), stop.set)  # readable only when the supervisor ends
        async with contextlib.AsyncExitStack() as stack:
            management = Management(self.settings, stop)
            if management.bind(stack) and management.url:
                self.report(f"metrics on {management.url}")
            starting = asyncio.create_task(self._start(stack, stop))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await self._serve_until(stop, await starting, management)
            else:  # no broker has been reached yet
                starting.cancel()

    async def _start(self, stack: contextlib.AsyncExitStack, stop: asyncio.Event) -> GatewayMetrics:
        """Start the gateway with the quotas of its file, or with its share of the cluster's."""
        settings, counters = self.settings, self.counters
        source: FileSource | StateSource
        following: BrokerSource | None = None
        shares: WorkerQuotas | QuotaShareFollower
        client = await stack.enter_async_context(gateway_client(settings, self.config))
        registration: Registration | None = None
        writers: list[AckWriter | IntentWriter | UsageReporter] = [
            ack_writer := AckWriter(),
            intent_writer := IntentWriter(),
        ]
        if settings.tenants_from is TenantsFrom.FILE:
            source, config = FileSource(self.path), self.config
            shares = WorkerQuotas(counters)
        else:
            registration = await self._register(client, stack)
            source = state_source(settings, self.config)
            following = BrokerSource(self.path, settings, self.config, source)
            config = await source.first()
            writers.append(UsageReporter())
            shares = QuotaShareFollower(client, settings.gateway, settings.gateways)
        tuner = AutoTuner(shares.quotas, gateways=settings.gateways)
        calibration = Calibration(config.brokers, counters)

        def publish(events: Sequence[Event]) -> None:
            for writer in writers:
                writer(events)

        gateway = Gateway(
            settings,
            config,
            source=source,
            publish=publish,
            quotas=shares.quotas,
            tuner=tuner,
            calibration=calibration,
            counters=counters,
        )
        ack_writer.acks = gateway.services.acks
        intent_writer.intents = gateway.services.intents
        await gateway.start()
        watch = PressureWatch(gateway)
        reports = client if settings.tenants_from is TenantsFrom.STATE else None
        tasks = [shares.run(gateway), watch.run(reports), tuner.run(gateway, watch), calibration.run()]
        if following is not None:
            tasks.append(following.run(client))
        if registration is not None:
            registration.serve(gateway)
            tasks.append(registration.run())
        for writer in writers:
            stack.push_async_callback(writer.flush, client)
            tasks.append(writer.run(client))
        _run_beside(tasks, stack, stop)
        return GatewayMetrics(gateway, tuner, calibration, ack_writer)

    async def _register(self, client: Client, stack: contextlib.AsyncExitStack) -> Registration | None:
        """Claim the name of a gateway that runs by itself; the first worker does it for all."""
        settings, index = self.settings, 0 if self.slot is None else self.slot.index
        if settings.kafka is None or index != 0:
            return None
        name = settings.gateway if self.slot is None else settings.gateway.removesuffix(f".{index}")
        registration = Registration(client, self.config.cluster, name, self.path)
        stack.push_async_callback(registration.leave)
        await registration.claim()
        return registration

    async def _serve_until(
        self, stop: asyncio.Event, metrics: GatewayMetrics, management: Management
    ) -> None:
        gateway = metrics.gateway
        gc.collect()
        gc.freeze()  # plans and routes stay, so the collector need not look through them again
        async with contextlib.AsyncExitStack() as stack:
            if self.slot is None:
                stack.callback(withdraw, self.path)
            management.metrics = metrics
            self._announce(gateway, management.url)
            if self.settings.metrics_port is not None and not management.url:
                _run_beside([self._announce_metrics(gateway, management, stack)], stack)
            if self.slot is None:
                tenants = counted(len(gateway.config.tenants), "tenant")
                self.report(f"gateway {self.settings.gateway} serves {tenants} at {gateway.bootstrap}")
            await stop.wait()
            self.report("draining")
            await gateway.drain()

    def _announce(self, gateway: Gateway, metrics: str) -> None:
        if self.slot is not None:
            self.slot.report(bootstrap=gateway.bootstrap, metrics=metrics)
        else:
            announce(self.path, self.settings.gateway, gateway.bootstrap, metrics)

    async def _announce_metrics(
        self, gateway: Gateway, management: Management, stack: contextlib.AsyncExitStack
    ) -> None:
        """Once the predecessor has given up the port."""
        await management.wait_until_bound(stack)
        self.report(f"metrics on {management.url}")
        self._announce(gateway, management.url)


def _run_beside(
    tasks: Iterable[Coroutine[Any, Any, None]],
    stack: contextlib.AsyncExitStack,
    stop: asyncio.Event | None = None,
) -> None:
    """Run tasks until the stack closes; the first that fails sets `stop`."""
    for each in tasks:
        task = asyncio.create_task(each)
        if stop is not None:
            task.add_done_callback(lambda _: stop.set())  # none of them returns without an error
        stack.push_async_callback(_end, task)


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel the task, or raise what it ended with."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
