"""Combines many concurrent calls into few: Kafka creates a hundred ACLs as fast as one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

ITEMS_MAX: Final = 100  # in one call; salting a user's password takes a millisecond

T = TypeVar("T")


class BatchedCall(Generic[T]):
    """`submit(item)` returns when a call that contained the item has succeeded.

    The first submitter makes the call; items submitted meanwhile go into the next one. A failed call is
    repeated item by item, so that one bad item fails alone.
    """

    def __init__(self, call: Callable[[Sequence[T]], Awaitable[None]]) -> None:
        self._call = call
        self._waiting: list[tuple[T, asyncio.Future[None]]] = []
        self._busy = asyncio.Lock()

    async def submit(self, item: T) -> None:
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
            self._waiting[:0] = batch  # the next waiting submitter makes the call
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
