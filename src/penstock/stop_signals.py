"""Turns SIGTERM, SIGINT and the end of standard input into a request to stop."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def stop_event(*signals: signal.Signals, until_stdin_ends: bool = False) -> asyncio.Event:
    """An event of the running loop that a signal sets, by default SIGTERM and SIGINT.

    With `until_stdin_ends`, so does the end of the process that holds the other end of standard input.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in signals or SIGNALS:
        loop.add_signal_handler(number, stop.set)
    if until_stdin_ends:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    return stop


@contextmanager
def stop_flag() -> Iterator[threading.Event]:
    """A flag that the first SIGTERM or SIGINT sets; the second interrupts the program."""
    stop = threading.Event()

    def request(number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, request) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
