"""Brokers are added to and removed from a fleet document."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from penstock.fleet.cluster_record import load_or_create_cluster
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import load_fleet, load_fleet_document, save_fleet_document
from penstock.fleet.resize import (
    add_brokers,
    add_controllers,
    check_growth,
    forget_brokers,
    forget_controllers,
    resized_document,
    stop_brokers,
    stop_controllers,
)
from penstock.fleet.spec import Role
from penstock.fleet.spec_file import parse_fleet
from penstock.model.errors.balance import BrokerStillRunning, GrowthImpossible
from penstock.model.errors.fleet import ClusterUnknown, FleetChanged, NotRunning
from penstock.model.ids import BrokerId, Zone
from penstock.process_identity import this_process, write_identity

if TYPE_CHECKING:
    from pathlib import Path

NEW = {BrokerId(4): Zone("a"), BrokerId(5): Zone("b"), BrokerId(6): Zone("c")}


def fleet_of(path: Path, **shape: Any) -> Layout:
    """One that was settled, and not started."""
    layout, document = Layout(path), {"clusters": [{"port": 0, **shape}]}
    for spec in parse_fleet(document):
        load_or_create_cluster(spec, layout, secrets.SystemRandom(), running=False)
    save_fleet_document(layout, document)
    return layout


def brokers_in(layout: Layout) -> dict[str, str]:
    return {node.name: node.spec.zone for node in load_fleet(layout).nodes if node.spec.is_broker}


def test_a_number_of_brokers_stays_a_number_while_it_describes_them() -> None:
    document = {"clusters": [{"port": 0}]}

    grown = resized_document(document, "home", add=NEW)
    shrunk = resized_document(grown, "home", add={}, remove=[4, 5, 6])

    assert grown == {"clusters": [{"port": 0, "brokers": 6}]}
    assert shrunk == {"clusters": [{"port": 0, "brokers": 3}]}


def test_brokers_with_gaps_are_listed_and_keep_their_ports() -> None:
    document = {"clusters": [{"port": 21000, "brokers": 6, "heap": 200}]}

    after = resized_document(document, "home", add={}, remove=[2])

    before = {node.id: node for node in parse_fleet(document).home.brokers}
    left = parse_fleet(after).home.brokers
    assert [node.id for node in left] == [1, 3, 4, 5, 6]
    assert all(node == before[node.id] for node in left)


def test_a_listed_broker_keeps_what_the_file_declares() -> None:
    listed = [{"zone": "a", "heap": 300}, {"zone": "b", "port": 21500}, {"zone": "c"}]
    document = {"clusters": [{"port": 0, "brokers": listed}]}

    after = resized_document(document, "home", add=NEW)

    before, now = parse_fleet(document).home.brokers, parse_fleet(after).home.brokers
    assert now[:3] == before
    assert [(node.id, node.zone) for node in now[3:]] == list(NEW.items())


def test_adding_brokers_twice_adds_them_once(tmp_path: Path) -> None:
    layout = fleet_of(tmp_path)

    first = add_brokers(layout, "home", NEW)
    again = add_brokers(layout, "home", NEW)

    assert first.cluster == again.cluster
    assert brokers_in(layout) == {"b1": "a", "b2": "b", "b3": "c", "b4": "a", "b5": "b", "b6": "c"}
    ports = [port for node in again.cluster.spec.nodes for port in node.ports.values()]
    assert all(ports)
    assert len(set(ports)) == len(ports)


def test_removed_brokers_are_gone_from_file_record_and_disk(tmp_path: Path) -> None:
    layout = fleet_of(tmp_path)
    before = load_fleet(layout).clusters[0].cluster
    add_brokers(layout, "home", NEW)
    left = layout.node("home", "b4")
    left.data.mkdir(parents=True)
    left.meta.write_text("node.id=4")

    asyncio.run(stop_brokers(layout, "home", [4, 5, 6]))
    forget_brokers(layout, "home", [4, 5, 6])

    assert load_fleet(layout).clusters[0].cluster == before
    assert not left.root.exists()
    assert load_fleet_document(layout) == {"clusters": [{"port": 0, "brokers": 3}]}


def test_a_fleet_can_start_while_a_shrinking_is_half_done(tmp_path: Path) -> None:
    layout = fleet_of(tmp_path)
    add_brokers(layout, "home", NEW)
    for name in ("b1", "b2", "b3", "b4", "b5", "b6"):
        layout.node("home", name).data.mkdir(parents=True)
        layout.node("home", name).meta.write_text("formatted")

    asyncio.run(stop_brokers(layout, "home", [4, 5, 6]))

    (spec,) = parse_fleet(load_fleet_document(layout) or {})
    load_or_create_cluster(spec, layout, secrets.SystemRandom(), running=False)


def test_the_data_of_a_broker_that_runs_is_never_deleted(tmp_path: Path) -> None:
    layout = fleet_of(tmp_path)
    node = layout.node("home", "b4")
    node.root.mkdir(parents=True)
    write_identity(node.record, this_process())

    with pytest.raises(BrokerStillRunning):
        forget_brokers(layout, "home", [4])
    with pytest.raises(BrokerStillRunning):
        add_brokers(layout, "home", NEW)

    assert node.record.exists()
    assert brokers_in(layout).keys() == {"b1", "b2", "b3"}


def test_a_fleet_of_combined_nodes_names_the_reason_and_the_way_out(tmp_path: Path) -> None:
    layout = fleet_of(tmp_path, combined=True, brokers=1, zones=["a"])

    with pytest.raises(GrowthImpossible, match="controllers as well"):
        check_growth(layout, "home")


def test_an_unknown_cluster_and_a_home_without_a_fleet_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnknown):
        add_brokers(fleet_of(tmp_path / "one"), "other", NEW)
    with pytest.raises(NotRunning):
        check_growth(Layout(tmp_path / "none"), "home")


def controllers_in(layout: Layout) -> dict[str, str]:
    return {n.name: n.spec.zone for n in load_fleet(layout).nodes if n.spec.role is Role.CONTROLLER}


def starts(layout: Layout) -> None:
    (spec,) = parse_fleet(load_fleet_document(layout) or {})
    load_or_create_cluster(spec, layout, secrets.SystemRandom(), running=False)


def format_all(layout: Layout) -> None:
    for node in load_fleet(layout).nodes:
        node.layout.data.mkdir(parents=True, exist_ok=True)
        node.layout.meta.write_text("formatted")


def test_controllers_come_and_go_and_the_fleet_can_start_after_each_step(tmp_path: Path) -> None:
    layout, new = fleet_of(tmp_path), {1002: Zone("b"), 1003: Zone("c")}
    before = load_fleet(layout).clusters[0].cluster
    format_all(layout)

    add_controllers(layout, "home", new)
    add_controllers(layout, "home", new)
    starts(layout)
    assert controllers_in(layout) == {"c1001": "a", "c1002": "b", "c1003": "c"}
    format_all(layout)
    asyncio.run(stop_controllers(layout, "home", [1002, 1003]))
    starts(layout)
    forget_controllers(layout, "home", [1002, 1003])
    starts(layout)

    assert load_fleet(layout).clusters[0].cluster == before
    assert not layout.node("home", "c1002").root.exists()
    assert load_fleet_document(layout) == {"clusters": [{"port": 0, "controllers": 1}]}


def test_a_replaced_controller_keeps_its_id_and_zone_and_gets_another_disk(tmp_path: Path) -> None:
    layout = fleet_of(tmp_path, controllers=3)
    format_all(layout)
    before = load_fleet(layout).clusters[0].cluster.directory_ids

    asyncio.run(stop_controllers(layout, "home", [1002]))
    forget_controllers(layout, "home", [1002])
    add_controllers(layout, "home", {1002: Zone("b")})

    assert controllers_in(layout) == {"c1001": "a", "c1002": "b", "c1003": "c"}
    assert not layout.node("home", "c1002").root.exists()
    after = load_fleet(layout).clusters[0].cluster.directory_ids
    assert after == {**before, 1002: ""}


def test_controllers_that_no_command_added_are_refused(tmp_path: Path) -> None:
    layout = fleet_of(tmp_path)
    format_all(layout)
    (spec,) = parse_fleet({"clusters": [{"port": 0, "controllers": 3}]})

    with pytest.raises(FleetChanged):
        load_or_create_cluster(spec, layout, secrets.SystemRandom(), running=False)


def test_a_node_is_stopped_once_its_supervisor_watches_it_no_more(tmp_path: Path) -> None:
    layout = fleet_of(tmp_path, controllers=3)
    write_identity(layout.supervisor_record, this_process(), nodes={"home/c1002": {}})

    with pytest.raises(BrokerStillRunning, match="c1002"):
        asyncio.run(stop_controllers(layout, "home", [1002], seconds=0))
    write_identity(layout.supervisor_record, this_process(), nodes={"home/c1001": {}})
    asyncio.run(stop_controllers(layout, "home", [1002], seconds=0))
