"""Waiting for the outcome of a request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.olep import LogMissing, OutcomeUnknown, WaitersFull
from penstock.olep.event import REJECTED, Event, request
from penstock.olep.outcome import Outcomes
from penstock.olep.store.sqlite import SqliteStores
from tests.olep.ground import Running, executor
from tests.olep.test_fold import add, counting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.olep.application import Decision, State
    from penstock.olep.log import Log

pytestmark = pytest.mark.kafka

FINAL = {"counted"}
SECONDS = 60.0


def answering(state: State, event: Event) -> Decision:
    """Counts, and answers in the log the request came from."""
    effects, (emit,) = add(state, event)
    return effects, (emit._replace(log="counts"),)


ANSWERING = counting(answering, ignores=FINAL)


@pytest.fixture
def counted(log: Log, tmp_path: Path) -> Iterator[Log]:
    """A log whose requests are executed."""
    with Running(executor(ANSWERING, log, SqliteStores(tmp_path))):
        yield log


def asked(request_id: str, by: int = 1, kind: str = "add") -> Event:
    return request(request_id, kind, {"by": by}, time=0)


def test_a_caller_learns_the_outcome_of_its_request_and_of_its_repeat(counted: Log) -> None:
    with Outcomes(counted, FINAL) as outcomes:
        first = outcomes.ask("k", asked("a", by=3), timeout=SECONDS)
        again = outcomes.ask("k", asked("a", by=3), timeout=SECONDS)
    assert (first.payload, again) == ({"value": 3}, first)


def test_a_caller_that_comes_back_later_is_answered_from_the_log(counted: Log) -> None:
    with Outcomes(counted, FINAL) as outcomes:
        first = outcomes.ask("k", asked("a", by=3), timeout=SECONDS)
        outcomes.ask("k", asked("b", by=3), timeout=SECONDS)
    with Outcomes(counted, FINAL) as outcomes:
        assert outcomes.ask("k", asked("a", by=3), timeout=SECONDS) == first


def test_many_callers_wait_at_once_in_threads_and_tasks(counted: Log) -> None:
    async def all_of(outcomes: Outcomes) -> list[Event]:
        return await asyncio.gather(
            *(outcomes.ask_async(f"k{n}", asked(f"r{n}", by=n), timeout=SECONDS) for n in range(50))
        )

    with Outcomes(counted, FINAL) as outcomes:
        found = asyncio.run(all_of(outcomes))
        assert outcomes.waiting() == 0
    assert [event.payload["value"] for event in found] == [*range(50)]


def test_a_request_that_is_rejected_is_answered_with_the_reason(counted: Log) -> None:
    with Outcomes(counted, FINAL) as outcomes:
        final = outcomes.ask("k", asked("a", kind="unheard-of"), timeout=SECONDS)
    assert (final.type, final.payload["reason"]) == (REJECTED, "unknown-type")


def test_a_deadline_that_passes_leaves_the_outcome_unknown(log: Log) -> None:
    with Outcomes(log, FINAL) as outcomes:
        with pytest.raises(OutcomeUnknown):
            outcomes.ask("k", asked("a"), timeout=0.1)
        assert outcomes.waiting() == 0


async def test_a_task_whose_deadline_passes_waits_no_longer(log: Log) -> None:
    with Outcomes(log, FINAL) as outcomes:
        with pytest.raises(OutcomeUnknown):
            await outcomes.ask_async("k", asked("a"), timeout=0.1)
        assert outcomes.waiting() == 0


def test_waiters_are_bounded(log: Log) -> None:
    with Outcomes(log, FINAL, waiters_max=1) as outcomes:
        first = outcomes.begin("k", asked("a"))
        with pytest.raises(WaitersFull):
            outcomes.begin("k", asked("b"))
    assert first.cancelled()


def test_a_repeat_of_what_left_the_memory_is_answered_from_the_log(
    counted: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.olep.outcome.RECENT_MAX", 1)
    with Outcomes(counted, FINAL) as outcomes:
        first = outcomes.ask("k", asked("a", by=2), timeout=SECONDS)
        outcomes.ask("k", asked("b", by=2), timeout=SECONDS)
        outcomes.ask("k", asked("c", by=2), timeout=SECONDS)
        assert outcomes.ask("k", asked("a", by=2), timeout=SECONDS) == first


def test_a_subscription_that_has_failed_says_so_to_every_caller(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Outcomes, messages: object) -> list[Event]:
        if self.waiting():
            raise LogMissing(topic=self.log.topic)
        return []

    monkeypatch.setattr(Outcomes, "_relevant", broken)
    with Outcomes(log, FINAL) as outcomes:
        waiting = outcomes.begin("k", asked("a"))
        with pytest.raises(LogMissing):
            waiting.result(SECONDS)
        with pytest.raises(LogMissing):
            outcomes.begin("k", asked("b"))
