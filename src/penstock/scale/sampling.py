"""The sampler's process: looks, journals and judges, and tells the service's process what came of it.

    python -m penstock.scale.sampling DESCRIPTOR

Judging ten thousand groups keeps a core busy for seconds, and Python runs one thing at a time. In a
process of its own that delays nobody who calls. It ends when the other side of its socket is gone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import socket
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import generate_latest

from penstock.garbage import rare_collections
from penstock.kafka.client import Client
from penstock.model.errors import PenstockError
from penstock.model.errors.scale import ScalerSettingsInvalid
from penstock.scale.journal import Alone, Journal, TopicJournal
from penstock.scale.kafka_source import KafkaLagSource
from penstock.scale.link import Kind, framed, next_frame
from penstock.scale.loop import Loop
from penstock.scale.metrics import ScalerMetrics
from penstock.scale.sampler import Sampler
from penstock.scale.turns import COLLECTOR
from penstock.scale.watches import Watches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.scale.settings import ScalerSettings
    from penstock.scale.source import LagSource
    from penstock.scale.watches import Watch

HISTORY_SECONDS: Final = 900.0  # of the samples topic that a starting instance reads back
BEAT_SECONDS: Final = 1.0
TELL_SECONDS: Final = 0.05  # verdicts of so long go into one frame
UNSENT_BYTES_MAX: Final = 4 << 20  # beyond, verdicts wait here, the newest of each watch


class Teller:
    """Sends what is judged, and nothing twice."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._judged: dict[str, Watch] = {}
        self._unseen: Mapping[str, str] = {}

    def send(self, kind: Kind, body: bytes = b"") -> None:
        self._writer.write(framed(kind, body))

    def judged(self, watch: Watch) -> None:
        if not self._judged:
            asyncio.get_running_loop().call_later(TELL_SECONDS, self._tell)
        self._judged[watch.key] = watch

    def _tell(self) -> None:
        if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            asyncio.get_running_loop().call_later(TELL_SECONDS, self._tell)
            return
        judged, self._judged = self._judged, {}
        rows = [(key, standing) for key, watch in judged.items() if (standing := watch.standing())]
        self.send(Kind.TOLD, json.dumps(rows).encode())

    async def beat(self, unseen: Mapping[str, str]) -> None:
        """Until cancelled."""
        while True:
            if unseen != self._unseen:
                self._unseen = dict(unseen)
                self.send(Kind.UNSEEN, json.dumps(self._unseen).encode())
            self.send(Kind.BEAT)
            await asyncio.sleep(BEAT_SECONDS)


def looped(
    sources: Mapping[str, LagSource],
    journal: Journal,
    watches: Watches,
    intervals: Mapping[str, float],
    *,
    instance: str,
    report: Callable[[Watch], None],
) -> Loop:
    """The heart-beat over these clusters."""
    samplers = {
        cluster: Sampler(cluster, source, watches, instance=instance, interval=intervals[cluster])
        for cluster, source in sources.items()
    }
    return Loop(samplers, journal, watches, ScalerMetrics(watches), instance=instance, report=report)


async def _connected(
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
    journal: Journal = Alone()
    if settings.samples_cluster is not None:
        topic = TopicJournal(
            clients[settings.samples_cluster], settings.samples_topic, history_seconds=HISTORY_SECONDS
        )
        await topic.prepare()
        journal = topic
    return {cluster: KafkaLagSource(client) for cluster, client in clients.items()}, journal


async def _listen(reader: asyncio.StreamReader, loop: Loop, teller: Teller) -> None:
    """What the service wants, until it is gone."""
    while (frame := await next_frame(reader)) is not None:
        if frame.kind is Kind.WISH:
            scaled_object, metadata, called_at = json.loads(frame.body)
            watch = loop.watches.admit(scaled_object, metadata, called_at)
            loop.want(watch)
            if watch.sampled_at is not None:
                teller.judged(watch)
        elif frame.kind is Kind.PAGE:
            teller.send(Kind.PAGE, await asyncio.to_thread(generate_latest, loop.metrics.registry))


async def sample(end: socket.socket) -> None:
    """One life of the process."""
    reader, writer = await asyncio.open_connection(sock=end)
    first = await next_frame(reader)
    if first is None or first.kind is not Kind.SETTINGS:
        return
    wanted: tuple[ScalerSettings, str, int] = pickle.loads(first.body)  # noqa: S301  # from our own parent
    settings, instance, level = wanted
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s", force=True)
    teller = Teller(writer)
    intervals = {cluster: each.interval for cluster, each in settings.clusters.items()}
    unseen: dict[str, str] = {}
    beating = asyncio.create_task(teller.beat(unseen))
    async with AsyncExitStack() as stack:
        stack.callback(beating.cancel)
        stack.enter_context(rare_collections(*COLLECTOR))
        try:
            sources, journal = await _connected(settings, stack)
        except PenstockError as failure:
            teller.send(Kind.FAILED, pickle.dumps(failure))
            await writer.drain()
            return
        loop = looped(
            sources, journal, Watches(intervals), intervals, instance=instance, report=teller.judged
        )
        loop.unseen = unseen
        teller.send(Kind.READY)
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(loop.run()),
            asyncio.create_task(_listen(reader, loop, teller)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a bug ends the process, with its trace in the log
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(sample(socket.socket(fileno=int(sys.argv[1]))))
