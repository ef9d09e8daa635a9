"""The local platform: what a request to stop does to work under way."""

from __future__ import annotations

import asyncio

import pytest

from penstock.platform.local_platform import unless_stopped


async def test_work_returns_its_result_unless_it_is_stopped() -> None:
    stop, cleaned = asyncio.Event(), []

    async def quick() -> int:
        return 7

    async def slow() -> int:
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned.append(True)
        return 8

    assert await unless_stopped(stop, quick()) == 7
    asyncio.get_running_loop().call_later(0.01, stop.set)
    assert await unless_stopped(stop, slow()) is None
    assert cleaned == [True]


async def test_work_that_fails_fails() -> None:
    async def fails() -> None:
        raise ValueError("a fault")

    with pytest.raises(ValueError, match="a fault"):
        await unless_stopped(asyncio.Event(), fails())
