"""When a cluster is balanced."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from penstock.balance.rounds import (
    DAY_SECONDS,
    HOUR_SECONDS,
    PACE,
    BalancerMode,
    ClusterCondition,
    RecentPlan,
    RoundDecision,
    decide,
)

SKEWED = ClusterCondition({"load": "broker 3 carries 1.6 times its share"})
EVEN = ClusterCondition({})
LONG = PACE.violated_seconds
PARTITION = ("orders", 0)


def violated_for(seconds: float) -> RoundDecision:
    return RoundDecision({"load": 1000.0 - seconds})


def finished(ago: float, moves: int = 1, size: float = 1e6) -> RecentPlan:
    return RecentPlan(1000.0 - ago, 1000.0 - ago, moves, size, frozenset({PARTITION}))


def test_a_violation_must_last_before_a_plan_is_made() -> None:
    first = decide(RoundDecision(), SKEWED, BalancerMode.AUTO, 1000.0)
    assert (first.plan, first.imbalanced) == (None, "")
    later = decide(first, SKEWED, BalancerMode.AUTO, 1000.0 + LONG)
    assert later.plan is not None
    assert later.run
    assert later.imbalanced == "load: broker 3 carries 1.6 times its share"


def test_a_violation_that_pauses_counts_again_from_its_return() -> None:
    paused = decide(violated_for(LONG - 1), EVEN, BalancerMode.AUTO, 1000.0)
    assert paused == RoundDecision()
    returned = decide(paused, SKEWED, BalancerMode.AUTO, 1001.0)
    assert decide(returned, SKEWED, BalancerMode.AUTO, 1000.0 + LONG).plan is None


def test_advice_is_a_plan_that_does_not_run_and_off_reports_only() -> None:
    advised = decide(violated_for(LONG), SKEWED, BalancerMode.ADVISE, 1000.0)
    assert (advised.plan is not None, advised.run) == (True, False)
    off = decide(violated_for(LONG), SKEWED, BalancerMode.OFF, 1000.0)
    assert (off.plan, bool(off.imbalanced)) == (None, True)


def test_what_was_seen_while_balancing_was_off_counts_once_it_is_on() -> None:
    off = decide(violated_for(LONG), SKEWED, BalancerMode.OFF, 1000.0)
    assert decide(off, SKEWED, BalancerMode.AUTO, 1001.0).plan is not None


def test_an_obstacle_blocks_and_is_named() -> None:
    seen = replace(SKEWED, obstacles=("broker 2 is not alive", "no load of broker 2"))
    blocked = decide(violated_for(LONG), seen, BalancerMode.AUTO, 1000.0)
    assert (blocked.plan, blocked.blocked) == (None, "broker 2 is not alive; no load of broker 2")


def test_an_obstacle_without_a_violation_is_no_problem_of_balance() -> None:
    assert (
        decide(
            RoundDecision(), replace(EVEN, obstacles=("a roll is under way",)), BalancerMode.AUTO, 1.0
        ).blocked
        == ""
    )


def test_one_plan_runs_at_a_time_and_loads_settle_before_the_next() -> None:
    running = replace(SKEWED, plans=(RecentPlan(990.0, None, 3, 1e6),))
    decision = decide(violated_for(LONG), running, BalancerMode.AUTO, 1000.0)
    assert (decision.plan, decision.balancing) == (None, True)
    settling = replace(SKEWED, plans=(finished(PACE.settle_seconds - 1),))
    assert decide(violated_for(LONG), settling, BalancerMode.AUTO, 1000.0).plan is None
    settled = replace(SKEWED, plans=(finished(PACE.settle_seconds),))
    assert decide(violated_for(LONG), settled, BalancerMode.AUTO, 1000.0).plan is not None


def test_partitions_that_moved_rest() -> None:
    rested = decide(
        violated_for(LONG), replace(SKEWED, plans=(finished(PACE.rest_seconds),)), BalancerMode.AUTO, 1000.0
    )
    assert rested.plan is not None
    assert rested.plan.resting == frozenset()
    resting = decide(
        violated_for(LONG),
        replace(SKEWED, plans=(finished(PACE.rest_seconds - 1),)),
        BalancerMode.AUTO,
        1000.0,
    )
    assert resting.plan is not None
    assert resting.plan.resting == {PARTITION}


def test_limits_of_an_hour_and_a_day_are_named_when_they_are_reached() -> None:
    hour = replace(SKEWED, plans=(finished(HOUR_SECONDS - 1, moves=PACE.moves_hour_max),))
    decision = decide(violated_for(LONG), hour, BalancerMode.AUTO, 1000.0)
    assert (decision.plan, decision.blocked) == (None, "this hour's limit is reached: 1000 moves, 0.0 GB")
    day = replace(SKEWED, plans=(finished(HOUR_SECONDS + 1, size=PACE.bytes_day_max),))
    assert decide(violated_for(LONG), day, BalancerMode.AUTO, 1000.0).blocked.startswith(
        "this day's limit is reached"
    )


@given(
    st.lists(st.tuples(st.floats(0, 2 * DAY_SECONDS), st.integers(0, 3_000), st.floats(0, 3e12)), max_size=8),
    st.sampled_from(BalancerMode),
)
def test_a_plan_never_exceeds_what_is_left_of_the_hour_and_the_day(
    history: list[tuple[float, int, float]], mode: BalancerMode
) -> None:
    now = 3 * DAY_SECONDS
    plans = tuple(RecentPlan(now - ago, now - ago, moves, size) for ago, moves, size in history)
    decision = decide(RoundDecision({"load": 0.0}), replace(SKEWED, plans=plans), mode, now)
    if decision.plan is None:
        assert (
            mode is BalancerMode.OFF
            or decision.blocked
            or any(ago < PACE.settle_seconds for ago, _, _ in history)
        )
        return
    for seconds, moves_max, bytes_max in (
        (HOUR_SECONDS, PACE.moves_hour_max, PACE.bytes_hour_max),
        (DAY_SECONDS, PACE.moves_day_max, PACE.bytes_day_max),
    ):
        recent = [(moves, size) for ago, moves, size in history if ago < seconds]
        assert sum(moves for moves, _ in recent) + decision.plan.moves <= moves_max
        assert sum(size for _, size in recent) + decision.plan.bytes <= bytes_max * (1 + 1e-9)
