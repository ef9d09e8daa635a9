"""What feeds each rule: the table is complete, and true."""

from __future__ import annotations

import ast
import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import audit, gateway, link
from penstock.audit import sweep
from penstock.audit.metadata_history import MetadataHistory
from penstock.audit.rules.catalogue import COLLECTED, RULES, by_name
from penstock.audit.sweep import LogRange, Sweeper
from penstock.model.durability import FACTS, Replica, What
from penstock.model.shadow_ids import SHADOW_IDS
from tests.audit.history import PLACEMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

SHADOW = SHADOW_IDS[0]


def written_kinds() -> Iterator[What]:
    """The facts that collectors and writers of intents create, by the source code."""
    names = {cls.__name__: what for what, cls in FACTS.items()}
    folders = [Path(package.__path__[0]) for package in (audit, gateway, link)]
    files = [file for folder in folders for file in folder.rglob("*.py") if file.parent.name != "rules"]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                yield names[node.func.id]


def test_every_kind_of_evidence_is_collected() -> None:
    assert COLLECTED.keys() == set(What)


def test_what_counts_as_collected_is_written_and_nothing_else() -> None:
    assert set(written_kinds()) == COLLECTED.keys()


def test_a_rule_needs_what_it_is_checked_on() -> None:
    assert all(set(rule.on) <= set(rule.evidence) and rule.evidence for rule in RULES)


@pytest.mark.parametrize(
    ("rule", "fed_by"),
    [
        ("log-start-falls", "replica sweeps, intents"),
        ("group-offset-outside", "group offsets, acknowledgements"),
        ("backup-gap", "the backup catalogue"),
        ("tier-object-wrong", "listings of the object store, tier metadata"),
        ("producer-sequence", "scrubs"),
    ],
)
def test_a_rule_names_what_collects_its_evidence(rule: str, fed_by: str) -> None:
    assert by_name()[rule].fed_by == fed_by


async def test_a_partition_without_a_leader_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a probe while its only broker restarts; one with a leader should have been observed."""
    restarting = replace(PLACEMENT, replicas=(3,), isr=(3,), leader=-1)
    history = MetadataHistory(partitions={("A", 0): PLACEMENT, ("B", 0): restarting}, brokers={1: 5})

    async def positions(*_: object) -> Any:
        return {}, []

    monkeypatch.setattr(sweep, "_positions", positions)
    sweeper = Sweeper()
    nothing: Any = None
    await sweeper.sweep(nothing, history, 1)

    assert sweeper.unseen == ("partition/A/0",)


async def test_a_broker_that_hangs_delays_the_others_once(monkeypatch: pytest.MonkeyPatch) -> None:
    history = MetadataHistory(partitions={("A", 0): PLACEMENT}, brokers={1: 5, 2: 5})
    swept = []

    async def positions(_client: object, _history: object, broker: int, _samples: object) -> Any:
        swept.append(broker)
        if broker == 2:
            await asyncio.Event().wait()
        return {("A", 0): Replica(broker, 0, 10)}, []

    monkeypatch.setattr(sweep, "_positions", positions)
    monkeypatch.setattr(sweep, "BROKER_SECONDS_MAX", 0.01)
    monkeypatch.setattr(sweep, "HANGS_SECONDS", 0.0)
    sweeper = Sweeper()
    nothing: Any = None
    observed = [await sweeper.sweep(nothing, history, 1) for _ in range(2)]
    await sweeper.sweep(nothing, history, 2, brokers=[2])

    assert swept == [1, 2, 1, 2], "not in the next sweep, and as soon as it registers"
    assert [len(each) for each in observed] == [1, 1]
    assert "no response" in sweeper.failures[2]


async def test_a_shadow_is_not_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes requests about logs on to a real broker, whose positions would count as its own."""
    key = ("AAAAAAAAAAAAAAAAAAAAAQ", 0)
    history = MetadataHistory(partitions={key: PLACEMENT}, brokers={1: 5, 2: 5, SHADOW: 6})
    swept = []

    async def positions(_client: object, _history: object, broker: int, _samples: object) -> Any:
        swept.append(broker)
        return {key: Replica(broker, 0, 10 + broker)}, []

    monkeypatch.setattr(sweep, "_positions", positions)
    sweeper = Sweeper()
    nothing: Any = None
    await sweeper.sweep(nothing, history, 1)
    await sweeper.sweep(nothing, history, 2, brokers=[SHADOW])

    assert swept == [1, 2]
    assert sweeper.ranges == {key: LogRange(0, 11)}, "of the leader"
    assert sweeper.sweeps == 1
