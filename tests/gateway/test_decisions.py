"""The gateway's decisions, without a socket: who comes in, what a login is, where a connection stands."""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.admission import Denial, Doorkeeper
from penstock.gateway.config import (
    ApiKey,
    Broker,
    GatewayConfig,
    Holder,
    NetworkRules,
    ServiceAccount,
    Tenant,
    TenantLimits,
    closed_by,
)
from penstock.gateway.hosts import Host, host_name, parse_host
from penstock.gateway.login import authenticate
from penstock.gateway.placement import Ask, fits, spread
from penstock.gateway.settings import Bounds
from penstock.gateway.states import Event, Life, State, advance
from penstock.model.errors.gateway import EventOutOfPlace
from penstock.model.ids import BrokerId, LogicalClusterId, PhysicalClusterId, ServiceAccountId, Zone

SECRET = "s" * 64
ACCOUNT = ServiceAccountId("sa-000001")
KEY = ApiKey("ABCDEFGH12345678", hashlib.sha256(SECRET.encode()).digest(), ACCOUNT)
TENANT = Tenant(LogicalClusterId("lkc-7hq2mz"), {ACCOUNT: ServiceAccount(ACCOUNT)}, (KEY,))
CONFIG = GatewayConfig(PhysicalClusterId("pkc-000001"), (), (TENANT,))
HERE = "127.0.0.1"


def holder() -> Holder:
    found = authenticate(f"\0{KEY.id}\0{SECRET}".encode(), CONFIG, HERE)
    assert found is not None
    return found


# Login


def test_the_right_secret_says_whose_connection_it_is() -> None:
    assert (holder().tenant, holder().account, holder().key) == (TENANT.id, ACCOUNT, KEY.id)


@pytest.mark.parametrize(
    "token",
    [
        f"\0{KEY.id}\0wrong",
        f"\0NOSUCHKEY0000000\0{SECRET}",
        f"someone\0{KEY.id}\0{SECRET}",
        f"{KEY.id}\0{SECRET}",
        "",
        "\0\0",
        "\0" * 5000,
        f"\0{KEY.id}\0{SECRET}\0more",
    ],
)
def test_anything_else_is_nobody(token: str) -> None:
    assert authenticate(token.encode(), CONFIG, HERE) is None


def test_bytes_that_are_no_text_are_nobody() -> None:
    assert authenticate(b"\0\xff\xfe\0\xff", CONFIG, HERE) is None


# Configuration


@pytest.mark.parametrize(
    "tenant",
    [
        None,
        replace(TENANT, keys=()),
        replace(TENANT, keys=(replace(KEY, secret_sha256=bytes(32)),)),
        replace(TENANT, accounts={ACCOUNT: ServiceAccount(ACCOUNT, generation=2)}),
        replace(TENANT, accounts={}),
        replace(TENANT, network=NetworkRules(denied=(ipaddress.ip_network("127.0.0.0/8"),))),
    ],
    ids=["no tenant", "no key", "another secret", "new password", "no account", "denied address"],
)
def test_a_connection_that_would_not_be_let_in_again_is_closed(tenant: Tenant | None) -> None:
    changed = replace(CONFIG, tenants=() if tenant is None else (tenant,))

    assert closed_by(changed, {7: holder()}) == {7}


def test_a_change_that_does_not_concern_a_connection_leaves_it_alone() -> None:
    changed = replace(CONFIG, tenants=(replace(TENANT, limits=TenantLimits(connections_max=5)),))

    assert closed_by(changed, {7: holder()}) == set()


def test_network_rules_deny_first_and_know_mapped_addresses() -> None:
    rules = NetworkRules(
        allowed=(ipaddress.ip_network("10.0.0.0/8"),), denied=(ipaddress.ip_network("10.9.0.0/16"),)
    )

    assert rules.admit("10.1.2.3")
    assert rules.admit("::ffff:10.1.2.3")
    assert not rules.admit("10.9.0.1")
    assert not rules.admit("192.0.2.1")
    assert not rules.admit("no address")


# Admission


def test_connections_are_counted_in_and_out_again() -> None:
    door = Doorkeeper(Bounds(connections_max=2))

    told = [door.knock(HERE, 0.0) for _ in range(3)]
    door.left(HERE, None)

    assert told == [None, None, Denial.GATEWAY_FULL]
    assert door.knock(HERE, 0.0) is None
    assert (door.open, door.half_open, door.connections_from(HERE)) == (2, 2, 2)


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        (Bounds(half_open_max=1), Denial.HALF_OPEN),
        (Bounds(connections_per_address_max=1), Denial.ADDRESS_FULL),
        (Bounds(attempts_per_address_per_second=0.1), Denial.ADDRESS_RATE),
    ],
)
def test_each_bound_has_its_reason(bounds: Bounds, reason: Denial) -> None:
    door = Doorkeeper(bounds)

    assert [door.knock(HERE, 0.0), door.knock(HERE, 0.0)] == [None, reason]


