"""What is fixed at the first start of a cluster, and what may change later."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from penstock.fleet.cluster_record import (
    AUTOMATIC_PORTS,
    Cluster,
    check_ports_free,
    load_cluster,
    load_or_create_cluster,
    new_kafka_uuid,
)
from penstock.fleet.layout import Layout
from penstock.fleet.spec import ClusterSpec, Listener
from penstock.fleet.spec_file import parse_fleet
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


def loaded(layout: Layout, *, running: bool = False, seed: int = 1, **keys: Any) -> Cluster:
    return load_or_create_cluster(spec(**keys), layout, Random(seed), running=running)


def formatted(layout: Layout, cluster: Cluster, *names: str) -> None:
    """As if the storage of the nodes had been formatted."""
    for node in cluster.spec.nodes:
        if not names or node.name in names:
            meta = layout.node(cluster.spec.name, node.name).meta
            meta.parent.mkdir(parents=True, exist_ok=True)
            meta.touch()


def ports(cluster: Cluster) -> list[int]:
    return [port for node in cluster.spec.nodes for port in node.ports.values()]


def test_an_existing_cluster_is_the_same_the_next_time(layout: Layout) -> None:
    first = loaded(layout, seed=1)
    formatted(layout, first)

    assert loaded(layout, seed=2) == first
    assert load_cluster(spec(), layout) == first


def test_a_cluster_that_was_never_started_has_no_record(layout: Layout) -> None:
    assert load_cluster(spec(), layout) is None
    assert not any(layout.home.iterdir())


def test_automatic_ports_are_unique_and_not_ephemeral(layout: Layout) -> None:
    chosen = ports(loaded(layout, brokers=40, controllers=3))

    assert len(set(chosen)) == len(chosen)
    assert all(port in AUTOMATIC_PORTS for port in chosen)


def test_automatic_ports_avoid_the_ports_of_other_clusters(layout: Layout) -> None:
    avoid = range(20000, 26000)

    cluster = load_or_create_cluster(spec(), layout, Random(1), running=False, avoid=avoid)

    assert all(port not in avoid for port in ports(cluster))


def test_an_address_without_a_free_port_is_an_error_and_not_a_loop(layout: Layout) -> None:
    with pytest.raises(SettingInvalid, match="expected an address with free ports"):
        load_or_create_cluster(spec(), layout, Random(1), running=False, avoid=AUTOMATIC_PORTS)


def test_an_automatic_port_taken_by_another_process_is_replaced(layout: Layout) -> None:
    first = loaded(layout)
    formatted(layout, first)
    taken = first.spec.brokers[0].ports[Listener.INTERNAL]

    with closing(socket.create_server(("127.0.0.1", taken))):
        second = loaded(layout)

    assert second.spec.brokers[0].ports[Listener.INTERNAL] != taken
    assert second.spec.brokers[1:] == first.spec.brokers[1:]


def test_the_ports_of_running_nodes_stay(layout: Layout) -> None:
    first = loaded(layout)
    formatted(layout, first)
    own = first.spec.brokers[0].ports[Listener.INTERNAL]

    with closing(socket.create_server(("127.0.0.1", own))):  # the node itself
        assert loaded(layout, running=True) == first


def test_a_declared_port_stays(layout: Layout) -> None:
    cluster = loaded(layout, brokers=[{"port": 5000}])

    assert cluster.spec.brokers[0].ports[Listener.INTERNAL] == 5000


def test_brokers_may_be_added(layout: Layout) -> None:
    first = loaded(layout, brokers=1)
    formatted(layout, first)

    second = loaded(layout, brokers=2)

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
def test_nodes_with_storage_cannot_be_redeclared(layout: Layout, change: dict[str, Any]) -> None:
    formatted(layout, loaded(layout))
    before = layout.cluster_record("home").read_text()

    with pytest.raises(FleetChanged) as caught:
        loaded(layout, **change)

    assert caught.value.message.startswith("cluster home was created as b1 (broker in a), b2 (broker in b), ")
    assert "penstock reset" in caught.value.advice
    assert caught.value.exit_code is Exit.USAGE
    assert layout.cluster_record("home").read_text() == before


def test_a_failed_start_keeps_the_cluster_id(layout: Layout) -> None:
    """Its formatter may still be running."""
    assert loaded(layout, seed=2).kafka_id == loaded(layout, seed=3).kafka_id


@pytest.mark.parametrize("change", CHANGES)
def test_a_cluster_without_storage_may_change_freely(layout: Layout, change: dict[str, Any]) -> None:
    loaded(layout)

    assert loaded(layout, **change).spec.nodes


def test_a_partly_formatted_cluster_keeps_its_formatted_nodes_and_its_quorum(layout: Layout) -> None:
    first = loaded(layout, brokers=3)
    formatted(layout, first, "b1")

    assert loaded(layout, brokers=1).kafka_id == first.kafka_id
    with pytest.raises(FleetChanged):
        loaded(layout, brokers=1, controllers=3)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"record": 2}', '{"record": 1, "id": "x"}'])
def test_a_damaged_record_is_an_error_and_stays_unchanged(layout: Layout, content: str) -> None:
    path = layout.cluster_record("home")
    path.parent.mkdir(parents=True)
    path.write_text(content)

    with pytest.raises(SettingsUnreadable, match=r"cluster\.json"):
        loaded(layout)
    with pytest.raises(SettingsUnreadable, match=r"cluster\.json"):
        load_cluster(spec(), layout)

    assert path.read_text() == content


def test_the_record_holds_no_secret(layout: Layout) -> None:
    loaded(layout)

    record = json.loads(layout.cluster_record("home").read_text())
    assert record.keys() == {"record", "id", "kafka_id", "directories", "nodes", "ports"}


def test_a_taken_port_is_an_error_that_names_its_owner() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        cluster = spec(brokers=[{"port": port}])

        with pytest.raises(PortTaken) as caught:
            check_ports_free(cluster, cluster.brokers[0])

    assert f"port {port} (internal of home/b1) is taken by process " in caught.value.message
    assert "--port" in caught.value.advice


def test_free_ports_pass() -> None:
    cluster = spec()

    check_ports_free(cluster, cluster.brokers[0])  # 0 is always free


def test_a_metrics_port_is_checked_on_loopback() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        cluster = spec(brokers=[{"host": "127.0.0.2", "ports": {"metrics": server.getsockname()[1]}}])

        with pytest.raises(PortTaken, match="metrics of home/b1"):
            check_ports_free(cluster, cluster.brokers[0])


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_an_error(host: str) -> None:
    cluster = spec(host=host)

    with pytest.raises(SettingInvalid, match=f"`host` is '{host}', expected an address of this machine"):
        check_ports_free(cluster, cluster.brokers[0])


def test_a_kafka_uuid_never_looks_like_a_flag() -> None:
    uuids = [new_kafka_uuid(Random(seed)) for seed in range(300)]

    assert len(set(uuids)) == 300
    assert all(len(text) == 22 and not text.startswith("-") for text in uuids)
