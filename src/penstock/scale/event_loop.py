"""Keep the event loop responsive: yield in long loops, and make full garbage collections rare.

A loop over thousands of groups calls `yield_if_over` after each, so that other tasks run after a
millisecond. With ten thousand windows, one full garbage collection stops the process for a tenth of
a second, so a scaler process runs one only every few hours.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

STEP_SECONDS_MAX: Final = 0.001
FULL_COLLECTION_SECONDS: Final = 6 * 3600.0
# Collections of young objects as usual; the third number makes full ones rare.
GC_THRESHOLDS: Final = (700, 5, 1_000_000)


class TimeSlice:
    """How long a loop has run since it last yielded."""

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started = time.perf_counter()

    async def yield_if_over(self) -> None:
        """Yields to the event loop if the slice is used up."""
        if time.perf_counter() - self._started > STEP_SECONDS_MAX:
            await asyncio.sleep(0)
            self._started = time.perf_counter()
