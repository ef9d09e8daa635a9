"""Clients whose connections are closed for breaking a limit are slowed down, and no others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.gateway.config import Tenant, TenantLimits
from penstock.gateway.limits.admission import Admission, Denial
from penstock.gateway.settings import Bounds
from penstock.kafka.connection import Connection
from penstock.model.ids import LogicalClusterId
from tests.gateway.test_server import place
from tests.gateway.test_shared_counters import doors
from tests.harness.gateway import RunningGateway, new_access

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.gateway import Access

HERE, ELSEWHERE = "192.0.2.1", "192.0.2.2"
TENANT = Tenant(LogicalClusterId("lkc-000001"), limits=TenantLimits(connection_attempts_per_second=20.0))


def breached(door: Admission, times: int, now: float, *, key: str = "k", address: str = HERE) -> None:
    for _ in range(times):
        door.breached(address, TENANT.id, key, now)


def test_breaches_within_the_bound_delay_no_login() -> None:
    door = Admission(Bounds(breaches_per_key=3))
    breached(door, 3, 100.0)

    assert [door.login_wait(HERE, "k", 100.0) for _ in range(5)] == [0.0] * 5


def test_logins_after_breaches_take_turns_and_each_breach_doubles_the_time_between_them() -> None:
    door = Admission(Bounds(breaches_per_key=3, breach_wait_seconds=10.0))

    breached(door, 4, 100.0)
    first = [door.login_wait(HERE, "k", 100.0) for _ in range(3)]
    breached(door, 1, 101.0)
    second = [door.login_wait(HERE, "k", 101.0) for _ in range(3)]
    breached(door, 20, 103.0)
    third = [door.login_wait(HERE, "k", 103.0) for _ in range(7)]

    assert first == [0.0, 0.25, 0.5]
    assert second == [0.0, 0.5, 1.0]
    assert third == [
        0.0,
        2.0,
        4.0,
        6.0,
        8.0,
        10.0,
        None,
    ]  # any number of connections gets a login every two seconds


def test_other_keys_and_other_addresses_are_not_delayed() -> None:
    door = Admission(Bounds(breaches_per_key=3))
    breached(door, 9, 100.0)
    assert door.login_wait(HERE, "k", 100.0) == 0.0
    assert door.login_wait(HERE, "k", 100.0) == 1.0

    assert [door.login_wait(HERE, "other", 100.0) for _ in range(3)] == [0.0] * 3
    assert [door.login_wait(ELSEWHERE, "k", 100.0) for _ in range(3)] == [0.0] * 3


def test_breaches_are_forgotten_after_a_minute() -> None:
    door = Admission(Bounds(breaches_per_key=3))
    breached(door, 9, 100.0)
    assert [door.login_wait(HERE, "k", 159.0) for _ in range(2)] == [0.0, 1.0]

    assert [door.login_wait(HERE, "k", 161.0) for _ in range(2)] == [0.0, 0.0]


def test_a_tenant_that_breaks_limits_with_many_keys_logs_in_at_a_tenth_of_its_rate() -> None:
    door = Admission(Bounds(breaches_per_tenant=10))
    other = replace(TENANT, id=LogicalClusterId("lkc-000002"))

    def admitted(tenant: Tenant, now: float) -> int:
        for _ in range(200):
            assert door.admit_connection(ELSEWHERE, now) is None
        return [door.admit_login(tenant, ELSEWHERE, now) for _ in range(200)].count(None)

    for number in range(11):
        breached(door, 1, 100.0, key=f"k{number}", address=f"192.0.2.{number}")

    assert admitted(TENANT, 100.0) == 10  # five seconds of two a second
    assert admitted(other, 100.0) == 100
    assert admitted(TENANT, 200.0) == 100


def test_an_address_that_breaks_limits_before_login_connects_at_a_tenth_of_its_rate() -> None:
    door = Admission(Bounds(breaches_per_tenant=10, attempts_per_address_per_second=10.0))
    for _ in range(11):
        door.breached(HERE, "", "", 100.0)

    denials = [door.admit_connection(HERE, 100.0) for _ in range(10)]

    assert denials == [None] * 5 + [Denial.ADDRESS_RATE] * 5
    assert [door.admit_connection(ELSEWHERE, 100.0) for _ in range(10)] == [None] * 10


def test_breaches_at_one_worker_delay_logins_at_both() -> None:
    first, second = doors(Bounds(breaches_per_key=3))
    breached(first, 2, 100.0)
    breached(second, 2, 100.0)

    assert first.login_wait(HERE, "k", 100.0) == 0.0
    assert second.login_wait(HERE, "k", 100.0) == 0.25


async def too_large(access: Access) -> None:
    """Log in, announce a request of a gigabyte, and wait for the connection to close."""
    connection = await Connection.open(*place(access), access.security())
    try:
        connection._writer.write((1 << 30).to_bytes(4) + bytes(100))
        await asyncio.wait([connection._receiver])
    finally:
        await connection.close()


@pytest.mark.kafka
async def test_a_key_that_breaks_limits_logs_in_later_and_others_at_once(
    make_gateway: Callable[..., RunningGateway],
) -> None:
    bounds = Bounds(breaches_per_key=2, breach_wait_seconds=20.0, handshake_seconds=60.0)
    running = await asyncio.to_thread(make_gateway, new_access(), new_access(), bounds=bounds)
    eve, ada = running.accesses
    door, now, address = running.gateway.admission, running.gateway.now, "127.0.0.1"

    await too_large(eve)
    await too_large(eve)
    assert door.login_wait(address, eve.key, now()) == 0.0
    await too_large(eve)  # the third is beyond the bound
    running.do(lambda: breached(door, 20, now(), key=eve.key, address=address))
    for access in (eve, eve, ada):
        async with await Connection.open(*place(access), access.security(), timeout=60.0) as connection:
            await connection.call("DescribeCluster", {})

    delayed = running.do(
        lambda: {tenant: usage.logins_delayed for tenant, usage in running.gateway.usage.items()}
    )
    assert delayed[eve.tenant.id] >= 1  # the second waits four seconds for the first
    assert delayed[ada.tenant.id] == 0
