"""Keeps a cancellation that arrives together with an error.

If a task is cancelled while its task group fails, Python before 3.13 raises the group's errors and drops the
cancellation. A loop that handles these errors and continues would then never end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


async def run_separately(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which runs as a separate task and ends before this does.

    If the caller is cancelled, this raises CancelledError, whatever `work` raises when it is cancelled."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    return task.result()
