"""Those who wait for a limit: their turns, and what sessions on remembered wires pass, hold and tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gateway_load import produce_frame
from penstock.gateway.lines import WAIT_SECONDS_MAX
from penstock.gateway.metering import Usage
from penstock.gateway.states import IN_LINE
from penstock.gateway.throttled import ThrottledSession, throttled_by
from penstock.gateway.throttling import PRODUCE, Quotas, TenantQuota
from penstock.model.events import Dimension
from penstock.wire.frames import Response, decode_response, encode_response
from tests.gateway.test_session import beat, heartbeat
from tests.gateway.test_throttling import fetch
from tests.gateway.wires import TENANT, Wire, quiet_gateway, serving_session

if TYPE_CHECKING:
    from penstock.gateway.lines import Line
    from penstock.gateway.routes import Route
    from penstock.gateway.server import Gateway
    from penstock.wire.splice import Program

INGRESS, EGRESS, REQUESTS = Dimension.INGRESS_BYTES, Dimension.EGRESS_BYTES, Dimension.REQUESTS
REQUEST_TIME = Dimension.REQUEST_TIME_US
HEARTBEAT = 12
RATE = 100.0
SOON = 10.0  # by when every debt here is paid, and nobody has waited for too long


@dataclass
class Greedy:
    """A connection that always has one more frame of its size."""

    quota: TenantQuota
    usage: Usage
    size: int
    passed: int = 0
    clock: list[float] = field(default_factory=lambda: [0.0])

    def come(self) -> None:
        (line,) = self.quota.lines(PRODUCE, self.clock[0])
        line.join(self, self.size, self.clock[0])

    def alarm(self, line: Line, seconds: float) -> Greedy:
        assert 0 < seconds <= 1
        return self

    def cancel(self) -> None:
        """The test rings."""

    def go_on(self, line: Line) -> None:
        line.take(self.size, self.clock[0])
        self.passed += self.size
        self.usage.bytes_in += self.size
        self.quota.sent(self.clock[0])
        self.come()


@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=12),
    st.lists(st.floats(0.01, 3.0), min_size=5, max_size=60),
)
def test_however_many_connections_ask_they_get_the_rate_and_one_frame_and_each_its_turn(
    sizes: list[int], steps: list[float]
) -> None:
    quota, usage, clock = TenantQuota(), Usage(), [0.0]
    quota.retune({INGRESS: RATE}, now=0.0)
    quota.bind(usage)
    usage.bytes_in = 101
    quota.sent(0.0)
    crowd = [Greedy(quota, usage, size, clock=clock) for size in sizes]
    for one in crowd:
        one.come()
    line = quota.line(INGRESS)
    for step in steps:
        clock[0] += step
        line.serve(clock[0])
        passed = sum(one.passed for one in crowd)
        if sum(sizes) / RATE + max(steps) < WAIT_SECONDS_MAX:  # beyond, one goes on whatever is owed
            assert passed <= RATE * clock[0] + max(sizes)
    turns = sorted(one.passed // one.size for one in crowd)

    assert turns[-1] - turns[0] <= 1


def test_nobody_stands_in_line_for_longer_than_clients_wait() -> None:
    quota, usage = TenantQuota(), Usage()
    quota.retune({INGRESS: 1.0}, now=0.0)
    quota.bind(usage)
    usage.bytes_in = 1_000_000
    quota.sent(0.0)
    one = Greedy(quota, usage, 10)
    one.come()
    line = quota.line(INGRESS)

    line.serve(WAIT_SECONDS_MAX - 0.1)
    before = one.passed
    line.serve(WAIT_SECONDS_MAX)
    line.leave(one, WAIT_SECONDS_MAX)

    assert (before, one.passed) == (0, 10)
    assert quota.throttled_seconds[INGRESS] == pytest.approx(WAIT_SECONDS_MAX)


class Ground:
    """Sessions of one tenant on wires that remember."""

    def __init__(self) -> None:
        self.quotas = Quotas()
        self.gateway: Gateway = quiet_gateway()
        self.at(0.0)
        self.quota = self.quotas.of(TENANT.id)
        self.usage = Usage()

    def at(self, moment: float) -> None:
        self.gateway.now = lambda: moment  # type: ignore[method-assign]  # time stands still

    def limit(self, dimension: Dimension, rate: float) -> None:
        self.quotas.retune(TENANT.id, {dimension: rate}, self.gateway.now())

    def session(self) -> tuple[ThrottledSession, Wire, Wire]:
        self.quotas.granted = lambda _, __: self.quota.granted()  # what is set here stays
        session, client, broker = serving_session(self.gateway, throttled_by(self.quotas))
        assert isinstance(session, ThrottledSession)
        session.usage = self.usage
        self.quota.bind(self.usage)
        return session, client, broker


@pytest.fixture
async def ground() -> Ground:
    return Ground()


async def test_of_many_tiny_requests_that_came_together_only_what_is_allowed_passes(ground: Ground) -> None:
    ground.limit(REQUESTS, 10.0)
    session, client, broker = ground.session()

    session.data_received(b"".join(heartbeat(n) for n in range(3)))
    session.in_flight_max = 1000
    session.data_received(b"".join(heartbeat(n) for n in range(3, 50)))

    assert len(broker.frames()) == 11  # a second of the rate, and the one that made debt
    assert session.pauses == IN_LINE
    assert not client.reading
    session.connection_lost(None)
    assert len(ground.quota.line(REQUESTS)) == 0


async def test_who_waits_goes_on_when_the_limit_is_raised(ground: Ground) -> None:
    ground.limit(REQUESTS, 10.0)
    session, client, broker = ground.session()
    session.in_flight_max = 1000
    session.data_received(b"".join(heartbeat(n) for n in range(50)))
    held = 50 - len(broker.frames())

    ground.quotas.retune(TENANT.id, {}, ground.gateway.now())

    assert len(broker.frames()) == held
    assert session.pauses == 0
    assert client.reading


async def test_a_tenant_in_debt_for_what_it_sends_still_beats_fetches_and_is_read(ground: Ground) -> None:
    ground.limit(INGRESS, 1000.0)
    first, _, first_broker = ground.session()
    second, _, second_broker = ground.session()
    other, client, other_broker = ground.session()

    first.data_received(produce_frame("orders", 5000, 1))
    second.data_received(produce_frame("orders", 10, 1))
    other.data_received(heartbeat(1) + fetch(12, 1000, 2))

    assert len(first_broker.frames()) == 1
    assert second_broker.frames() == []  # though it has sent nothing before
    assert len(other_broker.frames()) == 2
    assert client.reading
    second.connection_lost(None)


async def test_turns_go_round_and_a_frame_that_is_let_on_is_paid_for_once(ground: Ground) -> None:
    ground.limit(INGRESS, 1000.0)
    sessions = [ground.session() for _ in range(3)]
    frame = produce_frame("orders", 2000, 1)
    for session, _, _ in sessions:
        session.data_received(frame * 3)
    passed = [len(broker.frames()) for _, _, broker in sessions]
    line = ground.quota.line(INGRESS)

    turns = []
    for moment in (SOON / 2, SOON):
        line.serve(moment)
        turns.append([len(broker.frames()) for _, _, broker in sessions])
    debt = ground.quota.debt_seconds(INGRESS, SOON)

    assert passed == [1, 0, 0]
    assert turns == [[1, 0, 0], [0, 1, 0]]
    assert debt == pytest.approx((len(frame) - 1000) / 1000, rel=0.01)  # what was saved up is used, too
    for session, _, _ in sessions:
        session.connection_lost(None)


async def test_answers_tell_how_long_the_line_takes_and_only_those_of_what_waits(ground: Ground) -> None:
    ground.limit(INGRESS, 1000.0)
    session, client, _ = ground.session()
    other, other_client, _ = ground.session()
    frame = produce_frame("orders", 4000, 1)
    session.data_received(frame + frame)
    other.data_received(heartbeat(9))

    session.from_broker(encode_response("Produce", 10, Response(1, {"Responses": [], "ThrottleTimeMs": 0})))
    other.from_broker(beat(9))

    (answer,) = client.frames()
    told = decode_response("Produce", 10, answer).body["ThrottleTimeMs"]
    assert told == pytest.approx(1000 * (2 * len(frame) - 1000) / 1000, rel=0.02)
    assert other_client.frames() == [beat(9)[4:]]
    session.connection_lost(None)


async def test_a_fetch_that_is_let_on_is_taken_to_get_what_the_last_one_got(ground: Ground) -> None:
    ground.limit(EGRESS, 10_000.0)
    sessions = [ground.session() for _ in range(2)]
    answer = encode_response("Fetch", 12, Response(2, {"Responses": [], "_tags": {}}))
    for session, _, _ in sessions:
        session.data_received(fetch(12, 1000, 2))
    for session, _, _ in sessions:
        ground.quota.egress_left -= 20_000  # of a large answer, the rest of which is
        session._came += 20_000
        session.from_broker(answer)
        session.data_received(fetch(12, 1000, 2))
    held = [len(broker.frames()) for _, _, broker in sessions]
    line = ground.quota.line(EGRESS)

    line.serve(SOON)

    assert held == [1, 1]
    assert [len(broker.frames()) for _, _, broker in sessions] == [1, 0]
    assert ground.quota.debt_seconds(EGRESS, SOON) == pytest.approx(1.0, rel=0.02)
    for session, _, _ in sessions:
        session.connection_lost(None)


async def test_whoever_goes_on_when_limits_change_may_be_the_first_to_wait_for_another(
    ground: Ground,
) -> None:
    both = {INGRESS: 1000.0, REQUEST_TIME: 10_000.0}
    ground.quotas.retune(TENANT.id, both, 0.0)
    session, _, broker = ground.session()
    session.data_received(produce_frame("orders", 2000, 1) * 2)
    ground.usage.service_seconds += 0.5  # the broker took long: that limit is in debt, too
    session.from_broker(encode_response("Produce", 10, Response(1, {"Responses": [], "ThrottleTimeMs": 0})))
    passed = len(broker.frames())

    ground.quotas.retune(TENANT.id, {**both, INGRESS: 1_000_000.0}, SOON)

    assert passed == 1
    assert len(broker.frames()) + len(ground.quota.line(REQUEST_TIME)) == 1
    session.connection_lost(None)


class Faulty:
    @property
    def request(self) -> Program:
        raise RuntimeError("a fault of ours")


async def test_a_connection_whose_turn_fails_ends_alone(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    ground.limit(REQUESTS, 1.0)
    broken, client, _ = ground.session()
    other, _, broker = ground.session()
    for session in (broken, other):
        session.data_received(heartbeat(1) + heartbeat(2) + heartbeat(3))
    before = len(broker.frames())

    broken.asking.routes = {(HEARTBEAT, 0): cast("Route", Faulty())}
    ground.quotas.retune(TENANT.id, {}, 0.0)

    assert client.closed
    assert "a fault of ours" in caplog.text
    assert (before, len(broker.frames())) == (0, 3)


async def test_frames_that_come_slowly_are_paid_for_once_however_many_are_under_way(ground: Ground) -> None:
    ground.limit(INGRESS, 1000.0)
    frame = produce_frame("orders", 900, 1)
    (first, _, _), *others = (ground.session() for _ in range(6))
    first.data_received(frame + frame)
    for session, _, _ in others:
        session.data_received(frame[:20])
    line = ground.quota.line(INGRESS)
    for moment in range(1, 12):
        line.serve(float(moment))
    ground.at(11.0)
    debt = ground.quota.debt_seconds(INGRESS, 11.0)

    for session, _, _ in others:
        session.data_received(frame[20:])

    assert len(line) == 0
    assert [len(broker.frames()) for _, _, broker in others] == [1] * 5
    assert ground.quota.debt_seconds(INGRESS, 11.0) == debt


async def test_what_was_paid_for_and_never_came_is_no_credit(ground: Ground) -> None:
    ground.limit(INGRESS, 1000.0)
    first, _, _ = ground.session()
    gone, _, _ = ground.session()
    frame = produce_frame("orders", 5000, 1)
    first.data_received(frame)
    gone.data_received(frame[:20])
    ground.quota.line(INGRESS).serve(SOON)

    gone.connection_lost(None)
    ground.at(3 * SOON)
    first.data_received(frame)

    assert ground.quota.debt_seconds(INGRESS, 3 * SOON) == pytest.approx((len(frame) - 1000) / 1000, rel=0.01)


async def test_a_limit_that_nobody_waits_for_any_more_costs_others_nothing(ground: Ground) -> None:
    ground.limit(EGRESS, 1000.0)
    session, _, _ = ground.session()
    ground.quota.egress_left -= 5000  # a consumer got too much once, and went away
    ground.quota.answered(0.0)
    closed = session.gated()
    ground.at(SOON)

    session.data_received(heartbeat(1))

    assert closed
    assert not session.gated()
