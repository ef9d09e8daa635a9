"""The gateway's decisions without a socket: login, config, admission, states, host names, placement."""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.balance.replica_placement import PlacementRequest, fits, spread
from penstock.gateway.config import (
    ApiKey,
    Broker,
    GatewayConfig,
    NetworkRules,
    Principal,
    ServiceAccount,
    Tenant,
    TenantLimits,
    revoked_connections,
)
from penstock.gateway.connection.login import authenticate, claimed_key
from penstock.gateway.connection.states import Event, Life, State, advance
from penstock.gateway.limits.admission import Admission, Denial
from penstock.gateway.process.sni_hosts import Host, host_name, parse_host
from penstock.gateway.settings import Bounds
from penstock.model.errors.gateway import EventOutOfPlace
from penstock.model.ids import BrokerId, LogicalClusterId, PhysicalClusterId, ServiceAccountId, Zone

SECRET = "s" * 64
ACCOUNT = ServiceAccountId("sa-000001")
KEY = ApiKey("ABCDEFGH12345678", hashlib.sha256(SECRET.encode()).digest(), ACCOUNT)
TENANT = Tenant(LogicalClusterId("lkc-7hq2mz"), {ACCOUNT: ServiceAccount(ACCOUNT)}, (KEY,))
CONFIG = GatewayConfig(PhysicalClusterId("pkc-000001"), (), (TENANT,))
LOCAL = "127.0.0.1"


def principal() -> Principal:
    principal = authenticate(f"\0{KEY.id}\0{SECRET}".encode(), CONFIG, LOCAL)
    assert principal is not None
    return principal


# Login


def test_the_right_secret_authenticates_its_account() -> None:
    assert (principal().tenant, principal().account, principal().key) == (TENANT.id, ACCOUNT, KEY.id)


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
def test_any_other_token_is_rejected(token: str) -> None:
    assert authenticate(token.encode(), CONFIG, LOCAL) is None


def test_a_token_that_is_not_text_is_rejected() -> None:
    assert authenticate(b"\0\xff\xfe\0\xff", CONFIG, LOCAL) is None


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
def test_a_connection_that_could_not_log_in_again_is_closed(tenant: Tenant | None) -> None:
    changed = replace(CONFIG, tenants=() if tenant is None else (tenant,))

    assert revoked_connections(changed, {7: principal()}) == {7}


def test_an_expired_key_is_left_out_and_its_connection_closed() -> None:
    expiring = replace(CONFIG, tenants=(replace(TENANT, keys=(replace(KEY, expires_ms=5_000),)),))

    assert expiring.without_expired(4_999) is expiring
    assert revoked_connections(expiring.without_expired(4_999), {7: principal()}) == set()
    assert revoked_connections(expiring.without_expired(5_000), {7: principal()}) == {7}
    assert CONFIG.without_expired(1 << 60) is CONFIG


def test_an_unrelated_change_keeps_a_connection_open() -> None:
    changed = replace(CONFIG, tenants=(replace(TENANT, limits=TenantLimits(connections_max=5)),))

    assert revoked_connections(changed, {7: principal()}) == set()


def test_deny_rules_come_first_and_ipv4_mapped_addresses_match() -> None:
    rules = NetworkRules(
        allowed=(ipaddress.ip_network("10.0.0.0/8"),), denied=(ipaddress.ip_network("10.9.0.0/16"),)
    )

    assert rules.admit("10.1.2.3")
    assert rules.admit("::ffff:10.1.2.3")
    assert not rules.admit("10.9.0.1")
    assert not rules.admit("192.0.2.1")
    assert not rules.admit("no address")


# Admission


