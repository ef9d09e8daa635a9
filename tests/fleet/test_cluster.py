"""What is settled at the first start, and what may change after it."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from penstock.fleet.cluster import (
    AUTOMATIC_PORTS,
    Cluster,
    check_ports_free,
    new_kafka_uuid,
    recorded,
    settle,
)
from penstock.fleet.layout import Layout
from penstock.fleet.parse import parse_fleet
from penstock.fleet.spec import ClusterSpec, Listener
from penstock.model.errors import Exit
from penstock.model.errors.fleet import FleetChanged, PortTaken
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def spec(**keys: Any) -> ClusterSpec:
    return parse_fleet({"clusters": [{"port": 0} | keys]}).home


def settled(layout: Layout, *, running: bool = False, seed: int = 1, **keys: Any) -> Cluster:
    return settle(spec(**keys), layout, Random(seed), running=running)


def formatted(layout: Layout, cluster: Cluster, *names: str) -> None:
    """As if the nodes' storage had been made."""
    for node in cluster.spec.nodes:
        if not names or node.name in names:
            meta = layout.node(cluster.spec.name, node.name).meta
            meta.parent.mkdir(parents=True, exist_ok=True)
            meta.touch()


def ports(cluster: Cluster) -> list[int]:
    return [port for node in cluster.spec.nodes for port in node.ports.values()]


def test_a_cluster_that_was_made_is_the_same_the_next_time(layout: Layout) -> None:
    first = settled(layout, seed=1)
    formatted(layout, first)

    assert settled(layout, seed=2) == first
    assert recorded(spec(), layout) == first


def test_a_cluster_that_was_never_settled_has_no_record(layout: Layout) -> None:
    assert recorded(spec(), layout) is None
    assert not any(layout.home.iterdir())


def test_automatic_ports_are_all_different_and_none_that_clients_are_lent(layout: Layout) -> None:
    found = ports(settled(layout, brokers=40, controllers=3))

    assert len(set(found)) == len(found)
    assert all(port in AUTOMATIC_PORTS for port in found)


def test_automatic_ports_avoid_those_that_are_given(layout: Layout) -> None:
    avoid = range(20000, 26000)

    cluster = settle(spec(), layout, Random(1), running=False, avoid=avoid)

    assert all(port not in avoid for port in ports(cluster))


def test_an_address_without_a_free_port_is_an_error_and_not_a_loop(layout: Layout) -> None:
    with pytest.raises(SettingInvalid, match="expected an address with free ports"):
        settle(spec(), layout, Random(1), running=False, avoid=AUTOMATIC_PORTS)


def test_an_automatic_port_that_somebody_took_is_replaced(layout: Layout) -> None:
    first = settled(layout)
    formatted(layout, first)
    taken = first.spec.brokers[0].ports[Listener.INTERNAL]

    with closing(socket.create_server(("127.0.0.1", taken))):
        second = settled(layout)

    assert second.spec.brokers[0].ports[Listener.INTERNAL] != taken
    assert second.spec.brokers[1:] == first.spec.brokers[1:]


def test_while_nodes_run_their_ports_stay(layout: Layout) -> None:
    first = settled(layout)
    formatted(layout, first)
    own = first.spec.brokers[0].ports[Listener.INTERNAL]

    with closing(socket.create_server(("127.0.0.1", own))):  # the node itself
        assert settled(layout, running=True) == first


def test_a_given_port_stays_what_was_given(layout: Layout) -> None:
    cluster = settled(layout, brokers=[{"port": 5000}])

    assert cluster.spec.brokers[0].ports[Listener.INTERNAL] == 5000


def test_brokers_may_be_added(layout: Layout) -> None:
    first = settled(layout, brokers=1)
    formatted(layout, first)

    second = settled(layout, brokers=2)

    assert second.kafka_id == first.kafka_id
    assert second.spec.brokers[0] == first.spec.brokers[0]


CHANGES: list[dict[str, Any]] = [
    {"brokers": 2},
    {"controllers": 2},
    {"controllers": [{"id": 1007}]},
    {"zones": ["b", "a", "c"]},
    {"combined": True},
    {"brokers": [{"id": 8}, {}, {}]},
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_storage_cannot_become_something_else(layout: Layout, change: dict[str, Any]) -> None:
    formatted(layout, settled(layout))
    before = layout.cluster_record("home").read_text()

    with pytest.raises(FleetChanged) as caught:
        settled(layout, **change)

    assert caught.value.message.startswith("cluster home was made as b1 (broker in a), b2 (broker in b), ")
    assert "penstock reset" in caught.value.advice
    assert caught.value.exit_code is Exit.USAGE
    assert layout.cluster_record("home").read_text() == before


def test_a_start_that_made_nothing_yet_is_the_same_cluster_the_next_time(layout: Layout) -> None:
    """A formatter may have outlived it, and still be at work."""
    assert settled(layout, seed=2).kafka_id == settled(layout, seed=3).kafka_id


@pytest.mark.parametrize("change", CHANGES)
def test_a_start_that_made_nothing_binds_nobody(layout: Layout, change: dict[str, Any]) -> None:
    settled(layout)

    assert settled(layout, **change).spec.nodes


def test_a_start_that_made_half_binds_to_that_half_and_to_the_quorum(layout: Layout) -> None:
    first = settled(layout, brokers=3)
    formatted(layout, first, "b1")

    assert settled(layout, brokers=1).kafka_id == first.kafka_id
    with pytest.raises(FleetChanged):
        settled(layout, brokers=1, controllers=3)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"record": 2}', '{"record": 1, "id": "x"}'])
def test_a_damaged_record_is_named_and_left_as_it_is(layout: Layout, content: str) -> None:
    path = layout.cluster_record("home")
    path.parent.mkdir(parents=True)
    path.write_text(content)

    for look in (lambda: settled(layout), lambda: recorded(spec(), layout)):
        with pytest.raises(SettingsUnreadable, match=r"cluster\.json"):
            look()

    assert path.read_text() == content


def test_the_record_holds_no_secret(layout: Layout) -> None:
    settled(layout)

    record = json.loads(layout.cluster_record("home").read_text())
    assert record.keys() == {"record", "id", "kafka_id", "directories", "nodes", "ports"}


def test_a_port_that_is_taken_is_named_with_its_owner() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        cluster = spec(brokers=[{"port": port}])

        with pytest.raises(PortTaken) as caught:
            check_ports_free(cluster, cluster.brokers[0])

    assert f"port {port} (internal of home/b1) is taken by process " in caught.value.message
    assert "--port" in caught.value.advice


def test_ports_that_are_free_pass() -> None:
    cluster = spec()

    check_ports_free(cluster, cluster.brokers[0])  # 0 is always free


def test_a_metrics_port_is_looked_at_where_the_agent_listens() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        cluster = spec(brokers=[{"host": "127.0.0.2", "ports": {"metrics": server.getsockname()[1]}}])

        with pytest.raises(PortTaken, match="metrics of home/b1"):
            check_ports_free(cluster, cluster.brokers[0])


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_said_to_be_one(host: str) -> None:
    cluster = spec(host=host)

    with pytest.raises(SettingInvalid, match=f"`host` is '{host}', expected an address of this machine"):
        check_ports_free(cluster, cluster.brokers[0])


def test_a_kafka_uuid_never_looks_like_a_flag() -> None:
    found = [new_kafka_uuid(Random(seed)) for seed in range(300)]

    assert len(set(found)) == 300
    assert all(len(text) == 22 and not text.startswith("-") for text in found)
