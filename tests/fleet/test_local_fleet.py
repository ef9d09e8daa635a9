"""The embedded fleet below one home: opening, preparing and loading it."""

from __future__ import annotations

import datetime as dt
import shutil
import signal
from collections import namedtuple
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import (
    check_disk_space,
    load_fleet,
    load_fleet_document,
    open_fleet,
    save_fleet_document,
)
from penstock.fleet.readiness import Prober, ProbeResult, wait_until_ready
from penstock.fleet.spec_file import parse_fleet
from penstock.model.errors.fleet import (
    DiskFull,
    NodeFailed,
    NodeUnknown,
    NotReady,
    NotRunning,
    PlatformKeyLost,
)
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable
from penstock.model.errors.tier import PluginMissing
from tests.harness.fleet import wait_for
from tests.harness.java import fake_fleet, fake_runtime

if TYPE_CHECKING:
    from pathlib import Path

TWO = ({"name": "east", "brokers": 1}, {"name": "west", "brokers": 2})


def test_nodes_are_looked_up_by_name(tmp_path: Path) -> None:
    fleet = fake_fleet(tmp_path)

    assert fleet.node("b1").full_name == fleet.node("home/b1").full_name == "home/b1"


def test_an_unknown_node_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(NodeUnknown) as caught:
        fake_fleet(tmp_path).node("b9")

    assert str(caught.value) == "there is no node 'b9' in this fleet (PEN-2017)"
    assert caught.value.advice == "Its nodes are: c1001, b1."


def test_an_ambiguous_node_name_needs_the_cluster_name(tmp_path: Path) -> None:
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


async def test_nodes_with_the_same_name_in_two_clusters_are_both_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def probe(prober: Prober) -> ProbeResult:
        return ProbeResult(ready=True)

    monkeypatch.setattr(Prober, "probe", probe)
    ready: list[str] = []

    nodes = fake_fleet(tmp_path, *TWO).nodes
    await wait_until_ready(nodes, on_ready=lambda node: ready.append(node.full_name))

    assert sorted(ready) == sorted(node.full_name for node in nodes)


async def test_nodes_that_are_not_ready_in_time_are_named_with_the_reason(tmp_path: Path) -> None:
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

    with pytest.raises(NodeFailed, match="b1 exited with signal 9 before it was ready"):
        await wait_until_ready([node])


def test_loading_a_fleet_from_an_unused_home_is_an_error_and_creates_nothing(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "home")

    with pytest.raises(NotRunning, match=f"no fleet is running under {layout.home}"):
        load_fleet(layout)

    assert not layout.home.exists()


def test_the_fleet_document_is_saved_and_loaded(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert load_fleet_document(layout) is None

    save_fleet_document(layout, {"clusters": [{"brokers": 2}]})

    assert load_fleet_document(layout) == {"clusters": [{"brokers": 2}]}


def test_a_damaged_fleet_document_is_named(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text("{")

    with pytest.raises(SettingsUnreadable, match=r"fleet\.json: cannot be read"):
        load_fleet(Layout(tmp_path))


def test_a_full_disk_is_an_error_with_free_and_needed_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 10**8, 10**8))

    with pytest.raises(DiskFull) as caught:
        check_disk_space(tmp_path)

    assert str(caught.value) == f"{tmp_path} has 100 MB free; a fleet needs 512 MB to start (PEN-2016)"
    assert "PENSTOCK_HOME" in caught.value.advice


def test_a_home_with_a_comma_is_rejected_because_kafka_would_split_it(tmp_path: Path) -> None:
    with pytest.raises(SettingInvalid, match="expected a path without commas"):
        fake_fleet(tmp_path / "a,b")

    assert not (tmp_path / "a,b" / "home").exists()


def test_a_certificate_is_issued_only_with_tls(tmp_path: Path) -> None:
    plain = fake_fleet(tmp_path / "plain")
    secured = fake_fleet(tmp_path / "secured", {"brokers": 1, "tls": True})
    for fleet in (plain, secured):
        fleet.node("b1").layout.root.mkdir(parents=True)
    now = dt.datetime.now(dt.UTC)

    assert not plain.ensure_certificate(plain.node("b1"), now=now)
    assert secured.ensure_certificate(secured.node("b1"), now=now)
    assert not secured.ensure_certificate(secured.node("b1"), now=now)


def test_a_fleet_whose_platform_key_is_lost_is_not_started(tmp_path: Path) -> None:
    fleet = fake_fleet(tmp_path, {"brokers": 1})
    meta = fleet.node("b1").layout.meta
    meta.parent.mkdir(parents=True)
    meta.touch()
    fleet.layout.platform_key.unlink()

    with pytest.raises(PlatformKeyLost, match="the data of b1 derive from it"):
        fake_fleet(tmp_path, {"brokers": 1})

    assert not fleet.layout.platform_key.exists()


def test_tiering_without_its_plugin_is_refused_before_anything_is_created(tmp_path: Path) -> None:
    runtime = fake_runtime(tmp_path)
    bare = replace(runtime, jars=replace(runtime.jars, plugin=None))
    layout = Layout(tmp_path / "home")

    with pytest.raises(PluginMissing, match="'home'"):
        open_fleet(parse_fleet({"clusters": [{"port": 0}]}), layout, bare)
    assert not layout.home.exists()

    fleet = open_fleet(parse_fleet({"clusters": [{"port": 0, "tier": {"store": "none"}}]}), layout, bare)
    assert fleet.nodes
