"""Make Python's cyclic garbage collector run less often in processes that create few cycles.

Records, events, rows and windows form no reference cycles. By default Python still searches for cycles
after every few hundred new objects, and through all live objects after every few thousand.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

COLLECT_EVERY: Final = 20_000  # new objects between two collections


@contextmanager
def rare_collections(young: int = COLLECT_EVERY, *older: int) -> Iterator[None]:
    """Within the block, use these thresholds of `gc.set_threshold`; omitted ones keep their value."""
    before = gc.get_threshold()
    gc.freeze()  # objects created by imports are not garbage either
    gc.set_threshold(young, *older)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
