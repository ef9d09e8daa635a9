"""The ladder of each state, and each guard beside what happens without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.health.detector import BrokerHealth, HealthState, Verdict
from penstock.health.mitigation import (
    ACTIONS_PER_HOUR_MAX,
    LATE_SECONDS,
    Abilities,
    Blocked,
    HealthMode,
    Open,
    Release,
    Situation,
    Step,
    Take,
    decide,
    ladder,
)

ALL = Abilities(excludes=True, restarts=True)


def situation(state: HealthState = HealthState.SLOW, **values: Any) -> Situation:
    brokers = {1: BrokerHealth(HealthState.HEALTHY), 2: BrokerHealth(state, reason="why")}
    given = Situation(Verdict(brokers), HealthMode.AUTO, open={}, abilities=ALL, held={})
    return replace(given, **values)


def opened(
    *steps: Step, since: float = 0.0, broker: int = 2, improved: bool | None = False, **values: Any
) -> dict[int, Open]:
    return {broker: Open(broker, HealthState.SLOW, steps, since, improved=improved, **values)}


@pytest.mark.parametrize(
    ("state", "abilities", "steps"),
    [
        (HealthState.SLOW, ALL, (Step.EXCLUDE, Step.RESTART)),
        (HealthState.SLOW_FOLLOWER, ALL, (Step.EXCLUDE, Step.RESTART)),
        (HealthState.SLOW, Abilities(excludes=True), (Step.DEMOTE,)),
        (HealthState.SLOW, Abilities(restarts=True), (Step.DEMOTE, Step.RESTART)),
        (HealthState.CUT_OFF, ALL, (Step.DEMOTE,)),
        (HealthState.STORAGE_STUCK, ALL, (Step.DEMOTE, Step.HOLD)),
        (HealthState.DOWN, ALL, (Step.DEMOTE,)),
        (HealthState.SUSPECT, ALL, ()),
        (HealthState.UNKNOWN, ALL, ()),
    ],
)
def test_the_ladder_of_each_state(state: HealthState, abilities: Abilities, steps: tuple[Step, ...]) -> None:
    assert ladder(state, abilities) == steps


def test_the_first_step_is_taken_at_once_and_the_next_after_a_minute_without_recovery() -> None:
    assert decide(situation(), 0.0) == (Take(2, Step.EXCLUDE, HealthState.SLOW, "why"),)
    later = situation(open=opened(Step.EXCLUDE))
    assert decide(later, 59.0) == ()
    assert decide(later, 60.0) == (Take(2, Step.RESTART, HealthState.SLOW, "why"),)


def test_after_the_last_step_everything_is_undone_and_an_operator_is_needed() -> None:
    (release,) = decide(situation(open=opened(Step.EXCLUDE, Step.RESTART)), 60.0)
    assert release == Release(2, "it is still slow after exclude, restart: clients saw no improvement")
    (blocked,) = decide(situation(given_up=frozenset({2})), 120.0)
    assert blocked == Blocked(2, Step.EXCLUDE, "no step helped within the last hour")


def test_a_step_that_helps_clients_stays_until_the_broker_recovers() -> None:
    assert decide(situation(open=opened(Step.EXCLUDE, improved=True)), 600.0) == ()
    assert decide(situation(open=opened(Step.EXCLUDE, improved=None)), 600.0) == ()


def test_nothing_follows_a_step_that_is_under_way_and_the_next_one_a_step_that_failed() -> None:
    assert decide(situation(open=opened(Step.EXCLUDE, done=False)), LATE_SECONDS - 1) == ()
    failed = opened(Step.EXCLUDE, done=False, failed="orders-0: 1 in-sync replicas would be left")
    (take,) = decide(situation(open=failed), 1.0)
    assert isinstance(take, Take)
    assert (take.step, take.reason) == (
        Step.RESTART,
        "why; exclude failed: orders-0: 1 in-sync replicas would be left",
    )


def test_stuck_storage_is_held_at_once_though_demotion_helped_its_leaders() -> None:
    stuck = situation(HealthState.STORAGE_STUCK, open=opened(Step.DEMOTE, improved=True))
    assert decide(stuck, 1.0) == (Take(2, Step.HOLD, HealthState.STORAGE_STUCK, "why"),)


def test_a_healthy_broker_is_released_and_a_flapping_one_is_not() -> None:
    healthy = situation(HealthState.HEALTHY, open=opened(Step.DEMOTE))
    assert decide(healthy, 0.0) == (Release(2),)
    brokers = {2: BrokerHealth(HealthState.HEALTHY, spells=(1.0, 2.0, 3.0))}
    (blocked,) = decide(replace(healthy, verdict=Verdict(brokers)), 4.0)
    assert blocked == Blocked(2, None, "it became sick 3 times within an hour")


def test_a_broker_that_becomes_sick_during_its_release_is_mitigated_again() -> None:
    """Otherwise a broker that dies then is waited for without end, and no other one is helped."""
    releasing = opened(Step.EXCLUDE, Step.RESTART, releasing=True)
    down = situation(HealthState.DOWN, open=releasing)
    assert decide(down, 1.0) == (Take(2, Step.DEMOTE, HealthState.DOWN, "why"),)
    gave_up = opened(Step.EXCLUDE, releasing=True, gave_up=True)
    assert decide(situation(open=gave_up), 1.0) == ()


def test_what_does_not_end_is_reported_and_a_healthy_broker_is_released_all_the_same() -> None:
    stuck = opened(Step.EXCLUDE, done=False)
    assert decide(situation(open=stuck), LATE_SECONDS) == (Blocked(2, Step.EXCLUDE, "it has no effect yet"),)
    healthy = situation(HealthState.HEALTHY, open=stuck)
    assert decide(healthy, LATE_SECONDS - 1) == ()
    assert decide(healthy, LATE_SECONDS) == (Release(2),)
    releasing = situation(HealthState.UNKNOWN, open=opened(Step.EXCLUDE, releasing=True))
    assert decide(releasing, LATE_SECONDS) == (Blocked(2, None, "what was done is not undone yet"),)


def test_no_step_follows_from_old_evidence() -> None:
    brokers = {1: BrokerHealth(HealthState.HEALTHY), 2: BrokerHealth(HealthState.SLOW, judged=False)}
    for given in ({}, opened(Step.EXCLUDE), opened(Step.EXCLUDE, failed="unsafe")):
        assert decide(situation(verdict=Verdict(brokers), open=given), 200.0) == ()


def test_a_broker_that_left_the_cluster_is_let_go_in_every_mode() -> None:
    left = Verdict({1: BrokerHealth(HealthState.CUT_OFF)}, cluster="all of it")
    given = situation(verdict=left, open=opened(Step.DEMOTE), mode=HealthMode.OFF, held={2: "disk"})
    assert Release(2, "it has left the cluster") in decide(given, 1.0)
    assert decide(situation(verdict=Verdict(), open=opened(Step.DEMOTE)), 1.0) == ()


def test_an_operators_hold_delays_a_release() -> None:
    """The release of an excluded broker restarts it, perhaps while its disk is replaced."""
    held = {"held": {2: "replacing its disk"}}
    healthy = situation(HealthState.HEALTHY, open=opened(Step.EXCLUDE), **held)
    assert decide(healthy, 0.0) == (Blocked(2, None, "an operator holds it: replacing its disk"),)


@pytest.mark.parametrize("mode", HealthMode)
def test_a_healthy_broker_is_released_in_every_mode(mode: HealthMode) -> None:
    assert decide(situation(HealthState.HEALTHY, open=opened(Step.DEMOTE), mode=mode), 0.0) == (Release(2),)


@pytest.mark.parametrize("guard", [{"mode": HealthMode.ADVISE}, {"cluster": "2 of 3 brokers are sick"}])
def test_leadership_returns_to_no_sick_broker_while_steps_are_forbidden(guard: dict[str, Any]) -> None:
    """While another broker fails, clients suffer whether or not the demotion of this one helped."""
    given = situation(HealthState.CUT_OFF, open=opened(Step.DEMOTE))
    assert isinstance(decide(given, 60.0)[0], Release)
    if "cluster" in guard:
        guard = {"verdict": replace(given.verdict, cluster=guard["cluster"])}
    (blocked,) = decide(replace(given, **guard), 60.0)
    assert isinstance(blocked, Blocked)


@pytest.mark.parametrize("state", [HealthState.SUSPECT, HealthState.UNKNOWN, HealthState.RECOVERING])
def test_nothing_is_done_without_a_finding(state: HealthState) -> None:
    assert decide(situation(state), 0.0) == ()
    assert decide(situation(state, open=opened(Step.DEMOTE)), 600.0) == ()


@pytest.mark.parametrize(
    ("guard", "reason"),
    [
        ({"held": {2: "replacing its disk"}}, "an operator holds it: replacing its disk"),
        ({"mode": HealthMode.ADVISE}, "the mode is advise"),
        ({"acted": [0.0] * ACTIONS_PER_HOUR_MAX}, "6 steps were taken within an hour"),
        ({"open": opened(Step.DEMOTE, broker=1)}, "broker 1 is mitigated"),
        ({"given_up": frozenset({2})}, "no step helped within the last hour"),
        ({"modes": {"exclude": HealthMode.ADVISE}}, "the mode is advise"),
        ({"blocked": {2: "a roll is under way"}}, "a roll is under way"),
    ],
)
def test_each_guard_blocks_a_step_that_would_be_taken_without_it(guard: dict[str, Any], reason: str) -> None:
    assert isinstance(decide(situation(), 0.0)[0], Take)
    blocked = [each for each in decide(situation(**guard), 0.0) if isinstance(each, Blocked)]
    assert blocked == [Blocked(2, Step.EXCLUDE, reason)]


def test_no_step_is_taken_while_the_whole_cluster_is_affected() -> None:
    brokers = {1: BrokerHealth(HealthState.CUT_OFF), 2: BrokerHealth(HealthState.CUT_OFF)}
    decisions = decide(situation(verdict=Verdict(brokers, cluster="2 of 2 brokers are sick")), 0.0)
    assert len(decisions) == 2
    assert all(isinstance(each, Blocked) for each in decisions)


def test_of_two_sick_brokers_only_one_is_acted_on() -> None:
    brokers = {1: BrokerHealth(HealthState.SLOW), 2: BrokerHealth(HealthState.SLOW)}
    first, second = decide(situation(verdict=Verdict(brokers)), 0.0)
    assert isinstance(first, Take)
    assert second == Blocked(2, Step.EXCLUDE, "another broker is first")
