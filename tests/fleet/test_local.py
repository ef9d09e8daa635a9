"""The fleet under one home: what it takes to start it, and to look at it later."""

from __future__ import annotations

import signal
from collections import namedtuple
from typing import TYPE_CHECKING

import pytest

from penstock.fleet import local as module
from penstock.fleet.layout import Layout
from penstock.fleet.local import check_room, remember_spec, remembered_document, watched_fleet
from penstock.fleet.readiness import Answer, Prober, wait_until_ready
from penstock.model.errors.fleet import (
    DiskFull,
    NodeFailed,
    NodeUnknown,
    NotReady,
    NotRunning,
    PlatformKeyLost,
)
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable
from tests.ground.fleet import wait_for
from tests.ground.java import fake_fleet

if TYPE_CHECKING:
    from pathlib import Path

TWO = ({"name": "east", "brokers": 1}, {"name": "west", "brokers": 2})


def test_a_node_is_found_by_its_name(tmp_path: Path) -> None:
    fleet = fake_fleet(tmp_path)

    assert fleet.node("b1").full_name == fleet.node("home/b1").full_name == "home/b1"


def test_an_unknown_node_is_answered_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(NodeUnknown) as caught:
        fake_fleet(tmp_path).node("b9")

    assert str(caught.value) == "there is no node 'b9' in this fleet (PEN-2017)"
    assert caught.value.advice == "Its nodes are: c1001, b1."


def test_where_two_clusters_have_a_node_of_one_name_it_takes_the_clusters_name(tmp_path: Path) -> None:
    fleet = fake_fleet(tmp_path, *TWO)

    assert fleet.node("west/b1").cluster.spec.name == "west"
    assert fleet.node("b2").full_name == "west/b2"
    with pytest.raises(NodeUnknown) as caught:
        fleet.node("b1")
    assert caught.value.advice == "Its nodes are: east/c1001, east/b1, west/c1001, west/b1, b2."


def test_two_clusters_of_one_fleet_never_share_a_port(tmp_path: Path) -> None:
    fleet = fake_fleet(tmp_path, *TWO)

    ports = [port for node in fleet.nodes for port in node.spec.ports.values()]
    assert len(set(ports)) == len(ports)


async def test_nodes_of_one_name_in_two_clusters_are_waited_for_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(prober: Prober) -> Answer:
        return Answer(ready=True)

    monkeypatch.setattr(Prober, "ask", ask)
    told: list[str] = []

    nodes = fake_fleet(tmp_path, *TWO).nodes
    await wait_until_ready(nodes, told=lambda node: told.append(node.full_name))

    assert sorted(told) == sorted(node.full_name for node in nodes)


async def test_nodes_that_do_not_answer_in_time_are_named_with_the_reason(tmp_path: Path) -> None:
    fleet = fake_fleet(tmp_path)
    await fleet.prepare()
    node = fleet.node("b1")
    await node.start()
    try:
        with pytest.raises(NotReady) as caught:
            await wait_until_ready([node], seconds=2.0)
    finally:
        await node.stop()

    assert caught.value.message.startswith("home/b1 not ready after 2 s: home/b1: 127.0.0.1:")
    assert "cannot connect" in caught.value.message
    assert "penstock status" in caught.value.advice


async def test_a_node_that_is_killed_while_it_starts_is_named_with_the_signal(tmp_path: Path) -> None:
    fleet = fake_fleet(tmp_path)
    await fleet.prepare()
    node = fleet.node("b1")
    await node.start()
    identity = node.running()
    assert identity is not None
    identity.signal(signal.SIGKILL)
    wait_for(lambda: node.running() is None, what="its end")

    with pytest.raises(NodeFailed, match="b1 ended with signal 9 before it was ready"):
        await wait_until_ready([node])


def test_a_home_that_was_never_used_has_nothing_running_and_stays_untouched(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "home")

    with pytest.raises(NotRunning, match=f"nothing is running under {layout.home}"):
        watched_fleet(layout)

    assert not layout.home.exists()


def test_a_fleet_is_remembered_as_it_was_asked_for(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert remembered_document(layout) is None

    remember_spec(layout, {"clusters": [{"brokers": 2}]})

    assert remembered_document(layout) == {"clusters": [{"brokers": 2}]}


def test_a_damaged_memory_is_named(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text("{")

    with pytest.raises(SettingsUnreadable, match=r"fleet\.json: cannot be read"):
        watched_fleet(Layout(tmp_path))


def test_a_disk_without_room_is_named_with_what_is_there_and_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 10**8, 10**8))

    with pytest.raises(DiskFull) as caught:
        check_room(tmp_path)

    assert str(caught.value) == f"{tmp_path} has 100 MB free, a fleet needs 512 MB to start (PEN-2016)"
    assert "PENSTOCK_HOME" in caught.value.advice


def test_a_home_with_a_comma_is_refused_because_kafka_would_split_it(tmp_path: Path) -> None:
    with pytest.raises(SettingInvalid, match="expected a path without commas"):
        fake_fleet(tmp_path / "a,b")

    assert not (tmp_path / "a,b" / "home").exists()


def test_the_certificate_of_a_node_is_made_only_where_there_is_tls(tmp_path: Path) -> None:
    plain = fake_fleet(tmp_path / "plain")
    secured = fake_fleet(tmp_path / "secured", {"brokers": 1, "tls": True})
    for fleet in (plain, secured):
        fleet.node("b1").layout.root.mkdir(parents=True)
    now = module.dt.datetime.now(module.dt.UTC)

    assert not plain.certify(plain.node("b1"), now=now)
    assert secured.certify(secured.node("b1"), now=now)
    assert not secured.certify(secured.node("b1"), now=now)


def test_without_the_key_its_data_was_made_with_a_fleet_is_not_started(tmp_path: Path) -> None:
    fleet = fake_fleet(tmp_path, {"brokers": 1})
    meta = fleet.node("b1").layout.meta
    meta.parent.mkdir(parents=True)
    meta.touch()
    fleet.layout.platform_key.unlink()

    with pytest.raises(PlatformKeyLost, match="b1 holds data whose passwords come from it"):
        fake_fleet(tmp_path, {"brokers": 1})

    assert not fleet.layout.platform_key.exists()
