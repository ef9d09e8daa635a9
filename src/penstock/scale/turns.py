"""Work in small steps, so that others of the same event loop have their turn in between.

Whoever loops over thousands of groups calls `taken` after each, and is interrupted when its step
has lasted long enough: answers are read, beats go out. The same holds for Python's collector of
cyclic garbage: with ten thousand windows, one full collection stops everybody for a tenth of a
second, so a scaler process does without them while it runs, but for one every few hours.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

STEP_SECONDS_MAX: Final = 0.005
FULL_COLLECTION_SECONDS: Final = 6 * 3600.0
# Young garbage goes as ever; the third number is how many of those it takes to a full collection.
COLLECTOR: Final = (700, 5, 1_000_000)


class Turns:
    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun = time.perf_counter()

    async def taken(self) -> None:
        """Lets others have their turn if ours has been long enough."""
        if time.perf_counter() - self._begun > STEP_SECONDS_MAX:
            await asyncio.sleep(0)
            self._begun = time.perf_counter()
