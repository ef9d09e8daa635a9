"""Services of several clusters in one process: each fails alone."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from penstock import cluster_services
from penstock.cluster_services import STARTING, ClusterServices
from penstock.model.backoff import Backoff
from penstock.model.errors.wire import BrokerUnreachable, KafkaDenied

if TYPE_CHECKING:
    from collections.abc import Callable

UNREACHABLE = BrokerUnreachable(address="east:9092", reason="connection refused")
DENIED = KafkaDenied(subject="", api="JoinGroup", detail="GROUP_AUTHORIZATION_FAILED")


class Recorded:
    """A service that raises what it is given, or serves."""

    def __init__(self, name: str, starts: list[str], failures: list[Exception]) -> None:
        self.name, self.serves = name, False
        self._starts, self._failures = starts, failures

    async def run(self) -> None:
        self._starts.append(self.name)
        if self._failures:
            raise ExceptionGroup("unhandled errors in a TaskGroup", [self._failures.pop(0)])
        self.serves = True
        try:
            await asyncio.Event().wait()
        finally:
            self.serves = False

    def not_ready(self) -> str:
        return "" if self.serves else "it starts"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_services, "RESTART", Backoff(0.01, 0.01))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "failure", [UNREACHABLE, DENIED, KeyError("a defect")], ids=["down", "denied", "bug"]
)
async def test_a_cluster_whose_service_fails_stops_no_other_and_is_served_again(failure: Exception) -> None:
    starts: list[str] = []
    running: dict[str, Recorded] = {}
    services = ClusterServices(running)
    assert services.not_ready() == STARTING
    made = {
        "east": partial(Recorded, "east", starts, [failure, failure]),
        "west": partial(Recorded, "west", starts, []),
    }
    task = asyncio.create_task(services.run(made))
    await until(lambda: "east: " in services.not_ready() and running["west"].serves)
    await until(lambda: services.not_ready() == "")
    assert (starts.count("east"), starts.count("west")) == (3, 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not running["west"].serves


async def test_the_only_cluster_is_waited_for() -> None:
    running: dict[str, Recorded] = {}
    services = ClusterServices(running)
    task = asyncio.create_task(services.run({"east": partial(Recorded, "east", [], [UNREACHABLE])}))
    await until(lambda: "connection refused" in services.not_ready())
    await until(lambda: services.not_ready() == "")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_error_of_the_only_cluster_that_a_retry_cannot_help_ends_the_process() -> None:
    services: ClusterServices[Recorded] = ClusterServices({})
    with pytest.raises(ExceptionGroup) as raised:
        await services.run({"east": partial(Recorded, "east", [], [DENIED])})
    assert raised.group_contains(KafkaDenied)
