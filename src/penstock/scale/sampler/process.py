"""The sampler process: samples and evaluates groups, and sends verdicts to the service's process.

    python -m penstock.scale.sampler.process DESCRIPTOR

Evaluating ten thousand groups keeps a core busy for seconds. In a separate process of lower priority this
does not delay calls. The process ends when the other side closes its socket.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import socket
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import generate_latest

from penstock.gc_tuning import rare_collections
from penstock.kafka.client import Client
from penstock.log_lines import LogFormat, configure_logs
from penstock.model.errors import PenstockError
from penstock.model.errors.scale import ScalerSettingsInvalid
from penstock.scale.event_loop import GC_THRESHOLDS
from penstock.scale.metrics import ScalerMetrics
from penstock.scale.sampler.channel import Kind, encode_frame, read_frame
from penstock.scale.sampler.cluster import ClusterSampler
from penstock.scale.sampler.kafka_source import KafkaLagSource
from penstock.scale.sampler.loop import SamplingLoop
from penstock.scale.sampler.samples_topic import InMemoryJournal, Journal, SamplesTopic
from penstock.scale.watched_groups import WatchedGroups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.scale.sampler.source import LagSource
    from penstock.scale.settings import ScalerSettings
    from penstock.scale.watched_groups import Watch

HISTORY_SECONDS: Final = 900.0  # of the samples topic, read back at start
HEARTBEAT_SECONDS: Final = 1.0
NICENESS: Final = 10  # calls come first; a sample may be some milliseconds late
SEND_SECONDS: Final = 0.05  # verdicts of this long go into one frame
UNSENT_BYTES_MAX: Final = 4 << 20  # beyond this, only the newest verdict of each watch is kept


class VerdictSender:
    """Sends verdicts, unreachable clusters and heartbeats to the service."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._queued: dict[str, Watch] = {}
        self._unreachable: Mapping[str, str] = {}

    def send(self, kind: Kind, body: bytes = b"") -> None:
        self._writer.write(encode_frame(kind, body))

    def queue(self, watch: Watch) -> None:
        """Queues the watch's verdict."""
        if not self._queued:
            asyncio.get_running_loop().call_later(SEND_SECONDS, self._send_verdicts)
        self._queued[watch.key] = watch

    def _send_verdicts(self) -> None:
        if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            asyncio.get_running_loop().call_later(SEND_SECONDS, self._send_verdicts)
            return
        queued, self._queued = self._queued, {}
        rows = [(key, summary) for key, watch in queued.items() if (summary := watch.summary())]
        self.send(Kind.VERDICTS, json.dumps(rows).encode())

    async def send_heartbeats(self, unreachable: Mapping[str, str]) -> None:
        """Sends heartbeats until cancelled, and `unreachable` whenever it changed."""
        while True:
            if unreachable != self._unreachable:
                self._unreachable = dict(unreachable)
                self.send(Kind.UNREACHABLE, json.dumps(self._unreachable).encode())
            self.send(Kind.HEARTBEAT)
            await asyncio.sleep(HEARTBEAT_SECONDS)


def make_loop(
    sources: Mapping[str, LagSource],
    journal: Journal,
    watches: WatchedGroups,
    intervals: Mapping[str, float],
    *,
    instance: str,
    report: Callable[[Watch], None],
) -> SamplingLoop:
    """The sampling loop over these clusters."""
    samplers = {
        cluster: ClusterSampler(cluster, source, watches, instance=instance, interval=intervals[cluster])
        for cluster, source in sources.items()
    }
    return SamplingLoop(samplers, journal, watches, ScalerMetrics(watches), instance=instance, report=report)


async def _connect(
    settings: ScalerSettings, stack: AsyncExitStack
) -> tuple[dict[str, KafkaLagSource], Journal]:
    clients: dict[str, Client] = {}
    for cluster, each in settings.clusters.items():
        try:
            security = each.security()
        except OSError as failure:
            raise ScalerSettingsInvalid(
                key=f"clusters.{cluster}",
                value=str(failure.filename or ""),
                expected=f"which fails: {failure}",
            ) from failure
        clients[cluster] = await stack.enter_async_context(Client(each.bootstrap, security))
    journal: Journal = InMemoryJournal()
    if settings.samples_cluster is not None:
        topic = SamplesTopic(
            clients[settings.samples_cluster], settings.samples_topic, history_seconds=HISTORY_SECONDS
        )
        await topic.prepare()
        journal = topic
    return {cluster: KafkaLagSource(client) for cluster, client in clients.items()}, journal


async def _listen(reader: asyncio.StreamReader, loop: SamplingLoop, sender: VerdictSender) -> None:
    """Handles the service's frames until it closes the socket."""
    while (frame := await read_frame(reader)) is not None:
        if frame.kind is Kind.WATCH:
            scaled_object, metadata, called_at = json.loads(frame.body)
            watch = loop.watches.admit(scaled_object, metadata, called_at)
            loop.watch_requested(watch)
            if watch.received_at is not None:
                sender.queue(watch)
        elif frame.kind is Kind.METRICS:
            sender.send(Kind.METRICS, await asyncio.to_thread(generate_latest, loop.metrics.registry))


async def run_sampler(end: socket.socket) -> None:
    """Runs the sampler until the service closes the socket."""
    os.nice(NICENESS)
    reader, writer = await asyncio.open_connection(sock=end)
    first = await read_frame(reader)
    if first is None or first.kind is not Kind.SETTINGS:
        return
    received: tuple[ScalerSettings, str, int, LogFormat | None] = pickle.loads(first.body)  # noqa: S301  # from the parent
    settings, instance, level, log_format = received
    configure_logs(log_format or LogFormat.CONSOLE, level)
    sender = VerdictSender(writer)
    intervals = {cluster: each.interval for cluster, each in settings.clusters.items()}
    unreachable: dict[str, str] = {}
    heartbeats = asyncio.create_task(sender.send_heartbeats(unreachable))
    async with AsyncExitStack() as stack:
        stack.callback(heartbeats.cancel)
        stack.enter_context(rare_collections(*GC_THRESHOLDS))
        try:
            sources, journal = await _connect(settings, stack)
        except PenstockError as failure:
            sender.send(Kind.FAILED, pickle.dumps(failure))
            await writer.drain()
            return
        loop = make_loop(
            sources, journal, WatchedGroups(intervals), intervals, instance=instance, report=sender.queue
        )
        loop.unreachable = unreachable
        sender.send(Kind.READY)
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(loop.run()),
            asyncio.create_task(_listen(reader, loop, sender)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a bug ends the process, with its traceback in the log
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(run_sampler(socket.socket(fileno=int(sys.argv[1]))))
