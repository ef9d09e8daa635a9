"""The states of a node under observations: as scenarios, and as properties of all sequences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fleet.node_watch import (
    BACKOFF,
    CRASH_MEMORY_SECONDS,
    SILENCE_SECONDS_MAX,
    START_SECONDS_MAX,
    NodeState,
    Observation,
    Watch,
    new_watch,
    next_watch,
    should_start,
)

OBSERVATIONS = {
    "responds": Observation(alive=True, responds=True),
    "silent": Observation(alive=True, responds=False),
    "dead": Observation(alive=False, responds=False),
}

# Each line: the time, the observation, and the resulting state. `!` starts the process.
SCENARIOS = {
    "a node that starts and responds is ready": """
        1    silent   starting
        5    responds ready
        6    responds ready
    """,
    "a node may take long to start": """
        1    silent   starting
        89   silent   starting
        91   silent   unresponsive
        200  responds ready
    """,
    "a ready node that stops responding is unresponsive after some seconds": """
        1    responds ready
        3    silent   ready
        7    silent   ready
        7.5  silent   unresponsive
        20   silent   unresponsive
        21   responds ready
    """,
    "a node that dies is restarted": """
        1    responds ready
        10   dead     restarting
        10.4 dead     restarting
        10.5 dead     starting !
        11   silent   starting
        15   responds ready
    """,
    "a node that keeps dying is restarted with growing pauses": """
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
        2    responds ready
        400  dead     restarting
        400.5 dead    starting !
    """,
    "an unresponsive node that dies is restarted": """
        1    responds ready
        8    silent   unresponsive
        9    dead     restarting
        9.5  dead     starting !
    """,
    "a node that another process started is not started twice": """
        1    responds ready
        2    dead     restarting
        2.2  silent   starting
        4    responds ready
    """,
    "a failed start counts as a crash": """
        1    dead     restarting
        1.5  dead     starting !
        1.7  dead     restarting
        2.6  dead     restarting
        2.7  dead     starting !
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    watch = new_watch(0.0)
    states = []
    for line in SCENARIOS[name].strip().splitlines():
        time, observation, *_ = line.split()
        before, watch = watch, next_watch(watch, OBSERVATIONS[observation], float(time))
        start = " !" if should_start(before, watch) else ""
        states.append(f"{time} {observation} {watch.state}{start}")

    assert states == [" ".join(line.split()) for line in SCENARIOS[name].strip().splitlines()]


def test_a_restart_is_counted() -> None:
    watch = Watch(NodeState.RESTARTING, since=0.0, retry_at=1.0, restarts=4)

    assert next_watch(watch, OBSERVATIONS["dead"], 1.0).restarts == 5


def test_back_off_doubles_up_to_its_bound() -> None:
    assert [BACKOFF.seconds(n) for n in (1, 2, 3, 6, 7, 50)] == [0.5, 1.0, 2.0, 16.0, 30.0, 30.0]


_steps = st.lists(st.tuples(st.floats(0.0, 60.0), st.sampled_from(sorted(OBSERVATIONS))), max_size=30)


def walk(steps: list[tuple[float, str]]) -> list[tuple[float, str, Watch, Watch]]:
    watch, now, walked = new_watch(0.0), 0.0, []
    for pause, observation in steps:
        now += pause
        before, watch = watch, next_watch(watch, OBSERVATIONS[observation], now)
        walked.append((now, observation, before, watch))
    return walked


@given(_steps)
def test_a_live_node_is_never_started(steps: list[tuple[float, str]]) -> None:
    for _, observation, before, after in walk(steps):
        assert observation == "dead" or not should_start(before, after)


@given(_steps)
def test_a_restart_waits_for_the_back_off(steps: list[tuple[float, str]]) -> None:
    died = 0.0
    for now, _, before, after in walk(steps):
        if after.state is NodeState.RESTARTING and before.state is not NodeState.RESTARTING:
            died = now
            assert now + BACKOFF.first_seconds <= after.retry_at <= now + BACKOFF.most_seconds
        if should_start(before, after):
            assert now >= died + BACKOFF.first_seconds


@given(_steps)
def test_a_ready_node_is_alive_and_responded_recently(steps: list[tuple[float, str]]) -> None:
    for now, observation, _, after in walk(steps):
        if after.state is NodeState.READY:
            assert observation != "dead"
            assert now - after.responded_at <= SILENCE_SECONDS_MAX


@given(_steps)
def test_a_dead_node_is_always_about_to_be_restarted(steps: list[tuple[float, str]]) -> None:
    for now, observation, before, after in walk(steps):
        if observation == "dead":
            assert after.state is NodeState.RESTARTING or should_start(before, after)
            assert after.retry_at <= now + BACKOFF.most_seconds


@given(_steps)
def test_only_recent_crashes_are_counted(steps: list[tuple[float, str]]) -> None:
    for now, observation, before, after in walk(steps):
        if observation == "dead" and after.crashes != before.crashes:
            assert all(now - at < CRASH_MEMORY_SECONDS for at in after.crashes)


@given(_steps)
def test_starting_is_bounded_in_time(steps: list[tuple[float, str]]) -> None:
    for now, observation, _, after in walk(steps):
        if after.state is NodeState.STARTING and observation == "silent":
            assert now - after.since <= START_SECONDS_MAX