def test_connections_are_counted_and_released() -> None:
    door = Admission(Bounds(connections_max=2))

    denials = [door.admit_connection(LOCAL, 0.0) for _ in range(3)]
    door.release(LOCAL, None)

    assert denials == [None, None, Denial.GATEWAY_FULL]
    assert door.admit_connection(LOCAL, 0.0) is None
    assert (door.open, door.half_open, door.connections_from(LOCAL)) == (2, 2, 2)


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        (Bounds(half_open_max=1), Denial.HALF_OPEN),
        (Bounds(connections_per_address_max=1), Denial.ADDRESS_FULL),
        (Bounds(attempts_per_address_per_second=0.1), Denial.ADDRESS_RATE),
    ],
)
def test_each_bound_has_a_denial_reason(bounds: Bounds, reason: Denial) -> None:
    door = Admission(bounds)

    assert [door.admit_connection(LOCAL, 0.0), door.admit_connection(LOCAL, 0.0)] == [None, reason]


def test_half_open_connections_of_three_addresses_leave_room_for_others() -> None:
    door = Admission(Bounds(half_open_max=200, half_open_per_address_max=10))

    attacks = [door.admit_connection(f"127.0.0.{2 + n % 3}", n * 0.01) for n in range(1000)]
    honest = [door.admit_connection(f"10.0.0.{n}", 11.0) for n in range(50)]

    assert attacks.count(None) == 100  # half of the places
    assert attacks[-1] is Denial.ADDRESS_HALF_OPEN
    assert honest == [None] * 50
    assert door.half_open == 150


def test_a_host_counts_once_in_all_of_its_ipv6_addresses() -> None:
    door = Admission(Bounds(connections_per_address_max=2))
    addresses = ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", "2001:db8:0:1::3", "2001:db8:0:2::1")

    assert [door.admit_connection(address, 0.0) for address in addresses] == [
        None, None, Denial.ADDRESS_FULL, None,
    ]  # fmt: skip
    assert [door.admit_connection(each, 0.0) for each in ("::ffff:10.0.0.1", "10.0.0.1", "10.0.0.1")] == [
        None, None, Denial.ADDRESS_FULL,
    ]  # fmt: skip


def test_half_open_places_are_returned_at_login_and_at_the_end() -> None:
    door = Admission(Bounds(half_open_max=4, half_open_per_address_max=1))
    assert [door.admit_connection(LOCAL, 0.0) for _ in range(3)] == [None, None, Denial.ADDRESS_HALF_OPEN]

    assert door.admit_login(TENANT, LOCAL, 0.0) is None
    assert door.admit_connection(LOCAL, 0.0) is None
    door.release(LOCAL, TENANT.id)
    door.release(LOCAL, None)
    door.release(LOCAL, None)

    assert (door.open, door.half_open, door.connections_from(LOCAL)) == (0, 0, 0)
    assert [door.admit_connection(LOCAL, 1.0) for _ in range(2)] == [None, None]


def test_failed_logins_of_a_key_slow_it_down_and_no_other() -> None:
    door = Admission(Bounds(failed_logins_per_key=2, failed_login_wait_seconds=3.0))

    waits = [door.failed(LOCAL, KEY.id, 100.0) for _ in range(6)]

    assert waits == [0.0, 0.0, 0.5, 1.0, 2.0, 3.0]
    assert door.failed(LOCAL, "OTHERKEY00000000", 100.0) == 0.0
    assert door.failed("127.0.0.2", KEY.id, 100.0) == 0.0
    assert door.admit_connection(LOCAL, 105.0) is None
    assert door.failed(LOCAL, KEY.id, 111.0) == 0.0


def test_twenty_failed_logins_do_not_lock_out_the_address() -> None:
    door = Admission(Bounds())
    for _ in range(20):
        door.failed(LOCAL, KEY.id, 100.0)

    assert door.admit_connection(LOCAL, 100.0) is None


def test_a_key_is_named_only_if_it_has_the_form_of_one() -> None:
    assert claimed_key(f"\0{KEY.id}\0wrong".encode()) == KEY.id
    for misplaced in (f"\0{SECRET}\0{KEY.id}", f"\0{SECRET[:16]}!\0x", "", "\0\0", "\0" * 5000):
        assert claimed_key(misplaced.encode()) == ""
    assert claimed_key(b"\0\xff\xfe\0\xff") == ""


