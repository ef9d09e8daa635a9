"""Lists rejected events with their bytes, and retries them once the cause is fixed.

A retry is an event in the same partition. The executor decides the rejected event at the offset of the
retry, so that state remains a function of the log, and removes it from the list if that succeeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.model.errors.olep import RejectedMissing
from penstock.olep.event import RETRY, request
from penstock.olep.fold import REJECTED_EVENTS, RejectedEvent
from penstock.olep.log import Appender

if TYPE_CHECKING:
    from penstock.olep.application import Application
    from penstock.olep.log import Log
    from penstock.olep.position import Position
    from penstock.olep.store import Stores


class Listed(NamedTuple):
    partition: int
    event: RejectedEvent


def rejected(application: Application, log: Log, stores: Stores) -> list[Listed]:
    """The rejected events of all partitions. Executors may be running."""
    listed = []
    for partition in range(log.partitions):
        store = stores.open(application, log.topic_id, partition)
        try:
            listed += [Listed(partition, RejectedEvent(*row)) for row in store.scan(REJECTED_EVENTS)]
        finally:
            store.close()
    return sorted(listed)


def retry(log: Log, listed: list[Listed], partition: int, offset: int, *, time: int) -> Position:
    """Appends the retry of a listed event. Raises RejectedMissing.

    The retry's id contains `time`, in milliseconds, so an event that is rejected again can be retried."""
    events = {(each.partition, each.event.at): each.event for each in listed}
    event = events.get((partition, offset))
    if event is None:
        raise RejectedMissing(partition=partition, offset=offset)
    retry_id = f"retry-{log.topic_id}-{partition}-{offset}-{time}"
    event_retry = request(retry_id, RETRY, {"offset": offset}, time=time)
    return Appender(log).append(event.key, event_retry, partition=partition)
