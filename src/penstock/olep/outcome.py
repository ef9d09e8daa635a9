"""Waits for the outcome of a request, by subscribing to the log it was appended to.

The executor emits events that carry the request's id; one of them is final. A waiter is registered before
its request is appended, so that it cannot miss an outcome that arrives before the acknowledgement. A
client may repeat a request with the same id: the executor then reports the offset of the first one, and
the outcome is read from there.

Recent outcomes are cached, so this rarely costs more than a lookup. An older outcome is read from the log
in a separate thread; the subscription does not wait for it. It may be in any partition: the one of the
request is read first, then the others, from the time at which the request was appended.

A timeout means that the outcome is unknown, never that the request failed.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from penstock.model.errors import PenstockError
from penstock.model.errors.olep import EventUnreadable, OutcomeUnknown, WaitersFull
from penstock.olep.event import REJECTED, REPEATED, Record, needle_of
from penstock.olep.log import (
    CONSUMER_CONFIG,
    Appender,
    append_time,
    end_position,
    log_error,
    partition_and_offset,
    position_at_time,
    read,
)
from penstock.olep.position import Position

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from confluent_kafka import Message

    from penstock.olep.event import Event
    from penstock.olep.log import Log

WAITERS_MAX: Final = 50_000
CHUNK: Final = 1000  # records taken from the client at a time
IDLE_SECONDS: Final = 0.1
RECENT_MAX: Final = 20_000  # outcomes cached for repeated requests
SKEW_SECONDS: Final = 3600  # between the clocks of producers, which date their records


class Outcomes:
    """Submits requests and waits for their final events, those of the types `final`.

    A context manager: its thread starts on entry and is joined on exit."""

    def __init__(self, log: Log, final: Collection[str], *, waiters_max: int = WAITERS_MAX) -> None:
        self.log = log
        self._final = frozenset(final) | {REJECTED}
        self._relevant_types = frozenset(kind.encode() for kind in (*self._final, REPEATED))
        self._waiters_max = waiters_max
        self._waiters: dict[str, list[Future[Event]]] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="olep-outcomes", daemon=True)
        self._failure: Exception | None = None
        self._append_lock = threading.Lock()
        self._appender = Appender(log)
        self._recent: dict[str, Event] = {}
        self._searches = ThreadPoolExecutor(1, "olep-outcomes-search")

    def __enter__(self) -> Outcomes:
        # From the current end: outcomes of requests that are submitted from now on come after it.
        group = {"group.id": "penstock-olep-outcomes"}
        self._consumer = Consumer({**group, **self.log.config, **CONSUMER_CONFIG})
        tail = end_position(self.log).of_topic(self.log.topic, self.log.topic_id)
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

    def submit(self, key: str, request: Event) -> Future[Event]:
        """Appends the request. The future resolves to its final event."""
        future = self._register(request.id)
        try:
            with self._append_lock:
                self._appender.submit(key, request)
                self._appender.poll()
        except BaseException:
            self._withdraw(request.id, future)
            raise
        return future

    def ask(self, key: str, request: Event, *, timeout: float) -> Event:
        """Appends the request and waits for its final event. Raises OutcomeUnknown."""
        future = self.submit(key, request)
        try:
            return future.result(timeout)
        except FutureTimeout:
            raise OutcomeUnknown(id=request.id, seconds=timeout) from None
        finally:
            self._withdraw(request.id, future)

    async def ask_async(self, key: str, request: Event, *, timeout: float) -> Event:
        """As `ask`, in an event loop. Cancelling it stops the waiting, not the request."""
        future = self.submit(key, request)
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise OutcomeUnknown(id=request.id, seconds=timeout) from None
        finally:
            self._withdraw(request.id, future)

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
                        self._cache(event)
                    if event.request in self._waiters:
                        self._handle(event)
        except Exception as error:  # noqa: BLE001 - raised to every caller, now and later
            self._failure = error
            with self._lock:
                waiting, self._waiters = self._waiters, {}
            for futures in waiting.values():
                for future in futures:
                    _complete(future, error)

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
            if value is None or (kind is not None and kind not in self._relevant_types):
                continue
            at, offset = partition_and_offset(message)
            try:
                event = self.log.decode(at, Record(offset, message.key(), value))
            except EventUnreadable:
                continue  # the executor lists it; no client waits for it
            events.append(event)
        return events

    def _handle(self, event: Event) -> None:
        if event.type == REPEATED:
            if (known := self._recent.get(event.request)) is not None:
                self._resolve(known)
            else:
                # If it is still in progress, nothing is found, and its final event will follow.
                self._searches.submit(self._search, event)
        elif event.type in self._final:
            self._resolve(event)

    def _cache(self, event: Event) -> None:
        self._recent[event.request] = event
        if len(self._recent) > RECENT_MAX:
            del self._recent[next(iter(self._recent))]

    def _search(self, repeated: Event) -> None:
        try:
            if (final := self._read_outcome(repeated)) is not None:
                self._resolve(final)
        except PenstockError:
            return  # the caller times out and may repeat the request

    def _resolve(self, final: Event) -> None:
        with self._lock:
            futures = self._waiters.pop(final.request, [])
        for future in futures:
            _complete(future, final)

    def _read_outcome(self, repeated: Event) -> Event | None:
        """The final event of an earlier request, read from the log."""
        log, own, first = self.log, repeated.partition, repeated.payload["offset"]
        start = Position.at(log.topic_id, own, first)
        until = Position.at(log.topic_id, own, repeated.offset)
        if (final := self._read_final(repeated, start, until)) is not None or log.partitions == 1:
            return final
        since = append_time(log, own, first) - SKEW_SECONDS * 1000
        start, until = position_at_time(log, since), end_position(log)
        others = {p: end for p, end in until.offsets[log.topic_id].items() if p != own}
        return self._read_final(repeated, start, Position({log.topic_id: others}))

    def _read_final(self, repeated: Event, start: Position, until: Position) -> Event | None:
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


def _complete(future: Future[Event], outcome: Event | Exception) -> None:
    if not future.set_running_or_notify_cancel():
        return  # the caller no longer waits
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
