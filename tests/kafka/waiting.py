"""Poll until a cluster reaches a condition."""

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
    """Poll; returns the first truthy result."""
    deadline = time.monotonic() + SECONDS_MAX
    while not (result := await condition()):
        assert time.monotonic() < deadline, f"{condition.__name__} did not come true in {SECONDS_MAX} s"
        await asyncio.sleep(SECONDS_BETWEEN)
    return result


async def wait_until_equal(ours: Callable[[], Awaitable[T]], theirs: Callable[[], Awaitable[T]]) -> T:
    """Poll until both return the same value; returns it.

    Each may use a different broker, and brokers learn of a change one after another.
    """
    deadline = time.monotonic() + SECONDS_MAX
    while (one := await ours()) != (other := await theirs()) and time.monotonic() < deadline:
        await asyncio.sleep(SECONDS_BETWEEN)
    assert one == other
    return one
