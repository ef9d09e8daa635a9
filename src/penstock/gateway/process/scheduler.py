"""Runs the ready queue on the event loop: one slice of one tenant after each pass, while any wait."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from penstock.gateway.limits.ready_queue import ReadyQueue

if TYPE_CHECKING:
    from penstock.gateway.limits.metering import Usage
    from penstock.gateway.process.session import Session


class Scheduler:
    """One for each event loop."""

    def __init__(self) -> None:
        self.queue: ReadyQueue[Session] = ReadyQueue()
        self._armed = False

    def charge(self, usage: Usage) -> None:
        """A tenant has used half a slice: charge its quota, and begin the next with the next pass."""
        usage.charge_gateway_time(time.monotonic())
        self.queue.charge(usage)
        self._arm()

    def add(self, session: Session) -> None:
        """Continue with this session when it is due."""
        self.queue.add(session.connection.usage, session)
        self._arm()

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._end_pass)

    def _end_pass(self) -> None:
        """Everything that was ready to be read when this was armed has been read."""
        self._armed = False
        usage = self.queue.end_pass()
        while usage is not None and (session := self.queue.take(usage)) is not None:
            session.next_slice()
        if self.queue:
            self._arm()
