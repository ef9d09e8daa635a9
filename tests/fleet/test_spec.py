"""Names, addresses and shapes of nodes and clusters."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.fleet.spec import ClusterSpec, Listener, NodeSpec, Role, is_loopback
from penstock.fleet.spec_file import parse_fleet
from penstock.model.ids import Zone


def node(host: str = "127.0.0.1", **more: Any) -> NodeSpec:
    ports = {Listener.INTERNAL: 9001, Listener.GATEWAY: 9002, Listener.METRICS: 9003}
    return NodeSpec(1, Role.BROKER, Zone("a"), host, ports, **more)


def cluster(**keys: object) -> ClusterSpec:
    return parse_fleet({"clusters": [keys]}).home


def test_broker_names_begin_with_b_and_controller_names_with_c() -> None:
    assert [n.name for n in cluster(brokers=2).nodes] == ["c1001", "b1", "b2"]


def test_the_address_of_a_node_has_its_advertised_port() -> None:
    spec = node(advertised={Listener.GATEWAY: 443})

    assert spec.address(Listener.GATEWAY) == "127.0.0.1:443"
    assert spec.address(Listener.INTERNAL) == "127.0.0.1:9001"


def test_an_ipv6_address_is_in_brackets() -> None:
    assert node("::1").address(Listener.INTERNAL) == "[::1]:9001"


def test_brokers_are_probed_on_the_internal_and_controllers_on_the_controller_listener() -> None:
    controller, broker = cluster(brokers=1).nodes

    assert controller.probe_listener is Listener.CONTROLLER
    assert broker.probe_listener is Listener.INTERNAL


def test_a_combined_node_is_a_broker_and_a_controller() -> None:
    spec = cluster(combined=True, brokers=1, zones=["a"])

    assert spec.brokers == spec.controllers == spec.nodes


def test_bootstrap_lists_all_brokers_or_for_the_quorum_all_controllers() -> None:
    spec = cluster(port=9000, brokers=2, controllers=1)

    assert spec.bootstrap() == "127.0.0.1:9100,127.0.0.1:9101"
    assert spec.bootstrap(Listener.CONTROLLER) == "127.0.0.1:9000"


@pytest.mark.parametrize(
    ("keys", "shape"),
    [
        ({}, "1 controller + 3 brokers in zones a, b, c"),
        ({"brokers": 1, "zones": ["x"], "controllers": 3}, "3 controllers + 1 broker in zone x"),
        ({"combined": True, "brokers": 1, "zones": ["a"]}, "1 combined node in zone a"),
        ({"combined": True, "brokers": 2, "zones": ["a", "b"]}, "2 combined nodes in zones a, b"),
    ],
)
def test_a_shape_is_described_in_words(keys: dict[str, object], shape: str) -> None:
    assert cluster(**keys).shape == shape


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("kafka-1", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback_hosts_are_recognised(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
