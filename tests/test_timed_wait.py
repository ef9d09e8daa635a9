"""A wait for an event ends with the event or with its time, whichever comes first."""

from __future__ import annotations

import asyncio

import pytest

from penstock.timed_wait import wait_at_most


async def test_the_wait_ends_with_the_event() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)

    assert await wait_at_most(event, 60)


async def test_the_wait_ends_with_its_time() -> None:
    assert not await wait_at_most(asyncio.Event(), 0.001)


async def test_no_time_is_enough_for_an_event_that_is_set() -> None:
    event = asyncio.Event()
    event.set()

    assert await wait_at_most(event, 0)


async def test_a_cancelled_wait_is_cancelled() -> None:
    waiting = asyncio.create_task(wait_at_most(asyncio.Event(), 60))
    await asyncio.sleep(0)

    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
