"""Plans of a leadership term end with it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from penstock.control.load.plan_service import PlanService


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
