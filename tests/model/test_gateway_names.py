"""Which of two gateways has a name, and which addresses tenants get."""

from __future__ import annotations

from dataclasses import replace

from penstock.model.events import GatewayHeartbeat
from penstock.model.gateway_names import BOOTSTRAP_ADDRESSES_MAX, LEASE_MS, GatewayNames, bootstrap_for
from penstock.model.ids import PhysicalClusterId

HERE = GatewayHeartbeat(
    cluster=PhysicalClusterId("pkc-000001"),
    gateway="gw-1",
    instance="host-1:gateway.yaml",
    incarnation="a",
    time_ms=0,
    started_ms=0,
    bootstrap="gw.example.com:9093,gw.example.com:9094",
)
ELSEWHERE = replace(HERE, instance="host-2:gateway.yaml", incarnation="b")


def test_a_name_belongs_to_the_first_while_its_heartbeats_go_on() -> None:
    names = GatewayNames()
    names.apply(HERE, 1_000)
    names.apply(ELSEWHERE, 2_000)
    names.apply(HERE, 3_000)

    assert names.contender(HERE) is None
    assert names.contender(ELSEWHERE) == HERE


def test_a_killed_gateway_loses_its_name_when_its_lease_ends() -> None:
    names = GatewayNames()
    names.apply(HERE, 1_000)
    names.apply(ELSEWHERE, 1_000 + LEASE_MS)
    assert names.contender(ELSEWHERE) == HERE

    names.apply(ELSEWHERE, 1_001 + LEASE_MS)

    assert names.contender(ELSEWHERE) is None
    assert names.contender(HERE) == ELSEWHERE  # it ends when it comes back


def test_a_drained_gateway_gives_its_name_up_at_once() -> None:
    names = GatewayNames()
    names.apply(HERE, 1_000)
    names.apply(replace(HERE, stopped=True), 1_500)
    names.apply(ELSEWHERE, 1_600)

    assert names.contender(ELSEWHERE) is None


def test_a_successor_on_the_same_host_keeps_the_name_while_its_predecessor_drains() -> None:
    successor = replace(HERE, incarnation="c", started_ms=5_000)
    names = GatewayNames()
    names.apply(HERE, 1_000)
    names.apply(successor, 6_000)
    names.apply(replace(HERE, stopped=True), 7_000)

    assert names.holders["gw-1"].heartbeat == successor
    assert names.contender(HERE) is None


def test_hosts_that_share_a_name_are_different_instances() -> None:
    """As machines do that were made from one image."""
    one, other = replace(HERE, boot="b1"), replace(HERE, boot="b2", incarnation="b")
    names = GatewayNames()
    names.apply(one, 1_000)
    names.apply(other, 2_000)

    assert (names.contender(one), names.contender(other)) == (None, one)
    assert names.contender(replace(HERE, incarnation="c")) is None  # of an earlier version

    names.apply(other, 1_001 + LEASE_MS)  # or the same host, after it was restarted
    assert names.contender(other) is None


def test_gateways_behind_one_load_balancer_are_listed_once() -> None:
    other = replace(ELSEWHERE, gateway="gw-2", bootstrap=HERE.bootstrap)
    third = replace(ELSEWHERE, gateway="gw-3", bootstrap="gw3.example.com:9093")

    addresses = bootstrap_for("lkc-000001", [HERE, other, third])

    assert addresses == "gw.example.com:9093,gw3.example.com:9093,gw.example.com:9094"


def test_with_sni_each_tenant_has_its_own_address_and_there_are_not_too_many() -> None:
    sni = replace(HERE, bootstrap="", domain="kafka.example.com", port=9092)
    assert bootstrap_for("lkc-000001", [sni, sni]) == "lkc-000001.kafka.example.com:9092"

    many = replace(HERE, bootstrap=",".join(f"gw:{port}" for port in range(9000, 9100)))
    assert len(bootstrap_for("lkc-000001", [many]).split(",")) == BOOTSTRAP_ADDRESSES_MAX
    assert bootstrap_for("lkc-000001", []) == ""
