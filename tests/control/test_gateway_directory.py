"""Which registered gateways live, and which addresses tenants get from them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from penstock.control.gateways.gateway_directory import GatewayDirectory, GatewayState
from penstock.kafka.admin.partitions import TopicPartition
from penstock.model.events import GatewayHeartbeat
from penstock.model.gateway_names import HEARTBEAT_BYTES_MAX, LEASE_MS, NAMES_MAX
from penstock.model.ids import PhysicalClusterId
from penstock.wire.records import Record
from tests.control.in_memory_control import PHYSICAL, InMemoryControl, physical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kafka.client import Client

ONE = GatewayHeartbeat(
    cluster=PhysicalClusterId(PHYSICAL),
    gateway="gw-1",
    instance="host-1:gateway.yaml",
    incarnation="a",
    time_ms=0,
    started_ms=0,
    bootstrap="gw-1.example.com:9001",
    tls=True,
)
TWO = replace(ONE, gateway="gw-2", instance="host-2:gateway.yaml", bootstrap="gw-2.example.com:9001")


class Clock:
    seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def records(*heartbeats: GatewayHeartbeat, age_ms: int = 0) -> Sequence[Record]:
    now = int(time.time() * 1000) - age_ms
    return [Record(n, now, one.key, one.to_bytes()) for n, one in enumerate(heartbeats)]


def test_a_silent_gateway_is_stale_and_its_address_is_no_longer_given_out() -> None:
    clock = Clock()
    directory = GatewayDirectory(clock)
    reader = directory.reader(PHYSICAL, cast("Client", None))
    assert isinstance(reader.partition, TopicPartition)
    tenant = InMemoryControl.with_cells(1).cluster("shop")
    reader._apply(records(ONE, TWO))  # what `run` calls
    assert directory.bootstrap(tenant, physical()) == "gw-1.example.com:9001,gw-2.example.com:9001"

    clock.seconds += LEASE_MS / 1000 + 1
    reader._apply(records(TWO))

    assert {g.heartbeat.gateway: g.state for g in directory.all()} == {"gw-1": "stale", "gw-2": "live"}
    assert directory.bootstrap(tenant, physical()) == "gw-2.example.com:9001"
    assert directory.uses_tls(PHYSICAL)
    reader._apply(records(replace(TWO, stopped=True)))
    assert directory.bootstrap(tenant, physical()) == "gw-1.example.com:9001"  # it may come back
    assert directory.bootstrap(tenant, physical(bootstrap="{cluster}.k:9092")) == f"{tenant.id}.k:9092"


def test_a_gateway_that_starts_is_not_live_before_it_has_an_address() -> None:
    directory = GatewayDirectory(Clock())
    reader = directory.reader(PHYSICAL, cast("Client", None))
    tenant = InMemoryControl.with_cells(1).cluster("shop")
    claim = replace(ONE, bootstrap="", tls=False)

    reader._apply(records(claim))
    states = [each.state for each in directory.all()]
    assert (states, directory.bootstrap(tenant, physical())) == (["starting"], "")
    reader._apply(records(ONE))
    assert [each.state for each in directory.all()] == ["live"]

    # Restarted: tenants keep the address of before, or get those of gateways that serve.
    reader._apply(records(replace(claim, incarnation="b", started_ms=9)))
    assert [each.state for each in directory.all()] == ["starting"]
    assert (directory.bootstrap(tenant, physical()), directory.uses_tls(PHYSICAL)) == (ONE.bootstrap, True)
    reader._apply(records(TWO))
    assert directory.bootstrap(tenant, physical()) == TWO.bootstrap


def test_heartbeats_of_long_ago_do_not_make_a_gateway_live() -> None:
    directory = GatewayDirectory(Clock())
    reader = directory.reader(PHYSICAL, cast("Client", None))

    reader._apply([*records(ONE, age_ms=3_600_000), Record(9, 0, b"x", b"unreadable")])

    (gateway,) = directory.all()
    assert gateway.state is GatewayState.STALE
    assert 3_500 < gateway.silent_seconds < 4_000
    reader._apply([Record(10, 0, ONE.key, None)])
    assert directory.all() == []


def test_a_broker_whose_clock_is_behind_makes_no_gateway_stale() -> None:
    directory = GatewayDirectory(Clock())
    reader = directory.reader(PHYSICAL, cast("Client", None))
    reader.end = reader.position  # it has read everything there was

    reader._apply(records(ONE, age_ms=3 * LEASE_MS))

    assert [each.state for each in directory.all()] == [GatewayState.LIVE]


def test_records_that_no_gateway_writes_leave_the_others_as_they_are() -> None:
    """A stolen gateway credential can write anything to this topic."""
    directory = GatewayDirectory(Clock())
    reader = directory.reader(PHYSICAL, cast("Client", None))
    elsewhere = replace(ONE, cluster=PhysicalClusterId("pkc-000001"), gateway="gw-3")
    unwritable = TWO.to_bytes().replace(b"gw-2.example.com", rb"\ud800")

    reader._apply(
        [
            *records(ONE, elsewhere),
            Record(2, 0, b"\xff", None),
            Record(3, 0, None, None),
            Record(4, 0, TWO.key, unwritable),
            *records(replace(TWO, bootstrap="b" * HEARTBEAT_BYTES_MAX)),
        ]
    )

    assert [each.heartbeat for each in directory.all()] == [ONE]


def test_what_is_remembered_of_gateways_is_bounded() -> None:
    directory = GatewayDirectory(Clock())
    reader = directory.reader(PHYSICAL, cast("Client", None))

    reader._apply(records(*(replace(ONE, gateway=f"gw-{number}") for number in range(NAMES_MAX + 9))))

    assert len(directory.all()) == NAMES_MAX
    assert len(directory._clusters[PHYSICAL]._seen) == NAMES_MAX
    reader._apply([Record(0, 0, b"gw-7", None)])
    assert len(directory._clusters[PHYSICAL]._seen) == NAMES_MAX - 1


def test_gateways_that_are_gone_leave_their_places_to_new_ones() -> None:
    """With random names, every restart leaves a name behind."""
    directory = GatewayDirectory(Clock())
    reader = directory.reader(PHYSICAL, cast("Client", None))
    gone = [replace(ONE, gateway=f"gw-{number}") for number in range(NAMES_MAX - 2)]
    reader._apply(records(*gone, age_ms=2 * LEASE_MS))
    reader._apply(records(replace(ONE, gateway="stopped", stopped=True), replace(ONE, gateway="live")))
    directory.log_changes()

    reader._apply(records(replace(ONE, gateway="new"), replace(ONE, gateway="newer")))

    names = {each.heartbeat.gateway for each in directory.all()}
    assert (len(names), names >= {"live", "new", "newer"}) == (NAMES_MAX, True)
    assert names.isdisjoint({"stopped", "gw-0"})
    assert directory._clusters[PHYSICAL]._logged.keys() <= names