def test_failed_logins_lock_an_address_out_for_a_while() -> None:
    door = Doorkeeper(Bounds(failed_logins_per_address=2, failed_logins_seconds=10.0))
    for _ in range(2):
        door.failed(HERE, 100.0)

    assert door.knock(HERE, 105.0) is Denial.FAILED_LOGINS
    assert door.knock("127.0.0.2", 105.0) is None
    assert door.knock(HERE, 111.0) is None


def test_a_tenants_rate_refills() -> None:
    door = Doorkeeper(Bounds())
    slow = replace(TENANT, limits=TenantLimits(connection_attempts_per_second=0.2))
    for _ in range(3):
        door.knock(HERE, 0.0)

    assert door.enter(slow, HERE, 0.0) is None
    assert door.enter(slow, HERE, 0.0) is Denial.TENANT_RATE
    assert door.enter(slow, HERE, 5.0) is None


# A connection's life


def test_a_life_from_accept_to_close() -> None:
    life = Life(HERE)
    for event in (Event.ACCEPTED, Event.LOGGED_IN, Event.LINKED, Event.LOGGED_IN_AGAIN, Event.DRAIN):
        life = advance(life, event, holder=holder() if event is Event.LOGGED_IN else None)

    assert life.state is State.DRAINING
    assert life.holder == holder()
    closed = advance(life, Event.CLOSE, why="done")
    assert (closed.state, closed.why) == (State.CLOSED, "done")


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (State.NEW, Event.LOGGED_IN),
        (State.HANDSHAKE, Event.LINKED),
        (State.HANDSHAKE, Event.LOGGED_IN_AGAIN),
        (State.CLOSED, Event.LINKED),
        (State.LINKING, Event.LOGGED_IN),
    ],
)
def test_what_is_out_of_place_is_refused(state: State, event: Event) -> None:
    with pytest.raises(EventOutOfPlace):
        advance(Life(HERE, state), event)


def test_logging_in_again_as_somebody_else_is_refused() -> None:
    life = Life(HERE, State.SERVING, holder())
    other = replace(holder(), account=ServiceAccountId("sa-000002"))

    with pytest.raises(EventOutOfPlace):
        advance(life, Event.LOGGED_IN_AGAIN, holder=other)


@given(st.lists(st.sampled_from(list(Event)), max_size=20))
def test_nothing_leaves_the_closed_state(events: list[Event]) -> None:
    life = Life(HERE, State.CLOSED)
    for event in events:
        try:
            life = advance(life, event)
        except EventOutOfPlace:
            continue

    assert life.state is State.CLOSED


# Names of hosts


def test_host_names_say_tenant_and_broker() -> None:
    for host in (Host("lkc-7hq2mz"), Host("lkc-7hq2mz", 12)):
        assert parse_host(host_name(host, "kafka.example"), "kafka.example") == host


@pytest.mark.parametrize(
    "name",
    [None, "", "kafka.example", "x.kafka.example", "b-lkc-7hq2mz.kafka.example", "a.lkc-7hq2mz.kafka.example",
     "lkc-7hq2mz.other.example", "lkc-7hq2mz_.kafka.example"],
)  # fmt: skip
def test_other_host_names_are_nobodys(name: str | None) -> None:
    assert parse_host(name, "kafka.example") is None


# Placement


@given(
    zones=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    count=st.integers(1, 20),
    replicas=st.integers(1, 4),
    first=st.integers(0, 5),
)
def test_partitions_are_spread_over_zones_and_brokers(
    zones: list[int], count: int, replicas: int, first: int
) -> None:
    brokers = tuple(
        Broker(BrokerId(10 * zone + n), Zone(f"z{zone}"), "h", 1, 0)
        for zone, size in enumerate(zones)
        for n in range(size)
    )

    placed = spread(Ask(TENANT.id, "orders", first, count, replicas, brokers))

    if replicas > len(brokers):
        assert placed is None
        return
    assert placed is not None
    assert len(placed) == count
    assert fits(placed, brokers)


def test_leaders_take_turns() -> None:
    brokers = tuple(Broker(BrokerId(n), Zone("abc"[n]), "h", 1, 0) for n in range(3))

    placed = spread(Ask(TENANT.id, "orders", 0, 6, 3, brokers))

    assert placed is not None
    assert sorted(replicas[0] for replicas in placed) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("assignment", [[[9]], [[0, 0]], [[]], [[0, 3]]])
def test_what_leaves_the_brokers_or_doubles_a_zone_does_not_fit(assignment: list[list[int]]) -> None:
    brokers = [Broker(BrokerId(n), Zone("abca"[n]), "h", 1, 0) for n in range(4)]

    assert not fits(assignment, brokers)
