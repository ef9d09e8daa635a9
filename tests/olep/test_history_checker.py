"""Random histories have no anomalies; histories with an anomaly are detected by name."""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.payments.views import LINES
from penstock.olep.position import Position
from tests.olep.bank_simulation import PARTITIONS, BankSimulation
from tests.olep.history_checker import (
    FUTURE,
    LOST_UPDATE,
    NON_MONOTONIC,
    ORDER,
    READ_SKEW,
    STALE_READ,
    Fact,
    Read,
    anomalies,
    facts,
)
from tests.olep.memory_cluster import TOPIC_ID

if TYPE_CHECKING:
    from collections.abc import Callable


def read_both(
    simulation: BankSimulation, session: str, position: Position, wrote: Position | None = None
) -> Read:
    """What a session reads from two views at one position."""
    newest: dict[tuple[str, int], int] = {}
    with simulation.statements.store.reading(position) as reader:
        for partition, line in reader.rows(LINES):
            place, offset = (line[1], partition), line[0] >> 3
            newest[place] = max(offset, newest.get(place, -1))
    return Read(session, position, simulation.cache.balances(position), newest, wrote)


def history(seed: int, steps: int = 120) -> tuple[list[Fact], list[Read]]:
    """Sessions that take snapshots of a running bank, and read their own writes."""
    simulation, dice = BankSimulation(seed), random.Random(seed)
    reads: list[Read] = []
    for _ in range(steps):
        simulation.step()
        if dice.random() < 0.3:
            reads.append(
                read_both(simulation, f"session-{dice.randrange(3)}", simulation.consistent_position())
            )
    simulation.cluster.settle()
    tail = Position({TOPIC_ID: {p: len(records) for p, records in enumerate(simulation.cluster.records)}})
    for partition in range(PARTITIONS):
        for view in (simulation.statements, simulation.cache):
            view.step(partition, 100_000)
    # A read of the writer after its last write.
    reads.append(read_both(simulation, "writer", tail, wrote=tail))
    return [*facts(simulation.cluster.events())], reads


@given(st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_random_histories_have_no_anomalies(seed: int) -> None:
    log, reads = history(seed)
    assert anomalies(TOPIC_ID, log, reads) == []


def _lost(reads: list[Read]) -> None:
    """The effect of one payment is lost on both accounts."""
    one, two = sorted(reads[-1].balances)[:2]
    reads[-1].balances[one] += 5
    reads[-1].balances[two] -= 5


def _skewed(reads: list[Read]) -> None:
    """One account is read now, the other earlier."""
    name = min(reads[-1].balances)
    reads[-1].balances[name] += 7


def _stale(reads: list[Read]) -> None:
    assert reads[-1].wrote is not None
    later = {p: at + 1 for p, at in reads[-1].wrote.offsets[TOPIC_ID].items()}
    reads[-1].wrote = Position({TOPIC_ID: later})


def _back(reads: list[Read]) -> None:
    again = copy.deepcopy(reads[0])
    again.session = reads[-1].session
    reads.append(again)


def _out_of_order(reads: list[Read]) -> None:
    place = max(reads[-1].newest, key=lambda each: reads[-1].newest[each])
    reads[-1].newest[place] -= 1


def _from_the_future(reads: list[Read]) -> None:
    place = next(iter(reads[-1].newest))
    reads[-1].newest[place] = 10**6


@pytest.mark.parametrize(
    ("corrupt", "name"),
    [
        (_lost, LOST_UPDATE),
        (_skewed, READ_SKEW),
        (_stale, STALE_READ),
        (_back, NON_MONOTONIC),
        (_out_of_order, ORDER),
        (_from_the_future, FUTURE),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_checker_detects_each_anomaly(corrupt: Callable[[list[Read]], None], name: str) -> None:
    log, reads = history(5)
    corrupt(reads)
    assert {each.split(" (")[0] for each in anomalies(TOPIC_ID, log, reads)} == {name}


def test_the_checker_detects_read_skew_between_two_positions() -> None:
    """The anomaly of the paper: two accounts read from two views at different positions."""
    for seed in range(50):
        simulation = BankSimulation(seed)
        for _ in range(150):
            simulation.step()
            mixed = Read("reader", simulation.statements.store.position(), {})
            mixed.balances = {
                **simulation.statements.balances(),
                **{
                    name: c
                    for name, c in simulation.cache.balances().items()
                    if name.endswith(("1", "3", "5"))
                },
            }
            if any(
                READ_SKEW in each for each in anomalies(TOPIC_ID, facts(simulation.cluster.events()), [mixed])
            ):
                return
    pytest.fail("no interleaving shows it")
