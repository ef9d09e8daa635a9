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
