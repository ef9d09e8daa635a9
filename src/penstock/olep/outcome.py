"""Waiting for the outcome of a request, by subscription to the log it was appended to.

The caller of a request is told its final state by the events the executor emits: the request's id
stands in each of them. A waiter is registered before its request is appended, so that an answer
which is quicker than the acknowledgement is not missed. A caller that asks again with the same id
is answered: the executor points to where the request stands, and the outcome is read from there.

Recent outcomes are kept in memory, so such an answer rarely costs more than a look-up; an older one
is read from the log beside the subscription, which does not wait for it.

A deadline that passes says that the outcome is unknown, never that the request failed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from penstock.model.errors import PenstockError
from penstock.model.errors.olep import EventUnreadable, OutcomeUnknown, WaitersFull
from penstock.olep.event import REJECTED, REPEATED, Record, needle_of
from penstock.olep.log import READER, Appender, ends, log_error, place_of, read
from penstock.olep.position import Position

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from confluent_kafka import Message

    from penstock.olep.event import Event
    from penstock.olep.log import Log

WAITERS_MAX: Final = 50_000
CHUNK: Final = 1000  # events taken from the client at a time
IDLE_SECONDS: Final = 0.1
RECENT_MAX: Final = 20_000  # outcomes kept for callers who ask again


class Outcomes:
    """A subscription to the tail of a log for events of the types that end a request.

    Used as a context manager: its thread starts on entry, and is joined on exit.
    """

    def __init__(self, log: Log, final: Collection[str], *, waiters_max: int = WAITERS_MAX) -> None:
        self.log = log
        self._final = frozenset(final) | {REJECTED}
        self._wanted = frozenset(kind.encode() for kind in (*self._final, REPEATED))
        self._waiters_max = waiters_max
        self._waiters: dict[str, list[Future[Event]]] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="olep-outcomes", daemon=True)
        self._failure: Exception | None = None
        self._append_lock = threading.Lock()
        self._appender = Appender(log)
        self._recent: dict[str, Event] = {}
        self._recent_from: dict[
            int, int
        ] = {}  # partition → outcomes of requests from here on are in `_recent`
        self._searches = ThreadPoolExecutor(1, "olep-outcomes-search")

    def __enter__(self) -> Outcomes:
        # From the tail of now: whoever registers from here on will see its answer.
        self._consumer = Consumer({"group.id": "penstock-olep-outcomes", **self.log.config, **READER})
        tail = ends(self.log).of_topic(self.log.topic, self.log.topic_id)
        self._recent_from = dict(tail)
        self._consumer.assign([TopicPartition(self.log.topic, p, offset) for p, offset in tail.items()])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._searches.shutdown(cancel_futures=True)
        self._consumer.close()
        self._appender.flush()
        with self._lock:
            waiting = [future for futures in self._waiters.values() for future in futures]
            self._waiters = {}
        for future in waiting:
            future.cancel()

    def begin(self, key: str, request: Event) -> Future[Event]:
        """Registers and appends. The future holds the final event of the request."""
        future = self._register(request.id)
        try:
            with self._append_lock:
                self._appender.begin(key, request)
                self._appender.poll()
        except BaseException:
            self._withdraw(request.id, future)
            raise
        return future

    def ask(self, key: str, request: Event, *, timeout: float) -> Event:
        """Appends the request and waits for its final event. Raises OutcomeUnknown."""
        future = self.begin(key, request)
        try:
            return future.result(timeout)
        except FutureTimeout:
            raise OutcomeUnknown(id=request.id, seconds=timeout) from None
        finally:
            self._withdraw(request.id, future)

    async def ask_async(self, key: str, request: Event, *, timeout: float) -> Event:
        """As `ask`, for a caller in an event loop. Cancelling it stops the waiting, not the request."""
        future = self.begin(key, request)
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise OutcomeUnknown(id=request.id, seconds=timeout) from None
        finally:
            self._withdraw(request.id, future)

    @property
    def failure(self) -> Exception | None:
        """Why the subscription ended by itself, if it did."""
        return self._failure

    def waiting(self) -> int:
        return len(self._waiters)

    def _register(self, request_id: str) -> Future[Event]:
        if self._failure is not None:
            raise self._failure
        future: Future[Event] = Future()
        with self._lock:
            if len(self._waiters) >= self._waiters_max:
                raise WaitersFull(count=len(self._waiters))
            self._waiters.setdefault(request_id, []).append(future)
        return future

    def _withdraw(self, request_id: str, future: Future[Event]) -> None:
        with self._lock:
            futures = self._waiters.get(request_id)
            if futures is not None and future in futures:
                futures.remove(future)
                if not futures:
                    del self._waiters[request_id]

    def _follow(self) -> None:
        try:
            while not self._stopping.is_set():
                messages = self._consumer.consume(CHUNK, 0) or self._consumer.consume(1, IDLE_SECONDS)
                with self._append_lock:
                    self._appender.poll()
                for event in self._relevant(messages):
                    if event.type in self._final:
                        self._keep(event)
                    if event.request in self._waiters:
                        self._answer(event)
        except Exception as error:  # noqa: BLE001 - handed to every caller, now and later
            self._failure = error
            with self._lock:
                waiting, self._waiters = self._waiters, {}
            for futures in waiting.values():
                for future in futures:
                    _settle(future, error)

    def _relevant(self, messages: Sequence[Message]) -> list[Event]:
        events = []
        for message in messages:
            if (error := message.error()) is not None:
                partition: Any = message.partition()
                if error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                    raise log_error(self.log.topic, partition, error)
                continue
            value = message.value()
            kind = None if value is None else self.log.codec.type_of(value)
            if value is None or (kind is not None and kind not in self._wanted):
                continue
            at, offset = place_of(message)
            try:
                event = self.log.decode(at, Record(offset, message.key(), value))
            except EventUnreadable:
                continue  # the executor lists it; there is nobody to answer
            events.append(event)
        return events

    def _answer(self, event: Event) -> None:
        if event.type == REPEATED:
            if event.payload["offset"] < self._recent_from.get(event.partition, 0):
                self._searches.submit(self._search, event)
            elif (known := self._recent.get(event.request)) is not None:
                self._resolve(known)
            # Else it is still under way: its final event will come by.
        elif event.type in self._final:
            self._resolve(event)

    def _keep(self, event: Event) -> None:
        self._recent[event.request] = event
        if len(self._recent) > RECENT_MAX:
            forgotten = self._recent.pop(next(iter(self._recent)))
            # Its request stands before it, and so do those of all that were forgotten earlier.
            at = forgotten.partition
            self._recent_from[at] = max(self._recent_from.get(at, 0), forgotten.offset)

    def _search(self, repeated: Event) -> None:
        try:
            if (found := self._earlier(repeated)) is not None:
                self._resolve(found)
        except PenstockError:
            return  # the caller's deadline will pass, and it may ask again

    def _resolve(self, final: Event) -> None:
        with self._lock:
            futures = self._waiters.pop(final.request, [])
        for future in futures:
            _settle(future, final)

    def _earlier(self, repeated: Event) -> Event | None:
        """The final event of a request that came before, from the place where it stands."""
        start = Position.at(self.log.topic_id, repeated.partition, repeated.payload["offset"])
        until = Position.at(self.log.topic_id, repeated.partition, repeated.offset)
        needle = needle_of(repeated.request)
        for partition, record in read(self.log, start=start, until=until):
            if record.value is not None and needle in record.value:
                try:
                    event = self.log.decode(partition, record)
                except EventUnreadable:
                    continue
                if event.request == repeated.request and event.type in self._final:
                    return event
        return None


def _settle(future: Future[Event], outcome: Event | Exception) -> None:
    if not future.set_running_or_notify_cancel():
        return  # its caller has gone
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def wait_until(log: Log, reached: Any, *, timeout: float, position: Position | None = None) -> None:
    """Waits until `reached()`, a position, covers `position` or the tail of now. Raises TimeoutError."""
    goal = position or ends(log)
    deadline = time.monotonic() + timeout
    while not reached().covers(goal):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{reached()} does not cover {goal} after {timeout:g} s")
        time.sleep(0.01)
