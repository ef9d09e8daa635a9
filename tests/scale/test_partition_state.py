"""Which partition rules hold, and the resulting state, one row for each case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.scale.decision.partition_state import RULES, beyond_one_consumer, states_of
from penstock.scale.decision.values import NO_OWNER, PartitionState
from tests.scale.scenarios import POLICY, facts

if TYPE_CHECKING:
    from penstock.scale.decision.partition_facts import PartitionFacts

# The order of the columns: P1 unknown, P2 idle, P3 stopped, P4 stalled, P5 keeping up, P6 catching up.
CASES: list[tuple[str, PartitionFacts[float], str, PartitionState]] = [
    ("lag below the threshold", facts(), "....5.", PartitionState.KEEPING_UP),
    (
        "no commit yet: nothing is known",
        facts(known_for=0, lag=0, lag_now=0),
        "1...5.",
        PartitionState.UNKNOWN,
    ),
    ("known for less than the warm-up", facts(known_for=50), "1...5.", PartitionState.UNKNOWN),
    ("no lag and no arrivals", facts(lag=0, lag_now=0, quiet_for=600), ".2..5.", PartitionState.IDLE),
    (
        "no member owns it and records wait",
        facts(lag_now=40, age=300, unmoved_for=300, owner=NO_OWNER),
        "..345.",
        PartitionState.STOPPED,
    ),
    (
        "owned, but the position does not move: a poison record",
        facts(lag=9000, lag_now=9000, age=90, unmoved_for=90, above_for=90, slope=20),
        "...4..",
        PartitionState.STALLED,
    ),
    (
        "rare records: the position does not move between samples, but none waits long",
        facts(lag=1, lag_now=1, age=4, unmoved_for=200),
        "....5.",
        PartitionState.KEEPING_UP,
    ),
    (
        "high, and drained within the drain time",
        facts(lag=9000, lag_now=9000, above_for=200, slope=-40, age=200),
        ".....6",
        PartitionState.CATCHING_UP,
    ),
    (
        "high and falling slowly, but within the objective",
        facts(lag=9000, lag_now=9000, above_for=200, slope=-4, age=60),
        ".....6",
        PartitionState.CATCHING_UP,
    ),
    (
        "past the objective and falling too slowly",
        facts(lag=9000, lag_now=9000, above_for=200, slope=-4, age=200),
        "......",
        PartitionState.FALLING_BEHIND,
    ),
    (
        "high and flat: it will never drain",
        facts(lag=9000, lag_now=9000, above_for=200, slope=0, age=60),
        "......",
        PartitionState.FALLING_BEHIND,
    ),
    (
        "high and growing",
        facts(lag=600, lag_now=700, above_for=10, slope=25, age=12),
        "......",
        PartitionState.FALLING_BEHIND,
    ),
]


@pytest.mark.parametrize(("why", "given", "holding", "state"), CASES, ids=[case[0] for case in CASES])
def test_every_rule_and_the_state(
    why: str, given: PartitionFacts[float], holding: str, state: PartitionState
) -> None:
    actual = "".join(
        str(n) if rule(given, POLICY) else "." for n, (rule, _) in enumerate(RULES[:-1], start=1)
    )

    assert (actual, states_of(given, POLICY)) == (holding, [state]), why


def test_a_partition_alone_on_its_member_cannot_be_helped() -> None:
    assert beyond_one_consumer(facts(shared_with=0))
    assert not beyond_one_consumer(facts(shared_with=1))
    assert not beyond_one_consumer(facts(shared_with=0, owner=NO_OWNER))
