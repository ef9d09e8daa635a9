"""Python's collector of cyclic garbage, kept out of the way of a process that has one job.

Records, events, rows and windows make no cycles. By default Python looks for some among them for
every few hundred that come, and through everything alive for every few thousand.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

COLLECT_EVERY: Final = 20_000  # objects made since the last search for garbage among them


@contextmanager
def rare_collections(young: int = COLLECT_EVERY, *older: int) -> Iterator[None]:
    """While the block lasts. The numbers are those of `gc.set_threshold`: one left out stays as it is."""
    before = gc.get_threshold()
    gc.freeze()  # what imports made is no garbage either
    gc.set_threshold(young, *older)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
