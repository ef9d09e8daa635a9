"""Concurrent calls are combined into few, and a bad item fails alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.control.call_batching import ITEMS_MAX, BatchedCall
from penstock.model.errors.control import EntityMissing

if TYPE_CHECKING:
    from collections.abc import Sequence


class Calls:
    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()

    async def __call__(self, items: Sequence[int]) -> None:
        self.batches.append(list(items))
        await self.gate.wait()
        if -1 in items:
            raise EntityMissing(kind="item", id=-1)


async def test_items_submitted_during_a_call_go_into_the_next_one() -> None:
    calls = Calls()
    batched = BatchedCall[int](calls)
    submitted = [asyncio.create_task(batched.submit(0))]
    await asyncio.sleep(0)
    submitted += [asyncio.create_task(batched.submit(n)) for n in range(1, 10)]
    await asyncio.sleep(0)

    calls.gate.set()
    await asyncio.gather(*submitted)

    assert calls.batches == [[0], list(range(1, 10))]


async def test_the_items_of_a_call_are_bounded() -> None:
    calls = Calls()
    calls.gate.set()
    batched = BatchedCall[int](calls)

    await asyncio.gather(*(batched.submit(n) for n in range(3 * ITEMS_MAX)))

    assert max(map(len, calls.batches)) <= ITEMS_MAX
    assert sorted(item for call in calls.batches for item in call) == list(range(3 * ITEMS_MAX))


async def test_a_bad_item_fails_alone() -> None:
    calls = Calls()
    batched = BatchedCall[int](calls)
    submitted = [asyncio.create_task(batched.submit(n)) for n in (0, 1, -1, 2)]
    await asyncio.sleep(0)
    calls.gate.set()

    results = await asyncio.gather(*submitted, return_exceptions=True)

    assert [type(result) for result in results] == [type(None), type(None), EntityMissing, type(None)]


async def test_cancelling_one_submitter_cancels_no_other() -> None:
    calls = Calls()
    batched = BatchedCall[int](calls)
    first = asyncio.create_task(batched.submit(1))
    await asyncio.sleep(0)
    second = asyncio.create_task(batched.submit(2))
    await asyncio.sleep(0)

    first.cancel()
    calls.gate.set()
    await second

    with pytest.raises(asyncio.CancelledError):
        await first
    assert 2 in calls.batches[-1]
