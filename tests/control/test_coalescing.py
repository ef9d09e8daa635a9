"""Many small asks become few large calls, and one bad item is nobody else's trouble."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.control.coalescing import ITEMS_MAX, Coalesced
from penstock.model.errors.control import EntityMissing

if TYPE_CHECKING:
    from collections.abc import Sequence


class Calls:
    def __init__(self) -> None:
        self.made: list[list[int]] = []
        self.gate = asyncio.Event()

    async def __call__(self, items: Sequence[int]) -> None:
        self.made.append(list(items))
        await self.gate.wait()
        if -1 in items:
            raise EntityMissing(kind="item", id=-1)


async def test_who_asks_while_a_call_is_made_goes_into_the_next_one() -> None:
    calls = Calls()
    coalesced = Coalesced[int](calls)
    asked = [asyncio.create_task(coalesced.ask(0))]
    await asyncio.sleep(0)
    asked += [asyncio.create_task(coalesced.ask(n)) for n in range(1, 10)]
    await asyncio.sleep(0)

    calls.gate.set()
    await asyncio.gather(*asked)

    assert calls.made == [[0], list(range(1, 10))]


async def test_a_call_has_a_bound() -> None:
    calls = Calls()
    calls.gate.set()
    coalesced = Coalesced[int](calls)

    await asyncio.gather(*(coalesced.ask(n) for n in range(3 * ITEMS_MAX)))

    assert max(map(len, calls.made)) <= ITEMS_MAX
    assert sorted(item for call in calls.made for item in call) == list(range(3 * ITEMS_MAX))


async def test_a_bad_item_fails_alone() -> None:
    calls = Calls()
    coalesced = Coalesced[int](calls)
    asked = [asyncio.create_task(coalesced.ask(n)) for n in (0, 1, -1, 2)]
    await asyncio.sleep(0)
    calls.gate.set()

    results = await asyncio.gather(*asked, return_exceptions=True)

    assert [type(result) for result in results] == [type(None), type(None), EntityMissing, type(None)]


async def test_the_end_of_who_makes_the_call_ends_nobody_else() -> None:
    calls = Calls()
    coalesced = Coalesced[int](calls)
    first = asyncio.create_task(coalesced.ask(1))
    await asyncio.sleep(0)
    second = asyncio.create_task(coalesced.ask(2))
    await asyncio.sleep(0)

    first.cancel()
    calls.gate.set()
    await second

    with pytest.raises(asyncio.CancelledError):
        await first
    assert 2 in calls.made[-1]
