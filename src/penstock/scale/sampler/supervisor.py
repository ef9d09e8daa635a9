"""Start the sampler process from the service, receive its verdicts, and restart it when it dies.

Its death is logged, counted and shown by the health service at once. Calls are answered from its last
verdicts until these are too old, and then with an error (`VerdictCache.current_verdict`). It restarts
after a growing pause. A process that sends nothing for a minute is killed. None outlives the block
that started it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import socket
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from penstock.log_lines import active_format
from penstock.model.backoff import Backoff
from penstock.model.errors.scale import SamplerExited
from penstock.scale.decision.values import VerdictSummary
from penstock.scale.event_loop import TimeSlice
from penstock.scale.sampler import process
from penstock.scale.sampler.channel import Kind, encode_frame, read_frame

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Awaitable, Callable

    from penstock.model.errors import PenstockError
    from penstock.scale.sampler.channel import Frame
    from penstock.scale.settings import ScalerSettings
    from penstock.scale.verdict_cache import VerdictCache
    from penstock.scale.watched_groups import Watch

    SetHealth = Callable[[bool], Awaitable[None]]

_log = logging.getLogger("penstock.scale")

RESTART: Final = Backoff(0.5, 30.0)  # pauses before a restart
STEADY_SECONDS: Final = 30.0  # after a run this long the pauses start over
SILENT_SECONDS_MAX: Final = 60.0
END_SECONDS: Final = 5.0  # to exit after its socket is closed
METRICS_SECONDS: Final = 20.0
EXPIRY_SECONDS: Final = 60.0


class SamplerProcess:
    """The sampler process and the connection to it."""

    def __init__(self, settings: ScalerSettings, *, instance: str) -> None:
        self.pid: int | None = None
        self._settings = settings
        self._instance = instance
        self._starts = 0
        self._writer: asyncio.StreamWriter | None = None  # while it runs
        self._metrics_requests: list[asyncio.Future[bytes]] = []

    def request_watch(self, watch: Watch) -> None:
        """Sends the watch to the sampler; without one, the next gets all watches when it starts."""
        if self._writer is not None:
            body = json.dumps((watch.scaled_object, watch.metadata, watch.called_at)).encode()
            self._writer.write(encode_frame(Kind.WATCH, body))

    async def metrics_text(self) -> bytes:
        """The sampler's metrics; empty without a sampler."""
        if self._writer is None:
            return b""
        request: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._metrics_requests.append(request)
        self._writer.write(encode_frame(Kind.METRICS))
        try:
            async with asyncio.timeout(METRICS_SECONDS):
                return await request
        except TimeoutError:
            return b""

    @asynccontextmanager
    async def supervised(self, verdicts: VerdictCache, set_health: SetHealth) -> AsyncIterator[None]:
        """Runs the sampler while the block runs; raises if it cannot start.

        A bug in the supervision itself cancels the block and is raised. Otherwise the service would
        keep answering from old verdicts.
        """
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.TaskGroup() as group:
                supervising = group.create_task(self._supervise(verdicts, set_health, started))
                expiring = group.create_task(_expire(verdicts))
                await started
                yield
                supervising.cancel()
                expiring.cancel()
        except BaseExceptionGroup as failed:  # has one exception: the block's or a task's
            raise failed.exceptions[0] from None

    async def _supervise(
        self, verdicts: VerdictCache, set_health: SetHealth, started: asyncio.Future[None]
    ) -> None:
        failures = 0
        while True:
            started_at = time.monotonic()
            async with self._spawn() as (sampler, reader):
                failure = await self._listen(sampler, reader, verdicts, set_health, started)
            if not started.done():
                started.set_exception(failure)
                return
            verdicts.sampler_down = failure.message
            verdicts.metrics.sampler_up.set(0)
            verdicts.metrics.sampler_exits.inc()
            await set_health(False)
            failures = 1 if time.monotonic() - started_at > STEADY_SECONDS else failures + 1
            pause = RESTART.seconds(failures)
            _log.error("%s; started again in %.1f s", failure, pause)
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def _spawn(self) -> AsyncIterator[tuple[Process, asyncio.StreamReader]]:
        parent, child = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=parent)
        with child:
            sampler = await asyncio.create_subprocess_exec(
                sys.executable, "-m", process.__name__, str(child.fileno()),
                pass_fds=(child.fileno(),), stdin=asyncio.subprocess.DEVNULL,
                # So that Ctrl-C reaches only the service, which then stops it. Not a new session: Linux
                # shares the processor among sessions first, where the sampler's niceness would not count.
                process_group=0,
            )  # fmt: skip
        try:
            self._starts += 1
            self.pid = sampler.pid
            name = f"{self._instance}-{self._starts}"
            first = (self._settings, name, logging.getLogger().getEffectiveLevel(), active_format())
            writer.write(encode_frame(Kind.SETTINGS, pickle.dumps(first)))
            self._writer = writer
            yield sampler, reader
        finally:
            self._writer, self.pid = None, None
            for request in self._metrics_requests:
                if not request.done():
                    request.set_result(b"")
            self._metrics_requests.clear()
            writer.close()
            await _wait_or_kill(sampler)

    async def _listen(
        self,
        sampler: Process,
        reader: asyncio.StreamReader,
        verdicts: VerdictCache,
        set_health: SetHealth,
        started: asyncio.Future[None],
    ) -> PenstockError:
        """Receives frames until the sampler exits; returns the reason."""
        while True:
            try:
                async with asyncio.timeout(SILENT_SECONDS_MAX):
                    frame = await read_frame(reader)
            except TimeoutError:
                return SamplerExited(reason=f"it sent nothing for {SILENT_SECONDS_MAX:.0f} s")
            if frame is None:
                return SamplerExited(reason=f"it ended with status {await sampler.wait()}")
            if frame.kind is Kind.FAILED:
                failure: PenstockError = pickle.loads(frame.body)  # noqa: S301  # from the child process
                return failure
            if frame.kind is Kind.READY:
                verdicts.sampler_down = None
                verdicts.metrics.sampler_up.set(1)
                await self._request_all(verdicts)
                await set_health(True)
                if not started.done():
                    started.set_result(None)
            else:
                await self._handle(frame, verdicts)

    async def _request_all(self, verdicts: VerdictCache) -> None:
        time_slice = TimeSlice()
        for watch in verdicts.watches:
            self.request_watch(watch)
            await time_slice.yield_if_over()

    async def _handle(self, frame: Frame, verdicts: VerdictCache) -> None:
        if frame.kind is Kind.VERDICTS:
            time_slice = TimeSlice()
            for key, summary in json.loads(frame.body):
                await time_slice.yield_if_over()
                watch = verdicts.watches.get(key)
                if watch is not None:  # else KEDA calls another instance for it
                    watch.apply_summary(VerdictSummary(*summary))
                    verdicts.notify(watch)
        elif frame.kind is Kind.UNREACHABLE:
            verdicts.unreachable = json.loads(frame.body)
        elif frame.kind is Kind.METRICS and self._metrics_requests:
            request = self._metrics_requests.pop(0)
            if not request.done():
                request.set_result(frame.body)


async def _expire(verdicts: VerdictCache) -> None:
    while True:
        await asyncio.sleep(EXPIRY_SECONDS)
        verdicts.watches.expire(verdicts.clock())


async def _wait_or_kill(sampler: Process) -> None:
    """Waits for a process whose socket is closed to exit; kills it if it does not."""
    try:
        async with asyncio.timeout(END_SECONDS):
            await sampler.wait()
    except TimeoutError:
        pass
    finally:
        if sampler.returncode is None:
            sampler.kill()
            await sampler.wait()
