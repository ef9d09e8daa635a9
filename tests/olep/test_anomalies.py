"""Random histories have none of the anomalies; planted ones are found, each by its name."""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.payments.views import LINES
from penstock.olep.position import Position
from tests.olep.anomalies import (
    FUTURE,
    LOST_UPDATE,
    NON_MONOTONIC,
    ORDER,
    READ_SKEW,
    STALE_READ,
    Fact,
    Seen,
    anomalies,
    facts,
)
from tests.olep.watched import PARTITIONS, Ground
from tests.olep.world import TOPIC_ID

if TYPE_CHECKING:
    from collections.abc import Callable


def observed(ground: Ground, session: str, position: Position, wrote: Position | None = None) -> Seen:
    """What a session reads from two views at one position."""
    newest: dict[tuple[str, int], int] = {}
    with ground.statements.store.reading(position) as reader:
        for partition, line in reader.rows(LINES):
            place, offset = (line[0], partition), line[1] >> 3
            newest[place] = max(offset, newest.get(place, -1))
    return Seen(session, position, ground.cache.balances(position), newest, wrote)


def history(seed: int, steps: int = 120) -> tuple[list[Fact], list[Seen]]:
    """Sessions that take snapshots of a bank at work, and read what they have written."""
    ground, dice = Ground(seed), random.Random(seed)
    seen: list[Seen] = []
    for _ in range(steps):
        ground.step()
        if dice.random() < 0.3:
            seen.append(observed(ground, f"session-{dice.randrange(3)}", ground.cut()))
    ground.world.settle()
    tail = Position({TOPIC_ID: {p: len(records) for p, records in enumerate(ground.world.records)}})
    for partition in range(PARTITIONS):
        for view in (ground.statements, ground.cache):
            view.step(partition, 100_000)
    # A token of the end: the view has waited until it was there.
    seen.append(observed(ground, "writer", tail, wrote=tail))
    return [*facts(ground.world.events())], seen


@given(st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_random_histories_have_no_anomalies(seed: int) -> None:
    log, seen = history(seed)
    assert anomalies(TOPIC_ID, log, seen) == []


def _lost(seen: list[Seen]) -> None:
    """One payment's effect on both accounts vanishes."""
    one, two = sorted(seen[-1].balances)[:2]
    seen[-1].balances[one] += 5
    seen[-1].balances[two] -= 5


def _skewed(seen: list[Seen]) -> None:
    """One account from now, the other from before."""
    name = min(seen[-1].balances)
    seen[-1].balances[name] += 7


def _stale(seen: list[Seen]) -> None:
    assert seen[-1].wrote is not None
    later = {p: at + 1 for p, at in seen[-1].wrote.offsets[TOPIC_ID].items()}
    seen[-1].wrote = Position({TOPIC_ID: later})


def _back(seen: list[Seen]) -> None:
    again = copy.deepcopy(seen[0])
    again.session = seen[-1].session
    seen.append(again)


def _out_of_order(seen: list[Seen]) -> None:
    place = max(seen[-1].newest, key=lambda each: seen[-1].newest[each])
    seen[-1].newest[place] -= 1


def _from_the_future(seen: list[Seen]) -> None:
    place = next(iter(seen[-1].newest))
    seen[-1].newest[place] = 10**6


@pytest.mark.parametrize(
    ("plant", "name"),
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
def test_the_checker_finds_a_planted_anomaly(plant: Callable[[list[Seen]], None], name: str) -> None:
    log, seen = history(5)
    plant(seen)
    assert {each.split(" (")[0] for each in anomalies(TOPIC_ID, log, seen)} == {name}


def test_without_one_position_for_both_the_checker_finds_read_skew() -> None:
    """The anomaly of the paper: two accounts read from two views, each as far as it has come."""
    for seed in range(50):
        ground = Ground(seed)
        for _ in range(150):
            ground.step()
            mixed = Seen("reader", ground.statements.store.position(), {})
            mixed.balances = {
                **ground.statements.balances(),
                **{name: c for name, c in ground.cache.balances().items() if name.endswith(("1", "3", "5"))},
            }
            if any(READ_SKEW in each for each in anomalies(TOPIC_ID, facts(ground.world.events()), [mixed])):
                return
    pytest.fail("no interleaving shows it")
