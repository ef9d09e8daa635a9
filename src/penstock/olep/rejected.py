"""Events that were rejected: listed with their bytes, and retried once their cause is mended.

A retry is an event in the same partition. The executor decides the rejected event where the retry
stands, so that state remains a function of the log, and takes it off the list if that succeeds.
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
    """All that is listed now, over all partitions. The executors may be running."""
    found = []
    for partition in range(log.partitions):
        store = stores.open(application, log.topic_id, partition)
        try:
            found += [Listed(partition, RejectedEvent(*row)) for row in store.scan(REJECTED_EVENTS)]
        finally:
            store.close()
    return sorted(found)


def retry(log: Log, listed: list[Listed], partition: int, offset: int, *, time: int) -> Position:
    """Appends the retry of a listed event. Raises RejectedMissing.

    The id depends on `time`, in milliseconds: an event that is rejected again can be retried again."""
    event = next(
        (each.event for each in listed if (each.partition, each.event.at) == (partition, offset)), None
    )
    if event is None:
        raise RejectedMissing(partition=partition, offset=offset)
    again = request(f"retry-{log.topic_id}-{partition}-{offset}-{time}", RETRY, {"offset": offset}, time=time)
    return Appender(log).append(event.key, again, partition=partition)
