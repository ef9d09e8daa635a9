"""Throttle queues: their order, and what sessions on recorded transports pass, hold and report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gateway_load import produce_frame
from penstock.gateway.connection.states import THROTTLED
from penstock.gateway.limits.metering import Usage
from penstock.gateway.limits.tenant_quota import PRODUCE, TenantQuota
from penstock.gateway.limits.throttle_queue import WAIT_SECONDS_MAX
from penstock.model.events import Dimension
from penstock.wire.frames import Response, decode_response, encode_response
from tests.gateway.test_session import beat, heartbeat
from tests.gateway.test_tenant_quota import fetch
from tests.gateway.wires import TENANT, Wire, quiet_gateway, serving_session

if TYPE_CHECKING:
    from penstock.gateway.connection.routes import Route
    from penstock.gateway.limits.throttle_queue import ThrottleQueue
    from penstock.gateway.process.server import Gateway
    from penstock.gateway.process.session import Session
    from penstock.wire.splice import Program

INGRESS, EGRESS, REQUESTS = Dimension.INGRESS_BYTES, Dimension.EGRESS_BYTES, Dimension.REQUESTS
REQUEST_TIME = Dimension.REQUEST_TIME_US
HEARTBEAT = 12
RATE = 100.0
SOON = 10.0  # by then every debt here is paid, and no connection has waited for too long


@dataclass
class Greedy:
    """A connection that always has one more frame of its size."""

    quota: TenantQuota
    usage: Usage
    size: int
    passed: int = 0
    clock: list[float] = field(default_factory=lambda: [0.0])

    def come(self) -> None:
        (queue,) = self.quota.queues(PRODUCE, self.clock[0])
        queue.join(self, self.size, self.clock[0])

    def timer(self, queue: ThrottleQueue, seconds: float) -> Greedy:
        assert 0 < seconds <= 1
        return self

    def cancel(self) -> None:
        """The test serves the queue itself."""

    def proceed(self, queue: ThrottleQueue) -> None:
        queue.quota.charge_ahead(queue.dimension, self.size, self.clock[0])
        self.passed += self.size
        self.usage.bytes_in += self.size
        self.quota.charge_ingress(self.clock[0])
        self.come()


@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=12),
    st.lists(st.floats(0.01, 3.0), min_size=5, max_size=60),
)
def test_any_number_of_connections_share_the_rate_in_turn(sizes: list[int], steps: list[float]) -> None:
    quota, usage, clock = TenantQuota(), Usage(), [0.0]
    quota.retune({INGRESS: RATE}, now=0.0)
    quota.bind(usage)
    usage.bytes_in = 101
    quota.charge_ingress(0.0)
    crowd = [Greedy(quota, usage, size, clock=clock) for size in sizes]
    for one in crowd:
        one.come()
    queue = quota.queue(INGRESS)
    for step in steps:
        clock[0] += step
        queue.serve(clock[0])
        passed = sum(one.passed for one in crowd)
        if sum(sizes) / RATE + max(steps) < WAIT_SECONDS_MAX:  # beyond, one proceeds whatever the debt
            assert passed <= RATE * clock[0] + max(sizes)
    turns = sorted(one.passed // one.size for one in crowd)

    assert turns[-1] - turns[0] <= 1


def test_no_connection_is_queued_longer_than_clients_wait() -> None:
    quota, usage = TenantQuota(), Usage()
    quota.retune({INGRESS: 1.0}, now=0.0)
    quota.bind(usage)
    usage.bytes_in = 1_000_000
    quota.charge_ingress(0.0)
    one = Greedy(quota, usage, 10)
    one.come()
    queue = quota.queue(INGRESS)

    queue.serve(WAIT_SECONDS_MAX - 0.1)
    before = one.passed
    queue.serve(WAIT_SECONDS_MAX)
    queue.leave(one, WAIT_SECONDS_MAX)

    assert (before, one.passed) == (0, 10)
    assert quota.throttled_seconds[INGRESS] == pytest.approx(WAIT_SECONDS_MAX)


class Harness:
    """Sessions of one tenant on recording transports."""

    def __init__(self) -> None:
        self.gateway: Gateway = quiet_gateway()
        self.gateway.now = lambda: self.moment  # time stands still
        self.at(0.0)
        self.quotas = self.gateway.services.quotas
        self.quota = self.quotas.of(TENANT.id)
        self.usage = self.gateway.usage[TENANT.id] = Usage()

    def at(self, moment: float) -> None:
        self.moment = moment

    def limit(self, dimension: Dimension, rate: float) -> None:
        self.quotas.retune(TENANT.id, {dimension: rate}, self.gateway.now())

    def session(self) -> tuple[Session, Wire, Wire]:
        self.quotas.granted = lambda _, __: self.quota.granted()  # keeps the rates set here
        return serving_session(self.gateway)


@pytest.fixture
async def harness() -> Harness:
    return Harness()


async def test_of_many_small_requests_at_once_only_the_allowed_ones_pass(harness: Harness) -> None:
    harness.limit(REQUESTS, 10.0)
    session, client, broker = harness.session()

    session.data_received(b"".join(heartbeat(n) for n in range(3)))
    session.connection.in_flight_max = 1000
    session.data_received(b"".join(heartbeat(n) for n in range(3, 50)))

    assert len(broker.frames()) == 11  # a second of the rate, and the one that made debt
    assert session.connection.pauses == THROTTLED
    assert not client.is_reading()
    session.connection_lost(None)
    assert len(harness.quota.queue(REQUESTS)) == 0


async def test_queued_connections_proceed_when_the_limit_is_raised(harness: Harness) -> None:
    harness.limit(REQUESTS, 10.0)
    session, client, broker = harness.session()
    session.connection.in_flight_max = 1000
    session.data_received(b"".join(heartbeat(n) for n in range(50)))
    held = 50 - len(broker.frames())

    harness.quotas.retune(TENANT.id, {}, harness.gateway.now())

    assert len(broker.frames()) == held
    assert session.connection.pauses == 0
    assert client.is_reading()


async def test_a_tenant_in_ingress_debt_still_sends_heartbeats_and_fetches(harness: Harness) -> None:
    harness.limit(INGRESS, 1000.0)
    first, _, first_broker = harness.session()
    second, _, second_broker = harness.session()
    other, client, other_broker = harness.session()

    first.data_received(produce_frame("orders", 5000, 1))
    second.data_received(produce_frame("orders", 10, 1))
    other.data_received(heartbeat(1) + fetch(12, 1000, 2))

    assert len(first_broker.frames()) == 1
    assert second_broker.frames() == []  # although it has sent nothing before
    assert len(other_broker.frames()) == 2
    assert client.is_reading()
    second.connection_lost(None)


async def test_connections_take_turns_and_a_frame_is_charged_once(harness: Harness) -> None:
    harness.limit(INGRESS, 1000.0)
    sessions = [harness.session() for _ in range(3)]
    frame = produce_frame("orders", 2000, 1)
    for session, _, _ in sessions:
        session.data_received(frame * 3)
    passed = [len(broker.frames()) for _, _, broker in sessions]
    queue = harness.quota.queue(INGRESS)

    turns = []
    for moment in (SOON / 2, SOON):
        queue.serve(moment)
        turns.append([len(broker.frames()) for _, _, broker in sessions])
    debt = harness.quota.debt_seconds(INGRESS, SOON)

    assert passed == [1, 0, 0]
    assert turns == [[1, 0, 0], [0, 1, 0]]
    assert debt == pytest.approx((len(frame) - 1000) / 1000, rel=0.01)  # saved tokens are used, too
    for session, _, _ in sessions:
        session.connection_lost(None)


async def test_only_responses_to_throttled_apis_carry_the_queues_wait(harness: Harness) -> None:
    harness.limit(INGRESS, 1000.0)
    session, client, _ = harness.session()
    other, other_client, _ = harness.session()
    frame = produce_frame("orders", 4000, 1)
    session.data_received(frame + frame)
    other.data_received(heartbeat(9))

    session.from_broker(encode_response("Produce", 10, Response(1, {"Responses": [], "ThrottleTimeMs": 0})))
    other.from_broker(beat(9))

    (response,) = client.frames()
    throttle_ms = decode_response("Produce", 10, response).body["ThrottleTimeMs"]
    assert throttle_ms == pytest.approx(1000 * (2 * len(frame) - 1000) / 1000, rel=0.02)
    assert other_client.frames() == [beat(9)[4:]]
    session.connection_lost(None)


async def test_a_queued_fetch_is_charged_what_the_last_one_returned(harness: Harness) -> None:
    harness.limit(EGRESS, 10_000.0)
    sessions = [harness.session() for _ in range(2)]
    response = encode_response("Fetch", 12, Response(2, {"Responses": [], "_tags": {}}))
    for session, _, _ in sessions:
        session.data_received(fetch(12, 1000, 2))
    for session, _, _ in sessions:
        harness.quota.egress_left -= 20_000  # of a large response, the rest of which is
        assert session.connection.throttle is not None
        session.connection.throttle._received += 20_000
        session.from_broker(response)
        session.data_received(fetch(12, 1000, 2))
    held = [len(broker.frames()) for _, _, broker in sessions]
    queue = harness.quota.queue(EGRESS)

    queue.serve(SOON)

    assert held == [1, 1]
    assert [len(broker.frames()) for _, _, broker in sessions] == [1, 0]
    assert harness.quota.debt_seconds(EGRESS, SOON) == pytest.approx(1.0, rel=0.02)
    for session, _, _ in sessions:
        session.connection_lost(None)


async def test_a_connection_that_proceeds_may_be_the_first_to_wait_for_another_limit(
    harness: Harness,
) -> None:
    both = {INGRESS: 1000.0, REQUEST_TIME: 10_000.0}
    harness.quotas.retune(TENANT.id, both, 0.0)
    session, _, broker = harness.session()
    session.data_received(produce_frame("orders", 2000, 1) * 2)
    harness.usage.service_seconds += 0.5  # the broker took long: that limit is in debt, too
    session.from_broker(encode_response("Produce", 10, Response(1, {"Responses": [], "ThrottleTimeMs": 0})))
    passed = len(broker.frames())

    harness.quotas.retune(TENANT.id, {**both, INGRESS: 1_000_000.0}, SOON)

    assert passed == 1
    assert len(broker.frames()) + len(harness.quota.queue(REQUEST_TIME)) == 1
    session.connection_lost(None)


class Faulty:
    request_bytes_max = 1000

    @property
    def request(self) -> Program:
        raise RuntimeError("a fault of ours")


async def test_a_failure_of_one_queued_connection_closes_it_alone(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.limit(REQUESTS, 1.0)
    broken, client, _ = harness.session()
    other, _, broker = harness.session()
    for session in (broken, other):
        session.data_received(heartbeat(1) + heartbeat(2) + heartbeat(3))
    before = len(broker.frames())

    broken.connection.routes = {(HEARTBEAT, 0): cast("Route", Faulty())}
    harness.quotas.retune(TENANT.id, {}, 0.0)

    assert client.closed
    assert "a fault of ours" in caplog.text
    assert (before, len(broker.frames())) == (0, 3)


async def test_slow_frames_are_charged_once(harness: Harness) -> None:
    harness.limit(INGRESS, 1000.0)
    frame = produce_frame("orders", 900, 1)
    (first, _, _), *others = (harness.session() for _ in range(6))
    first.data_received(frame + frame)
    for session, _, _ in others:
        session.data_received(frame[:20])
    queue = harness.quota.queue(INGRESS)
    for moment in range(1, 12):
        queue.serve(float(moment))
    harness.at(11.0)
    debt = harness.quota.debt_seconds(INGRESS, 11.0)

    for session, _, _ in others:
        session.data_received(frame[20:])

    assert len(queue) == 0
    assert [len(broker.frames()) for _, _, broker in others] == [1] * 5
    assert harness.quota.debt_seconds(INGRESS, 11.0) == debt


async def test_a_charge_for_bytes_that_never_came_is_no_credit(harness: Harness) -> None:
    harness.limit(INGRESS, 1000.0)
    first, _, _ = harness.session()
    gone, _, _ = harness.session()
    frame = produce_frame("orders", 5000, 1)
    first.data_received(frame)
    gone.data_received(frame[:20])
    harness.quota.queue(INGRESS).serve(SOON)

    gone.connection_lost(None)
    harness.at(3 * SOON)
    first.data_received(frame)

    assert harness.quota.debt_seconds(INGRESS, 3 * SOON) == pytest.approx(
        (len(frame) - 1000) / 1000, rel=0.01
    )


async def test_an_exhausted_limit_without_waiters_is_reopened(harness: Harness) -> None:
    harness.limit(EGRESS, 1000.0)
    session, _, _ = harness.session()
    harness.quota.egress_left -= 5000  # a consumer got too much once, and disconnected
    harness.quota.charge_egress(0.0)
    assert session.connection.throttle is not None
    closed = session.connection.throttle.exhausted()
    harness.at(SOON)

    session.data_received(heartbeat(1))

    assert closed
    assert not session.connection.throttle.exhausted()
