"""The sampler's process, seen from the service's: started, listened to, started again, ended.

When it dies that is logged, counted and shown in the health service at once; calls are answered
from what it last judged until that is too old, and then with an error (`Board.answer`). It is
started again after a pause that doubles while it keeps dying. One that says nothing for a minute
is taken for dead and killed. It never outlives the block it was started in.
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

from penstock.model.errors.scale import SamplerGone
from penstock.scale import sampling
from penstock.scale.link import Kind, framed, next_frame
from penstock.scale.turns import Turns
from penstock.scale.values import Standing

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Awaitable, Callable

    from penstock.model.errors import PenstockError
    from penstock.scale.board import Board
    from penstock.scale.link import Frame
    from penstock.scale.settings import ScalerSettings
    from penstock.scale.watches import Watch

    Shown = Callable[[bool], Awaitable[None]]

_log = logging.getLogger("penstock.scale")

PAUSE_SECONDS: Final = 0.5  # before it is started again, the first time
PAUSE_SECONDS_MAX: Final = 30.0
SILENT_SECONDS_MAX: Final = 60.0
END_SECONDS: Final = 5.0  # that it is given to end by itself
PAGE_SECONDS: Final = 20.0
EXPIRY_SECONDS: Final = 60.0


class SamplerProcess:
    def __init__(self, settings: ScalerSettings, *, instance: str) -> None:
        self.pid: int | None = None
        self._settings = settings
        self._instance = instance
        self._lives = 0
        self._writer: asyncio.StreamWriter | None = None  # while it lives
        self._pages: list[asyncio.Future[bytes]] = []

    def wish(self, watch: Watch) -> None:
        """Hands on that somebody asks for this watch. Without a sampler: when there is one again."""
        if self._writer is not None:
            body = json.dumps((watch.scaled_object, watch.metadata, watch.called_at)).encode()
            self._writer.write(framed(Kind.WISH, body))

    async def page(self) -> bytes:
        """Its metrics; nothing where there is no sampler."""
        if self._writer is None:
            return b""
        wanted: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pages.append(wanted)
        self._writer.write(framed(Kind.PAGE))
        try:
            async with asyncio.timeout(PAGE_SECONDS):
                return await wanted
        except TimeoutError:
            return b""

    @asynccontextmanager
    async def supervised(self, board: Board, shown: Shown) -> AsyncIterator[None]:
        """Running when the block begins; what keeps it from starting is raised.

        So is a bug in here, at any time: without its keeper the service would go on answering from
        what it knows, until that is too old. The block is cancelled then.
        """
        began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.TaskGroup() as group:
                keeping = group.create_task(self._keep(board, shown, began))
                expiring = group.create_task(_expire(board))
                await began
                yield
                keeping.cancel()
                expiring.cancel()
        except BaseExceptionGroup as failed:  # of one: the block's own failure, or a task's
            raise failed.exceptions[0] from None

    async def _keep(self, board: Board, shown: Shown, began: asyncio.Future[None]) -> None:
        pause = PAUSE_SECONDS
        while True:
            born = time.monotonic()
            async with self._born() as (process, reader):
                failure = await self._listen(process, reader, board, shown, began)
            if not began.done():
                began.set_exception(failure)
                return
            board.down = failure.message
            board.metrics.sampler_up.set(0)
            board.metrics.sampler_ends.inc()
            await shown(False)
            if time.monotonic() - born > PAUSE_SECONDS_MAX:
                pause = PAUSE_SECONDS
            _log.error("%s; started again in %.1f s", failure, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    @asynccontextmanager
    async def _born(self) -> AsyncIterator[tuple[Process, asyncio.StreamReader]]:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", sampling.__name__, str(theirs.fileno()),
                pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the service, which ends it in order
            )  # fmt: skip
        try:
            self._lives += 1
            self.pid = process.pid
            name = f"{self._instance}-{self._lives}"
            wanted = (self._settings, name, logging.getLogger().getEffectiveLevel())
            writer.write(framed(Kind.SETTINGS, pickle.dumps(wanted)))
            self._writer = writer
            yield process, reader
        finally:
            self._writer, self.pid = None, None
            for page in self._pages:
                if not page.done():
                    page.set_result(b"")
            self._pages.clear()
            writer.close()
            await _ended(process)

    async def _listen(
        self,
        process: Process,
        reader: asyncio.StreamReader,
        board: Board,
        shown: Shown,
        began: asyncio.Future[None],
    ) -> PenstockError:
        """Until it is gone. Returns why."""
        while True:
            try:
                async with asyncio.timeout(SILENT_SECONDS_MAX):
                    frame = await next_frame(reader)
            except TimeoutError:
                return SamplerGone(reason=f"it said nothing for {SILENT_SECONDS_MAX:.0f} s")
            if frame is None:
                return SamplerGone(reason=f"it ended with status {await process.wait()}")
            if frame.kind is Kind.FAILED:
                failure: PenstockError = pickle.loads(frame.body)  # noqa: S301  # from our own child
                return failure
            if frame.kind is Kind.READY:
                board.down = None
                board.metrics.sampler_up.set(1)
                await self._wish_all(board)
                await shown(True)
                if not began.done():
                    began.set_result(None)
            else:
                self._take(frame, board)

    async def _wish_all(self, board: Board) -> None:
        turns = Turns()
        for watch in board.watches:
            self.wish(watch)
            await turns.taken()

    def _take(self, frame: Frame, board: Board) -> None:
        if frame.kind is Kind.TOLD:
            for key, standing in json.loads(frame.body):
                watch = board.watches.get(key)
                if watch is not None:  # else another instance's callers ask for it
                    watch.told(Standing(*standing))
                    board.notify(watch)
        elif frame.kind is Kind.UNSEEN:
            board.unseen = json.loads(frame.body)
        elif frame.kind is Kind.PAGE and self._pages:
            page = self._pages.pop(0)
            if not page.done():
                page.set_result(frame.body)


async def _expire(board: Board) -> None:
    while True:
        await asyncio.sleep(EXPIRY_SECONDS)
        board.watches.expire(board.clock())


async def _ended(process: Process) -> None:
    """Its socket is closed, so it ends; if not, it is ended. Cancelled or not, nothing stays."""
    try:
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
