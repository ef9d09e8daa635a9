"""What a supervisor makes of what it sees, as scenarios and as promises over all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fleet.watch import (
    BACKOFF_SECONDS_FIRST,
    BACKOFF_SECONDS_MAX,
    CRASH_MEMORY_SECONDS,
    SILENCE_SECONDS_MAX,
    START_SECONDS_MAX,
    NodeState,
    Observation,
    Watch,
    asks_to_start,
    backoff_seconds,
    observed,
    started,
)

SEEN = {
    "answers": Observation(alive=True, answers=True),
    "silent": Observation(alive=True, answers=False),
    "dead": Observation(alive=False, answers=False),
}

# Each line: the time, what is seen, and what is made of it. `!` asks for the process to be started.
SCENARIOS = {
    "a node that starts and answers is ready": """
        1    silent   starting
        5    answers  ready
        6    answers  ready
    """,
    "a node may take long to start": """
        1    silent   starting
        89   silent   starting
        91   silent   unresponsive
        200  answers  ready
    """,
    "a ready node that falls silent is given some seconds": """
        1    answers  ready
        3    silent   ready
        7    silent   ready
        7.5  silent   unresponsive
        20   silent   unresponsive
        21   answers  ready
    """,
    "a node that dies comes back": """
        1    answers  ready
        10   dead     restarting
        10.4 dead     restarting
        10.5 dead     starting !
        11   silent   starting
        15   answers  ready
    """,
    "a node that dies again and again is started ever more slowly": """
        1    dead     restarting
        1.5  dead     starting !
        2    dead     restarting
        2.9  dead     restarting
        3    dead     starting !
        4    dead     restarting
        5.9  dead     restarting
        6    dead     starting !
    """,
    "a crash is forgotten after a while": """
        1    dead     restarting
        1.5  dead     starting !
        2    answers  ready
        400  dead     restarting
        400.5 dead    starting !
    """,
    "an unresponsive node that dies is started again": """
        1    answers  ready
        8    silent   unresponsive
        9    dead     restarting
        9.5  dead     starting !
    """,
    "one that somebody else started meanwhile is not started twice": """
        1    answers  ready
        2    dead     restarting
        2.2  silent   starting
        4    answers  ready
    """,
    "a start that failed counts as a crash": """
        1    dead     restarting
        1.5  dead     starting !
        1.7  dead     restarting
        2.6  dead     restarting
        2.7  dead     starting !
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    watch = started(0.0)
    told = []
    for line in SCENARIOS[name].strip().splitlines():
        time, seen, *_ = line.split()
        before, watch = watch, observed(watch, SEEN[seen], float(time))
        start = " !" if asks_to_start(before, watch) else ""
        told.append(f"{time} {seen} {watch.state}{start}")

    assert told == [" ".join(line.split()) for line in SCENARIOS[name].strip().splitlines()]


def test_a_restart_is_counted() -> None:
    watch = Watch(NodeState.RESTARTING, since=0.0, retry_at=1.0, restarts=4)

    assert observed(watch, SEEN["dead"], 1.0).restarts == 5


def test_back_off_doubles_up_to_its_bound() -> None:
    assert [backoff_seconds(n) for n in (1, 2, 3, 6, 7, 50)] == [0.5, 1.0, 2.0, 16.0, 30.0, 30.0]


_steps = st.lists(st.tuples(st.floats(0.0, 60.0), st.sampled_from(sorted(SEEN))), max_size=30)


def walk(steps: list[tuple[float, str]]) -> list[tuple[float, str, Watch, Watch]]:
    watch, now, walked = started(0.0), 0.0, []
    for pause, seen in steps:
        now += pause
        before, watch = watch, observed(watch, SEEN[seen], now)
        walked.append((now, seen, before, watch))
    return walked


@given(_steps)
def test_nothing_is_started_while_it_lives(steps: list[tuple[float, str]]) -> None:
    for _, seen, before, after in walk(steps):
        assert seen == "dead" or not asks_to_start(before, after)


@given(_steps)
def test_between_a_death_and_the_next_start_lies_the_back_off(steps: list[tuple[float, str]]) -> None:
    died = 0.0
    for now, _, before, after in walk(steps):
        if after.state is NodeState.RESTARTING and before.state is not NodeState.RESTARTING:
            died = now
            assert now + BACKOFF_SECONDS_FIRST <= after.retry_at <= now + BACKOFF_SECONDS_MAX
        if asks_to_start(before, after):
            assert now >= died + BACKOFF_SECONDS_FIRST


@given(_steps)
def test_ready_is_said_only_of_one_that_lives_and_answered_lately(steps: list[tuple[float, str]]) -> None:
    for now, seen, _, after in walk(steps):
        if after.state is NodeState.READY:
            assert seen != "dead"
            assert now - after.answered <= SILENCE_SECONDS_MAX


@given(_steps)
def test_a_dead_node_is_always_on_its_way_back(steps: list[tuple[float, str]]) -> None:
    for now, seen, before, after in walk(steps):
        if seen == "dead":
            assert after.state is NodeState.RESTARTING or asks_to_start(before, after)
            assert after.retry_at <= now + BACKOFF_SECONDS_MAX


@given(_steps)
def test_crashes_remembered_are_recent_ones(steps: list[tuple[float, str]]) -> None:
    for now, seen, before, after in walk(steps):
        if seen == "dead" and after.crashes != before.crashes:
            assert all(now - at < CRASH_MEMORY_SECONDS for at in after.crashes)


@given(_steps)
def test_starting_does_not_last_for_ever(steps: list[tuple[float, str]]) -> None:
    for now, seen, _, after in walk(steps):
        if after.state is NodeState.STARTING and seen == "silent":
            assert now - after.since <= START_SECONDS_MAX
