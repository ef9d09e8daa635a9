"""Loops that handle errors of a task group end if they are cancelled at the moment of such an error."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.cancellation import run_separately
from penstock.cluster_services import ClusterServices
from penstock.gateway.process.server import _kept
from penstock.model.errors.wire import BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

UNREACHABLE = BrokerUnreachable(address="east:9092", reason="connection refused")


class FailsWhenCancelled:
    """A service whose task group fails when it is cancelled."""

    def __init__(self) -> None:
        self.starts = 0
        self.started = asyncio.Event()

    async def run(self) -> None:
        self.starts += 1
        async with asyncio.TaskGroup() as group:
            group.create_task(self._part())
            self.started.set()
            await asyncio.Event().wait()

    async def _part(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise UNREACHABLE

    def not_ready(self) -> str:
        return ""


def loop_of(service: FailsWhenCancelled) -> Coroutine[Any, Any, None]:
    async def loop() -> None:
        while True:
            try:
                await run_separately(service.run())
            except* BrokerUnreachable:
                pass  # starts again, as services do

    return loop()


def cluster_service_of(service: FailsWhenCancelled) -> Coroutine[Any, Any, None]:
    return ClusterServices[FailsWhenCancelled]({}).run({"east": lambda: service, "west": lambda: service})


def task_of_a_gateway(service: FailsWhenCancelled) -> Coroutine[Any, Any, None]:
    return _kept("reports", service.run)


@pytest.mark.parametrize("make", [loop_of, cluster_service_of, task_of_a_gateway])
async def test_a_cancelled_loop_ends_although_its_task_group_failed(
    make: Callable[[FailsWhenCancelled], Coroutine[Any, Any, None]],
) -> None:
    service = FailsWhenCancelled()
    loop = asyncio.create_task(make(service))
    await service.started.wait()
    before = service.starts

    loop.cancel()
    done, _ = await asyncio.wait({loop}, timeout=30)

    assert done
    assert loop.cancelled()
    assert service.starts - before <= 1  # of two services, the second may only be starting


async def test_an_error_or_a_result_reaches_the_caller_that_is_not_cancelled() -> None:
    async def succeed() -> int:
        return 7

    async def fail() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(refuse())

    async def refuse() -> None:
        raise UNREACHABLE

    assert await run_separately(succeed()) == 7
    for _ in range(3):
        with pytest.raises(ExceptionGroup):
            await run_separately(fail())


async def test_the_work_has_ended_when_its_caller_is_cancelled() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("closed")

    caller = asyncio.create_task(run_separately(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait({caller})

    assert caller.cancelled()
    assert steps == ["closed"]
