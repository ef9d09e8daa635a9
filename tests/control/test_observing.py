"""The loop in which a control plane observes the load of its clusters."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from penstock.control.service import CellWatch, ControlPlane


async def test_an_observation_that_raises_ends_neither_the_loop_nor_other_clusters() -> None:
    observed: list[str] = []

    async def observe(_observer: object, provided: Any) -> None:
        observed.append(provided.id)
        if provided.id == "bad":
            raise ValueError("not a page of metrics")

    plane = SimpleNamespace(
        _watch=CellWatch(seconds=0.0, observer=cast("Any", object())),
        _follow_fleet=lambda: None,
        _observe_one=observe,
        clusters=SimpleNamespace(known=[SimpleNamespace(id="bad"), SimpleNamespace(id="good")]),
    )
    running = asyncio.create_task(ControlPlane._observe(cast("Any", plane)))
    async with asyncio.timeout(30):
        while len(observed) < 4:
            await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])

    assert observed[:4] == ["bad", "good", "bad", "good"]
