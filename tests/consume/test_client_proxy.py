"""The client proxy alone, with Kafka in memory: what it posts to the event loop."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.consume import messages
from penstock.consume.back_pressure import Bounds
from penstock.consume.client_proxy import ClientProxy
from penstock.consume.core import Core
from penstock.consume.settings import checked_settings
from penstock.consume.testing import MemoryKafka

if TYPE_CHECKING:
    from collections.abc import Callable


def wait_for(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_the_end_of_a_partition_is_posted_only_if_it_is_not_right_after_the_last_record() -> None:
    kafka = MemoryKafka()
    kafka.create("orders")
    settings = checked_settings(dict(kafka.clients))
    posted: list[messages.Event] = []
    core = Core(Bounds(settings.records_max, settings.buffer_bytes), settings.uncommitted_max)
    proxy = ClientProxy(kafka.properties("g"), ["orders"], settings, core, posted.append)

    def ends() -> list[int]:
        return [event.offset for event in posted if isinstance(event, messages.EndReached)]

    def received() -> int:
        return sum(isinstance(event, messages.Received) for event in posted)

    proxy.start()
    wait_for(lambda: ends() == [0])  # nothing was written yet
    for number in range(3):  # the client reports the end after each
        kafka.write("orders", b"")
        wait_for(lambda count=number + 1: received() == count)  # type: ignore[misc]  # mypy cannot infer it
    kafka.skip_offsets("orders", offsets=2)  # e.g. transaction markers
    wait_for(lambda: 5 in ends())
    for assignments in [event.assignments for event in posted if isinstance(event, messages.Assigned)]:
        assert [each.polled for each in assignments] == [3]
    proxy.send(messages.Stop())
    wait_for(lambda: any(isinstance(event, messages.Revoking) for event in posted))
    revoke = next(event for event in posted if isinstance(event, messages.Revoking))
    proxy.send(messages.CommitRevoked(revoke, []))

    assert proxy.join(60)
    assert ends() == [0, 5]
