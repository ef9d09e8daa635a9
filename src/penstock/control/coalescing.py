"""Many small asks become few large calls: Kafka takes a hundred ACLs as fast as one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

ITEMS_MAX: Final = 100  # of one call: a user's password costs a millisecond to salt

T = TypeVar("T")


class Coalesced(Generic[T]):
    """`ask(item)` returns when a call that held the item has succeeded.

    The first to ask makes the call; who asks meanwhile goes into the next one. A call that fails
    is made again item by item, so that one bad item is nobody else's trouble.
    """

    def __init__(self, call: Callable[[Sequence[T]], Awaitable[None]]) -> None:
        self._call = call
        self._waiting: list[tuple[T, asyncio.Future[None]]] = []
        self._busy = asyncio.Lock()

    async def ask(self, item: T) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        async with self._busy:
            while not done.done():
                await self._flush()
        await done

    async def _flush(self) -> None:
        batch = [(item, done) for item, done in self._waiting[:ITEMS_MAX] if not done.done()]
        del self._waiting[:ITEMS_MAX]
        try:
            await self._call([item for item, _ in batch])
        except PenstockError as error:
            if len(batch) == 1:
                _fail(batch[0][1], error)
            else:
                for item, done in batch:
                    await self._one(item, done)
        except BaseException:
            self._waiting[:0] = batch  # whoever waits next makes the call
            raise
        else:
            for _, done in batch:
                if not done.done():
                    done.set_result(None)

    async def _one(self, item: T, done: asyncio.Future[None]) -> None:
        try:
            await self._call([item])
        except PenstockError as error:
            _fail(done, error)
        else:
            if not done.done():
                done.set_result(None)


def _fail(done: asyncio.Future[None], error: PenstockError) -> None:
    if not done.done():
        done.set_exception(error)