def test_failed_logins_lock_an_address_out_for_a_while() -> None:
    door = Admission(Bounds(failed_logins_per_address=2, failed_logins_seconds=10.0))
    for _ in range(2):
        door.failed(LOCAL, "", 100.0)

    assert door.admit_connection(LOCAL, 105.0) is Denial.FAILED_LOGINS
    assert door.admit_connection("127.0.0.2", 105.0) is None
    assert door.admit_connection(LOCAL, 111.0) is None


def test_a_tenants_rate_refills() -> None:
    door = Admission(Bounds())
    slow = replace(TENANT, limits=TenantLimits(connection_attempts_per_second=0.2))
    for _ in range(3):
        door.admit_connection(LOCAL, 0.0)

    assert door.admit_login(slow, LOCAL, 0.0) is None
    assert door.admit_login(slow, LOCAL, 0.0) is Denial.TENANT_RATE
    assert door.admit_login(slow, LOCAL, 5.0) is None


# Connection states


def test_a_connection_from_accept_to_close() -> None:
    life = Life(LOCAL)
    for event in (Event.ACCEPTED, Event.LOGGED_IN, Event.LINKED, Event.LOGGED_IN_AGAIN, Event.DRAIN):
        life = advance(life, event, principal=principal() if event is Event.LOGGED_IN else None)

    assert life.state is State.DRAINING
    assert life.principal == principal()
    closed = advance(life, Event.CLOSE, close_reason="done")
    assert (closed.state, closed.close_reason) == (State.CLOSED, "done")


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
def test_an_event_out_of_place_is_refused(state: State, event: Event) -> None:
    with pytest.raises(EventOutOfPlace):
        advance(Life(LOCAL, state), event)


def test_reauthentication_as_another_account_is_refused() -> None:
    life = Life(LOCAL, State.SERVING, principal())
    other = replace(principal(), account=ServiceAccountId("sa-000002"))

    with pytest.raises(EventOutOfPlace):
        advance(life, Event.LOGGED_IN_AGAIN, principal=other)


@given(st.lists(st.sampled_from(list(Event)), max_size=20))
def test_nothing_leaves_the_closed_state(events: list[Event]) -> None:
    life = Life(LOCAL, State.CLOSED)
    for event in events:
        try:
            life = advance(life, event)
        except EventOutOfPlace:
            continue

    assert life.state is State.CLOSED


# Host names


def test_host_names_select_tenant_and_broker() -> None:
    for host in (Host("lkc-7hq2mz"), Host("lkc-7hq2mz", 12)):
        assert parse_host(host_name(host, "kafka.example"), "kafka.example") == host


@pytest.mark.parametrize(
    "name",
    [None, "", "kafka.example", "x.kafka.example", "b-lkc-7hq2mz.kafka.example", "a.lkc-7hq2mz.kafka.example",
     "lkc-7hq2mz.other.example", "lkc-7hq2mz_.kafka.example"],
)  # fmt: skip
def test_other_host_names_are_rejected(name: str | None) -> None:
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

    placed = spread(PlacementRequest(TENANT.id, "orders", first, count, replicas, brokers))

    if replicas > len(brokers):
        assert placed is None
        return
    assert placed is not None
    assert len(placed) == count
    assert fits(placed, brokers)


def test_leaders_take_turns() -> None:
    brokers = tuple(Broker(BrokerId(n), Zone("abc"[n]), "h", 1, 0) for n in range(3))

    placed = spread(PlacementRequest(TENANT.id, "orders", 0, 6, 3, brokers))

    assert placed is not None
    assert sorted(replicas[0] for replicas in placed) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("assignment", [[[9]], [[0, 0]], [[]], [[0, 3]]])
def test_an_assignment_outside_the_brokers_or_with_two_replicas_in_a_zone_does_not_fit(
    assignment: list[list[int]],
) -> None:
    brokers = [Broker(BrokerId(n), Zone("abca"[n]), "h", 1, 0) for n in range(4)]

    assert not fits(assignment, brokers)
