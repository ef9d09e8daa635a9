"""Fair shares of the event loop: each tenant gets its slice, whatever the others have queued."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.limits.metering import SLICE_SECONDS, Usage
from penstock.gateway.limits.ready_queue import OVERDRAWN_SECONDS_MAX, ReadyQueue
from penstock.gateway.process.scheduler import Scheduler
from tests.gateway.test_session import beat, heartbeat, versions_request
from tests.gateway.wires import quiet_gateway, serving_session

if TYPE_CHECKING:
    from penstock.gateway.process.server import Gateway
    from penstock.gateway.process.session import Session
    from tests.gateway.wires import Wire


class Loop:
    """An event loop with a clock that only work moves: connections as lists of seconds per step."""

    def __init__(self) -> None:
        self.queue: ReadyQueue[deque[float]] = ReadyQueue()
        self.now = 0.0

    def work(self, usage: Usage, seconds: float) -> None:
        self.now += seconds
        usage.processor_seconds += seconds
        if usage.processor_seconds >= usage.processor_check_at:
            self.queue.charge(usage)

    def pass_(self) -> tuple[Usage | None, float]:
        """The tenant that is served after a pass, and for how long."""
        before = self.now
        usage = self.queue.end_pass()
        while usage is not None and (steps := self.queue.take(usage)) is not None:
            self.work(usage, steps.popleft())
            if steps:
                self.queue.add(usage, steps)
        return usage, self.now - before

    def run(self, passes: int) -> dict[Usage, float]:
        seconds: defaultdict[Usage, float] = defaultdict(float)
        for _ in range(passes):
            usage, spent = self.pass_()
            if usage is not None:
                seconds[usage] += spent
        return seconds


def test_a_tenant_with_many_connections_gets_the_same_time_as_one_with_one() -> None:
    loop, many, one = Loop(), Usage(), Usage()
    for _ in range(100):
        loop.queue.add(many, deque([0.0005] * 1000))
    loop.queue.add(one, deque([0.0005] * 1000))

    seconds = loop.run(200)

    assert seconds[many] == pytest.approx(seconds[one], rel=0.05)


def test_a_tenant_alone_is_served_in_every_pass() -> None:
    loop, alone = Loop(), Usage()
    loop.queue.add(alone, deque([0.0005] * 1000))

    assert loop.run(100)[alone] == pytest.approx(100 * SLICE_SECONDS, rel=0.05)


def test_time_beyond_a_slice_is_subtracted_from_the_next_ones() -> None:
    loop, slow, quick = Loop(), Usage(), Usage()
    loop.queue.add(slow, deque([10 * SLICE_SECONDS] * 50))
    loop.queue.add(quick, deque([SLICE_SECONDS / 4] * 5000))

    seconds = loop.run(400)

    assert seconds[slow] == pytest.approx(seconds[quick], rel=0.1)


def test_a_tenant_is_not_passed_over_for_ever() -> None:
    loop, slow = Loop(), Usage()
    loop.queue.add(slow, deque([1000 * SLICE_SECONDS, SLICE_SECONDS]))

    loop.run(2 + round(OVERDRAWN_SECONDS_MAX / SLICE_SECONDS))

    assert not loop.queue


def test_a_light_tenant_never_waits() -> None:
    """One that uses less than half a slice in a pass finds time left in each."""
    loop, light, heavy = Loop(), Usage(), Usage()
    loop.queue.add(heavy, deque([SLICE_SECONDS] * 1000))

    for _ in range(500):
        assert light.processor_seconds < light.slice_ends_at
        loop.work(light, SLICE_SECONDS / 3)
        loop.pass_()

    assert light.slices_queued == 0


connections = st.lists(st.floats(1e-6, 5 * SLICE_SECONDS), min_size=1, max_size=20)


@given(st.lists(st.lists(connections, min_size=1, max_size=5), min_size=1, max_size=5))
def test_everything_is_served_once_and_no_tenant_falls_behind(tenants: list[list[list[float]]]) -> None:
    loop, usages = Loop(), [Usage() for _ in tenants]
    for usage, queued in zip(usages, tenants, strict=True):
        for steps in queued:
            loop.queue.add(usage, deque(steps))
    longest = max(max(steps) for queued in tenants for steps in queued)

    passes = 0
    while loop.queue:
        _, spent = loop.pass_()
        assert spent <= SLICE_SECONDS + longest
        waiting = [usage.processor_seconds for usage in loop.queue._tenants]
        if len(waiting) > 1:
            assert max(waiting) - min(waiting) <= 2 * (SLICE_SECONDS + longest)
        passes += 1
        assert passes < 100_000

    for usage, queued in zip(usages, tenants, strict=True):
        assert usage.processor_seconds == pytest.approx(sum(map(sum, queued)))


# On an event loop


def two_tenants() -> tuple[tuple[Session, Wire, Wire], tuple[Session, Wire, Wire]]:
    gateway = quiet_gateway(scheduler=Scheduler())
    heavy, light = serving_session(gateway), serving_session(gateway)
    light[0].connection.usage = Usage()
    return heavy, light


async def passes(gateway: Gateway, count: int = 1000) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
        if not gateway.scheduler.queue:
            return
    pytest.fail("a connection still waits")


async def test_another_tenant_is_served_between_the_requests_of_one_read() -> None:
    (session, client, _), (other, _, broker) = two_tenants()

    session.data_received(b"".join(map(versions_request, range(50))))
    served = client.frames()
    assert len(served) < 50
    assert not client.is_reading()
    other.data_received(heartbeat(1))

    assert len(broker.frames()) == 1
    await passes(session.server)
    served += client.frames()
    assert [int.from_bytes(frame[:4]) for frame in served] == list(range(50))
    assert client.is_reading()


async def test_one_tenants_connections_share_a_slice() -> None:
    """What arrives on a second connection waits behind the first one's, as the tenant has no time left."""
    gateway = quiet_gateway(scheduler=Scheduler())
    (first, _, _), (second, client, broker) = serving_session(gateway), serving_session(gateway)
    usage = first.connection.usage
    usage.processor_seconds = usage.slice_ends_at

    second.data_received(heartbeat(1))
    assert broker.frames() == []
    assert not client.is_reading()

    await passes(gateway)
    assert len(broker.frames()) == 1
    assert client.is_reading()
    assert usage.slices_queued == 1


async def test_responses_of_a_broker_that_closed_are_passed_on_first() -> None:
    gateway = quiet_gateway(scheduler=Scheduler())
    session, client, _ = serving_session(gateway)
    session.data_received(heartbeat(1))
    usage = session.connection.usage
    usage.processor_seconds = usage.slice_ends_at

    session.from_broker(beat(1))
    assert client.frames() == []
    session.broker_lost(None)
    assert not client.closed
    await passes(gateway)

    assert len(client.frames()) == 1
    assert client.closed


async def test_a_connection_that_ends_while_it_waits_is_skipped() -> None:
    (session, client, broker), _ = two_tenants()
    usage = session.connection.usage
    usage.processor_seconds = usage.slice_ends_at

    session.data_received(heartbeat(1))
    session.abort("revoked")
    session.connection_lost(None)

    await passes(session.server)
    assert broker.frames() == []
    assert client.closed


async def test_work_is_charged_to_its_tenant() -> None:
    (session, _, broker), (other, _, _) = two_tenants()

    session.data_received(heartbeat(1))
    session.from_broker(beat(1))

    assert session.connection.usage.processor_seconds > 0
    assert other.connection.usage.processor_seconds == 0
    assert len(broker.frames()) == 1
