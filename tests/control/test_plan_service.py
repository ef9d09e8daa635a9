"""Plans of a leadership term end with it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.balance.executing import Observation
from penstock.balance.plan_document import Origin, PlanDocument, PlannedMove, PlanState, new_document
from penstock.control.load import plan_service, plan_store
from penstock.control.load.plan_service import PlanService
from penstock.control.load.plan_store import TRANSACTIONAL_ID, PlanWriter
from penstock.model.backoff import Backoff
from penstock.model.errors.wire import KafkaBusy

if TYPE_CHECKING:
    from penstock.balance.plan_document import PlanHeader
    from penstock.balance.plan_job import PlanJob

NOW_MS = int(time.time() * 1000)
COPY = PlannedMove("orders", "t1", 0, (1, 2), (3, 2))
HANDOVER = PlannedMove("orders", "t1", 0, (1, 2), (2, 1))


class Store:
    """Signals when its reader waits for a change."""

    def __init__(self) -> None:
        self.documents = SimpleNamespace(headers={})
        self.waited_for = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def changed(self) -> Store:
        return self

    def clear(self) -> None:
        self._changed.clear()

    def set(self) -> None:
        self._changed.set()

    async def wait(self) -> None:
        self.waited_for.set()
        await self._changed.wait()


class Writer:
    async def init(self) -> None:
        pass

    async def until_failed(self) -> None:
        await asyncio.Event().wait()


async def test_a_term_ends_although_a_plan_changes_at_that_moment() -> None:
    store, clusters = Store(), SimpleNamespace(known=())
    service = PlanService(*cast("tuple[Any, Any, Any, Any]", (store, Writer(), clusters, None)))
    running = asyncio.create_task(service.run())
    await store.waited_for.wait()

    store.set()
    running.cancel()

    done, _ = await asyncio.wait([running], timeout=10)
    assert done
    assert running.cancelled()


@dataclass
class Running:
    """A service with one plan that runs, whose moves succeed after some failures."""

    move: PlannedMove
    failures: list[Exception] = field(default_factory=list)
    obstacle: str = ""
    runs: int = 0

    def __post_init__(self) -> None:
        document = new_document([self.move], Origin("plan-1", "pkc-1", 0, "test", "balance"))
        self.store = Store()
        self.document = PlanDocument(document.header.started(NOW_MS), document.moves)
        self.store.documents.headers["plan-1"] = self.document.header
        cast("Any", self.store).need = lambda _: self.document
        clusters = SimpleNamespace(known=(), has=lambda _: True)
        everything = (self.store, self, clusters, lambda _: self)
        self.service = PlanService(
            *cast("tuple[Any, Any, Any, Any]", everything), obstacle=lambda _: self.obstacle
        )

    async def init(self) -> None:
        """As a writer."""

    async def until_failed(self) -> None:
        await asyncio.Event().wait()

    async def put(self, header: PlanHeader) -> None:
        self.document = PlanDocument(header, self.document.moves)
        self.store.documents.headers["plan-1"] = header
        self.store.set()

    async def run(self, job: PlanJob) -> None:
        """As an executor."""
        self.runs += 1
        if self.failures:
            raise self.failures.pop()

    async def until(self, state: PlanState) -> None:
        running = asyncio.create_task(self.service.run())
        async with asyncio.timeout(30):
            while self.document.header.state is not state:
                assert not running.done()
                await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.wait([running])


async def test_a_defect_of_one_plan_does_not_end_the_control_plane() -> None:
    plan = Running(COPY, [KeyError("orders")])

    await plan.until(PlanState.DONE)

    assert plan.runs == 2


async def test_during_a_roll_only_plans_begin_that_copy_nothing() -> None:
    copies = Running(COPY, obstacle="a roll is under way")
    running = asyncio.create_task(copies.service.run())
    await copies.store.waited_for.wait()
    assert copies.runs == 0
    assert copies.document.header.progress.waiting == "a roll is under way"
    running.cancel()
    await asyncio.wait([running])

    await Running(HANDOVER, obstacle="a roll is under way").until(PlanState.DONE)


@pytest.mark.parametrize("under_way", [frozenset(), frozenset({("orders", 0)})])
async def test_rates_are_not_removed_while_a_predecessors_copies_are_under_way(
    monkeypatch: pytest.MonkeyPatch, under_way: frozenset[tuple[str, int]]
) -> None:
    tidied: list[frozenset[int]] = []

    async def seen(_client: object) -> Observation:
        return Observation({}, frozenset({1}), under_way)

    async def tidy(alive: frozenset[int]) -> None:
        tidied.append(alive)

    monkeypatch.setattr(plan_service, "observe", seen)
    clusters = SimpleNamespace(client=lambda _: None)
    everything = (None, None, clusters, lambda _: SimpleNamespace(tidy=tidy))
    service = PlanService(*cast("tuple[Any, Any, Any, Any]", everything))

    await service._return_round("pkc-1", {})

    assert tidied == ([] if under_way else [frozenset({1})])


async def test_a_plan_can_be_cancelled_during_a_roll() -> None:
    plan = Running(COPY, obstacle="a roll is under way")
    await plan.put(plan.document.header.cancelled(NOW_MS, roll_back=False))

    await plan.until(PlanState.CANCELLED)


async def test_after_a_write_that_failed_for_its_caller_the_transactional_id_is_claimed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the next state of a plan would be acknowledged and dropped."""
    claims: list[str] = []

    class Producer:
        async def init(self) -> None:
            claims.append(TRANSACTIONAL_ID)

        async def commit(self, _: object) -> dict[object, int]:
            raise KafkaBusy(subject="", api="EndTxn", detail="REQUEST_TIMED_OUT")

    async def bounds(*_: object) -> tuple[int, int]:
        return 0, 0

    async def wait_for_offset(_: int) -> None:
        pass

    store = Store()
    cast("Any", store).follower = SimpleNamespace(wait_for_offset=wait_for_offset)
    monkeypatch.setattr(plan_store, "bounds", bounds)
    monkeypatch.setattr(plan_service, "BACKOFF", Backoff(0.001, 0.001))
    writer = PlanWriter(cast("Any", None), cast("Any", store))
    writer._producer = cast("Any", Producer())
    clusters = SimpleNamespace(known=())
    service = PlanService(*cast("tuple[Any, Any, Any, Any]", (store, writer, clusters, None)))
    running = asyncio.create_task(service.run())
    await store.waited_for.wait()

    with pytest.raises(KafkaBusy):
        await writer.put(cast("Any", SimpleNamespace(key=b"plan", to_bytes=bytes)))

    async with asyncio.timeout(30):
        while len(claims) < 2:
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.wait([running], timeout=10)
