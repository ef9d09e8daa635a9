"""Waiting for a condition that a cluster reaches in its own time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

SECONDS_MAX = 60.0
SECONDS_BETWEEN = 0.05


async def eventually(condition: Callable[[], Awaitable[T | None]]) -> T:
    """The first result that is not falsy."""
    deadline = time.monotonic() + SECONDS_MAX
    while not (result := await condition()):
        assert time.monotonic() < deadline, f"{condition.__name__} did not come true in {SECONDS_MAX} s"
        await asyncio.sleep(SECONDS_BETWEEN)
    return result


async def alike(ours: Callable[[], Awaitable[T]], theirs: Callable[[], Awaitable[T]]) -> T:
    """What both say, once they say the same: each may ask another broker, and brokers learn of a
    change one after the other."""
    deadline = time.monotonic() + SECONDS_MAX
    while (one := await ours()) != (other := await theirs()) and time.monotonic() < deadline:
        await asyncio.sleep(SECONDS_BETWEEN)
    assert one == other
    return one
