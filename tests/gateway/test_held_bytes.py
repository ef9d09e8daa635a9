"""Budgets for unfinished frames: never exceeded by more than a frame and a read, and never for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import GaugeMetricFamily

from penstock.gateway.limits.held_bytes import HeldBytes
from penstock.gateway.limits.metering import Usage
from penstock.gateway.process.metrics import GatewayMetrics
from penstock.gateway.settings import Bounds
from tests.gateway.test_session import heartbeat
from tests.gateway.wires import TENANT, quiet_gateway, serving_session

TENANT_MAX, PROCESS_MAX, SECONDS_MAX = 100, 250, 30.0
READ_MAX, FRAME_MAX = 40, 60


class Connection:
    """Reads a frame piece by piece unless it is paused."""

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        self.paused = self.closed = False
        self.held = 0

    def hold(self, on: bool) -> None:
        self.paused = on

    def give_up(self, held: int, limit: int) -> None:
        assert held == self.held > 0
        assert limit > 0
        self.closed, self.held = True, 0


class Process:
    def __init__(self, tenants: int, each: int) -> None:
        self.budget = HeldBytes(TENANT_MAX, PROCESS_MAX, 10, SECONDS_MAX)
        self.usages = [Usage() for _ in range(tenants)]
        self.connections = [Connection(usage) for usage in self.usages for _ in range(each)]
        self.budget.connections_of = lambda usage: [one for one in self.connections if one.usage is usage]
        self.now = 0.0

    def read(self, one: Connection, size: int) -> None:
        """A frame of `FRAME_MAX` bytes ends when all of them are there."""
        if one.paused or one.closed:
            return
        one.held = (one.held + size) % FRAME_MAX
        self.budget.count(one, one.usage, one.held, self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.budget.sweep(self.now)


steps = st.lists(st.tuples(st.integers(0, 23), st.integers(1, READ_MAX)), max_size=200)


@given(steps)
def test_what_is_held_is_bounded_and_every_connection_is_read_again(reads: list[tuple[int, int]]) -> None:
    process = Process(tenants=3, each=8)

    for number, size in reads:
        process.read(process.connections[number], size)
        for usage in process.usages:
            assert usage.held_bytes == sum(c.held for c in process.connections if c.usage is usage)
            assert usage.held_bytes <= TENANT_MAX + READ_MAX + FRAME_MAX
            paused = [c for c in process.connections if c.usage is usage and not c.closed and c.paused]
            assert not paused or len(paused) < 8, "one may always read"
        assert process.budget.bytes == sum(c.held for c in process.connections)
    for _ in range(2 * len(process.connections)):
        process.pass_time(SECONDS_MAX)

    assert not any(one.paused for one in process.connections if not one.closed)


def test_one_tenant_over_its_budget_does_not_pause_another() -> None:
    process = Process(tenants=2, each=5)
    greedy, other = process.connections[:5], process.connections[5:]

    for one in greedy:
        process.read(one, READ_MAX)

    assert [one.paused for one in greedy] == [False, True, True, True, True]
    assert not any(one.paused for one in other)


def test_over_the_budget_of_the_process_tenants_get_equal_parts() -> None:
    """Four tenants below their own budget hold too much together: a small one is not affected."""
    process = Process(tenants=4, each=5)
    for tenant in range(3):
        for one in process.connections[5 * tenant : 5 * tenant + 2]:
            process.read(one, READ_MAX)
    small = process.connections[15:]
    process.read(small[0], 20)
    assert process.budget.bytes > PROCESS_MAX

    process.read(small[1], 5)
    process.read(process.connections[4], 1)

    assert not any(one.paused for one in small)
    assert [one.paused for one in process.connections[:5]] == [False, True, True, True, True]


def test_a_connection_that_logs_in_takes_what_it_holds_along() -> None:
    budget, usage = HeldBytes(TENANT_MAX, PROCESS_MAX, 10, SECONDS_MAX), Usage()
    one = Connection(usage)

    budget.count(one, None, 8, 0.0)
    budget.count(one, usage, 9, 0.0)
    budget.count(Connection(usage), None, 8, 0.0)

    assert usage.held_bytes == 9
    assert not one.closed


@pytest.mark.parametrize("connections", [40])
async def test_a_tenants_half_frames_are_bounded_in_a_gateway(connections: int) -> None:
    gateway = quiet_gateway(Bounds(tenant_held_bytes_max=10_000))
    sessions = [serving_session(gateway) for _ in range(connections)]
    gateway.sessions |= {number: session for number, (session, _, _) in enumerate(sessions)}
    other, _, broker = serving_session(gateway)
    other.connection.usage = Usage()
    half = (60_000).to_bytes(4) + heartbeat(1)[4:] + bytes(1000)  # of a frame of 60 KB

    for session, client, _ in sessions:
        if client.is_reading():
            session.data_received(half)

    assert gateway.usage[TENANT.id].held_bytes <= 10_000 + len(half)
    assert [client.is_reading() for _, client, _ in sessions].count(True) == 1
    other.data_received(heartbeat(1))
    assert len(broker.frames()) == 1
    (family,) = [one for one in GatewayMetrics(gateway).collect() if one.name.endswith("_held_bytes")]
    assert isinstance(family, GaugeMetricFamily)
    assert family.samples[0].value == gateway.usage[TENANT.id].held_bytes
    for session, _, _ in sessions[: connections // 2]:
        session.connection.ended(gateway.now())
    assert all(client.is_reading() for _, client, _ in sessions[connections // 2 :])
