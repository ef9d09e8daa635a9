"""Help texts and JSON shapes change only on purpose.

Help texts are in tests/cli/golden; `python -m tests.cli.snapshots` rewrites them. Shapes are in this
file; `python -m pytest tests/cli --inline-snapshot=fix` rewrites them.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import pytest
from inline_snapshot import snapshot

from penstock.fleet.local_fleet import save_fleet_document
from tests.cli.snapshots import GOLDEN, golden_path, help_of, nodes
from tests.harness.java import fake_fleet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.command import CommandResult

NODES = list(nodes())
TINY = {"port": 0, "combined": True, "brokers": 1, "zones": ["a"]}


@pytest.mark.parametrize("words", NODES, ids=lambda words: " ".join(("penstock", *words)))
def test_help_is_what_it_was(words: tuple[str, ...]) -> None:
    path = golden_path(words)
    before = path.read_text().splitlines() if path.exists() else []

    difference = "\n".join(difflib.unified_diff(before, help_of(words).splitlines(), "before", "now", n=1))

    assert not difference, f"{path.name}; if it is meant: python -m tests.cli.snapshots\n{difference}"


def test_no_help_is_kept_of_a_command_that_is_gone() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {golden_path(words).name for words in NODES}


def shape(value: Any) -> Any:
    """The form of a document: keys and kinds of values; of a list, the form that all its items have."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        shapes = [shape(inner) for inner in value]
        assert all(other == shapes[0] for other in shapes), shapes
        return shapes[:1]
    return "nothing" if value is None else type(value).__name__


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A fleet that was made, and does not run."""
    fleet = fake_fleet(tmp_path, TINY)
    save_fleet_document(fleet.layout, {"clusters": [TINY]})
    logs = fleet.node("b1").layout.logs
    logs.mkdir(parents=True)
    (logs / "server.log").write_text("one\ntwo\nthree\n")
    return fleet.layout.home


def test_the_shape_of_status(here: Callable[..., CommandResult], home: Path) -> None:
    ran = here("status", "--home", str(home), "-o", "json")

    assert ran.code == 5
    assert shape(ran.data) == snapshot(
        {
            "state": "str",
            "home": "str",
            "supervisor": "nothing",
            "clusters": {
                "home": {"id": "str", "shape": "str", "bootstrap": "str", "gateway_bootstrap": "str"}
            },
            "nodes": [
                {
                    "cluster": "str",
                    "node": "str",
                    "role": "str",
                    "zone": "str",
                    "state": "str",
                    "address": "str",
                    "metrics": "str",
                    "pid": "nothing",
                    "uptime_seconds": "nothing",
                    "memory_mb": "nothing",
                    "restarts": "int",
                    "reason": "str",
                    "kafka": "str",
                    "behind": [],
                    "health": "nothing",
                }
            ],
            "services": [],
            "jobs": [],
        }
    )


def test_the_shape_of_logs(here: Callable[..., CommandResult], home: Path) -> None:
    ran = here("logs", "--home", str(home), "-o", "json")

    assert ran.code == 0
    assert shape(ran.data) == snapshot([{"node": "str", "line": "str"}])


def test_the_shape_of_version(here: Callable[..., CommandResult]) -> None:
    assert shape(here("version", "-o", "json").data) == snapshot(
        {"penstock": "str", "kafka": "str", "python": "str", "java": "str"}
    )


def test_the_shape_of_doctor(here: Callable[..., CommandResult]) -> None:
    assert shape(here("doctor", "-o", "json").data) == snapshot(
        [{"what": "str", "state": "str", "detail": "str", "hint": "str"}]
    )


@pytest.mark.parametrize("client", ["java", "python", "kcat"])
def test_the_shape_of_fleet_connect(here: Callable[..., CommandResult], home: Path, client: str) -> None:
    ran = here("fleet", "connect", "--home", str(home), "--client", client, "-o", "json")

    java = snapshot(
        {
            "bootstrap.servers": "str",
            "security.protocol": "str",
            "sasl.mechanism": "str",
            "sasl.jaas.config": "str",
        }
    )
    others = snapshot(
        {
            "bootstrap.servers": "str",
            "security.protocol": "str",
            "sasl.mechanism": "str",
            "sasl.username": "str",
            "sasl.password": "str",
        }
    )
    assert shape(ran.data) == (java if client == "java" else others)


def test_the_shape_of_an_error(here: Callable[..., CommandResult]) -> None:
    assert shape(here("status", "-o", "json").error) == snapshot(
        {"code": "str", "message": "str", "hint": "str", "fault": "str", "retriable": "bool"}
    )
