"""Waiting for the outcome of a request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.olep import LogMissing, OutcomeUnknown, WaitersFull
from penstock.olep.event import REJECTED, Event, request
from penstock.olep.outcome import Outcomes
from penstock.olep.store.sqlite import SqliteStores
from tests.olep.bank_harness import RunningExecutor, executor
from tests.olep.test_fold import add, counting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.olep.application import Decision, State
    from penstock.olep.log import Log

pytestmark = pytest.mark.kafka

FINAL = {"counted"}
SECONDS = 60.0


def count_in_same_log(state: State, event: Event) -> Decision:
    """Counts, and emits the total to the log of the request."""
    effects, (emit,) = add(state, event)
    return effects, (emit._replace(log="counts"),)


COUNTING = counting(count_in_same_log, ignores=FINAL)


@pytest.fixture
def counted(log: Log, tmp_path: Path) -> Iterator[Log]:
    """A log whose requests are executed."""
    with RunningExecutor(executor(COUNTING, log, SqliteStores(tmp_path))):
        yield log


def add_request(request_id: str, by: int = 1, kind: str = "add") -> Event:
    return request(request_id, kind, {"by": by}, time=0)


def test_a_caller_gets_the_outcome_of_its_request_and_of_a_repeat(counted: Log) -> None:
    with Outcomes(counted, FINAL) as outcomes:
        first = outcomes.ask("k", add_request("a", by=3), timeout=SECONDS)
        again = outcomes.ask("k", add_request("a", by=3), timeout=SECONDS)
    assert (first.payload, again) == ({"value": 3}, first)


def test_the_outcome_of_an_old_request_is_read_from_the_log(counted: Log) -> None:
    with Outcomes(counted, FINAL) as outcomes:
        first = outcomes.ask("k", add_request("a", by=3), timeout=SECONDS)
        outcomes.ask("k", add_request("b", by=3), timeout=SECONDS)
    with Outcomes(counted, FINAL) as outcomes:
        assert outcomes.ask("k", add_request("a", by=3), timeout=SECONDS) == first


def test_an_outcome_in_another_partition_is_read_from_the_log(log: Log, tmp_path: Path) -> None:
    """The request is in the partition of `k`, its outcome in that of another key."""
    other = next(key for key in map(str, range(100)) if log.partition_of(key) != log.partition_of("k"))

    def elsewhere(state: State, event: Event) -> Decision:
        effects, (emit,) = count_in_same_log(state, event)
        return effects, (emit._replace(key=other),)

    with RunningExecutor(executor(counting(elsewhere, ignores=FINAL), log, SqliteStores(tmp_path))):
        with Outcomes(log, FINAL) as outcomes:
            first = outcomes.ask("k", add_request("a", by=3), timeout=SECONDS)
        assert first.partition == log.partition_of(other)
        with Outcomes(log, FINAL) as outcomes:
            assert outcomes.ask("k", add_request("a", by=3), timeout=SECONDS) == first
            assert outcomes.ask("k", add_request("a", by=3), timeout=SECONDS) == first


def test_many_callers_wait_at_once_in_threads_and_tasks(counted: Log) -> None:
    async def all_of(outcomes: Outcomes) -> list[Event]:
        return await asyncio.gather(
            *(outcomes.ask_async(f"k{n}", add_request(f"r{n}", by=n), timeout=SECONDS) for n in range(50))
        )

    with Outcomes(counted, FINAL) as outcomes:
        finals = asyncio.run(all_of(outcomes))
        assert outcomes.waiting() == 0
    assert [event.payload["value"] for event in finals] == [*range(50)]


def test_the_outcome_of_a_rejected_request_has_the_reason(counted: Log) -> None:
    with Outcomes(counted, FINAL) as outcomes:
        final = outcomes.ask("k", add_request("a", kind="unknown"), timeout=SECONDS)
    assert (final.type, final.payload["reason"]) == (REJECTED, "unknown-type")


def test_after_a_timeout_the_outcome_is_unknown(log: Log) -> None:
    with Outcomes(log, FINAL) as outcomes:
        with pytest.raises(OutcomeUnknown):
            outcomes.ask("k", add_request("a"), timeout=0.1)
        assert outcomes.waiting() == 0


async def test_after_a_timeout_an_asyncio_task_waits_no_longer(log: Log) -> None:
    with Outcomes(log, FINAL) as outcomes:
        with pytest.raises(OutcomeUnknown):
            await outcomes.ask_async("k", add_request("a"), timeout=0.1)
        assert outcomes.waiting() == 0


def test_waiters_are_bounded(log: Log) -> None:
    with Outcomes(log, FINAL, waiters_max=1) as outcomes:
        first = outcomes.submit("k", add_request("a"))
        with pytest.raises(WaitersFull):
            outcomes.submit("k", add_request("b"))
    assert first.cancelled()


def test_an_outcome_evicted_from_memory_is_read_from_the_log(
    counted: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.olep.outcome.RECENT_MAX", 1)
    with Outcomes(counted, FINAL) as outcomes:
        first = outcomes.ask("k", add_request("a", by=2), timeout=SECONDS)
        outcomes.ask("k", add_request("b", by=2), timeout=SECONDS)
        outcomes.ask("k", add_request("c", by=2), timeout=SECONDS)
        assert outcomes.ask("k", add_request("a", by=2), timeout=SECONDS) == first


def test_a_failed_subscription_raises_its_error_to_every_caller(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Outcomes, messages: object) -> list[Event]:
        if self.waiting():
            raise LogMissing(topic=self.log.topic)
        return []

    monkeypatch.setattr(Outcomes, "_relevant", broken)
    with Outcomes(log, FINAL) as outcomes:
        waiting = outcomes.submit("k", add_request("a"))
        with pytest.raises(LogMissing):
            waiting.result(SECONDS)
        with pytest.raises(LogMissing):
            outcomes.submit("k", add_request("b"))
