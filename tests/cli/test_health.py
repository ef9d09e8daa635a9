"""`penstock health` against a control plane in memory."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.cli.local import status_data
from penstock.cli.operator.health import seconds_of
from penstock.cli.operator.health_drill import _check
from penstock.fleet.node_watch import NodeState
from penstock.fleet.status import FleetStatus, NodeStatus
from penstock.health.mitigation import Step
from penstock.model.errors.health import DrillRefused
from penstock.model.errors.settings import UsageInvalid
from tests.control.test_mitigations import begin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.platform.control_client import ControlClient
    from tests.control.in_memory_plane import InMemoryPlane
    from tests.harness.command import CommandResult


class Control:
    """A control plane with these brokers, by zone; in another cluster broker 1 is always down."""

    def __init__(self, *brokers: tuple[str, str, str]) -> None:
        self._brokers = [
            {"broker": number, "health": health, "steps": [], "zone": zone, "states": [state]}
            for number, (health, zone, state) in enumerate(brokers, 1)
        ]

    def get(self, path: str) -> Any:
        assert path == "/health"
        other = [{"broker": 1, "health": "down", "steps": []}]
        return [
            {"physical_cluster": "pkc-adopted", "brokers": other},
            {"physical_cluster": "pkc-000000", "brokers": self._brokers},
        ]


A, B, DOWN = ("healthy", "a", "normal"), ("healthy", "b", "normal"), ("down", "b", "normal")
DEMOTED = ("healthy", "a", "demoted")


@pytest.mark.parametrize(
    ("brokers", "seconds", "reason"),
    [
        ((), 30.0, "health does not judge it"),
        ((A,), 30.0, "it is the only one"),
        ((A, DOWN), 30.0, "broker 2 is down"),
        ((A, DEMOTED, B), 30.0, "it is the last of zone a that may lead"),
        ((A, B), 0.0, "0 s is not between"),
        ((A, B), 601.0, "601 s is not between"),
    ],
)
def test_a_drill_needs_a_healthy_cluster_and_an_end(
    brokers: tuple[tuple[str, str, str], ...], seconds: float, reason: str
) -> None:
    with pytest.raises(DrillRefused, match=reason):
        _check(cast("ControlClient", Control(*brokers)), "pkc-000000", 1, seconds)
    _check(cast("ControlClient", Control(A, B)), "pkc-000000", 1, 30.0)


def test_the_health_of_brokers_is_a_column_of_the_status() -> None:
    node = NodeStatus("home", "b2", "broker", "b", NodeState.READY, "", "", 1, 1.0, 1.0, 0, "")
    seen = FleetStatus("home", 1, {}, (node,))
    data = status_data(seen, [], [], {("home", "b2"): "slow"})
    assert data["nodes"][0]["health"] == "slow"
    assert status_data(seen, [])["nodes"][0]["health"] is None


def test_durations_have_a_unit() -> None:
    assert (seconds_of("30m"), seconds_of("1.5h"), seconds_of("1d")) == (1800, 5400, 86400)
    for wrong in ("30", "h", "1w"):
        with pytest.raises(UsageInvalid):
            seconds_of(wrong)


def test_show_hold_set_and_incidents(
    plane: InMemoryPlane, here: Callable[..., CommandResult], tmp_path: Path
) -> None:
    assert here("health", "set", "auto", "--action", "exclude=advise", "--target", "0.999").code == 0
    assert here("health", "set").code == 2
    assert here("health", "set", "--action", "exclude").code == 2
    assert here("health", "hold", "2", "--for", "4h", "--reason", "disk").code == 0
    shown = here("health", "show")
    assert (shown.code, "held by an operator: disk" in shown.out) == (0, True)
    assert here("health", "release", "2").code == 0
    assert "broker 2 is unknown" in here("health", "explain", "2").out
    assert "99.90% promised" in here("health", "slo").out
    assert "no incidents" in here("health", "incidents", "list").out
    assert here("health", "incidents", "show", "inc-0").code == 3

    begin(plane, Step.DEMOTE)
    (row,) = here("health", "incidents", "list", "-o", "json").data
    assert here("health", "incidents", "ack", row["id"], "--note", "mine").code == 0
    assert "acknowledged" in here("health", "incidents", "show", row["id"]).out
    assert here("health", "incidents", "bundle", row["id"], "--to", "one.tar.gz").code == 0
    with tarfile.open(tmp_path / "one.tar.gz") as archive:
        names = {each.rpartition("/")[2] for each in archive.getnames()}
    assert {"incident.json", "evidence.json", "slo.json", "audit.json"} <= names
    assert here("health", "incidents", "resolve", row["id"]).code == 0
    assert here("health", "incidents", "resolve", row["id"]).code != 0
