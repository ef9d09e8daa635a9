"""Which nodes are behind the fleet file, and which changes of it a roll can make."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.fleet.local_fleet import load_fleet, load_fleet_document, save_fleet_document
from penstock.fleet.node_generations import (
    adopt_document,
    current_document,
    dynamic_settings,
    generations,
    restore_document,
)
from penstock.model.errors.fleet import NotRollable
from tests.harness.java import fake_fleet

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.fleet.layout import Layout
    from penstock.fleet.node_generations import NodeGeneration

CLUSTER: dict[str, Any] = {"port": 0, "brokers": 1}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    fleet = fake_fleet(tmp_path)
    save_fleet_document(fleet.layout, {"clusters": [CLUSTER]})
    return fleet.layout


def changed(layout: Layout, **values: Any) -> str:
    return adopt_document(layout, {"clusters": [CLUSTER | values]}, where="test")


def broker_of(layout: Layout) -> NodeGeneration:
    (broker,) = [each for each in generations(load_fleet(layout), "home") if each.role == "broker"]
    return broker


def test_another_fleet_file_changes_what_is_desired(layout: Layout) -> None:
    before, old = current_document(layout), broker_of(layout)
    after = changed(layout, heap=300, config={"num.io.threads": 3, "socket.send.buffer.bytes": 9})

    new = broker_of(layout)
    assert old.desired.digest != new.desired.digest
    assert new.desired.parts["socket.send.buffer.bytes"] == "9"
    assert dynamic_settings(layout, "home", before, after) == {"num.io.threads": "3"}
    assert dynamic_settings(layout, "home", after, before) == {"num.io.threads": "4"}
    assert new.running is None
    assert new.behind == ()


def test_an_earlier_fleet_file_can_be_restored(layout: Layout) -> None:
    before = current_document(layout)
    changed(layout, heap=300)
    restore_document(layout, before)
    assert load_fleet_document(layout) == {"clusters": [CLUSTER]}


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"brokers": 2}, "which nodes home has"),
        ({"zones": ["x", "y", "z"]}, "the zone of home/"),
        ({"combined": True}, "which nodes home has"),
        ({"name": "other"}, "which clusters there are"),
        ({"port": 19090}, "the ports of home/"),
        ({"tls": True}, "TLS of home"),
    ],
)
def test_what_a_restart_cannot_change_is_refused(layout: Layout, values: dict[str, Any], what: str) -> None:
    with pytest.raises(NotRollable, match=what):
        changed(layout, **values)
    assert json.loads(layout.fleet_file.read_text()) == {"clusters": [CLUSTER]}
