"""The start of a control plane while its home is away for a moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.control import home
from penstock.control.home import until_reached
from penstock.model.backoff import Backoff
from penstock.model.errors.wire import ConnectionLost, KafkaDenied

if TYPE_CHECKING:
    from penstock.model.errors import PenstockError


class Preparation:
    """Fails in turn, then succeeds."""

    def __init__(self, *failures: PenstockError) -> None:
        self.failures = list(failures)
        self.calls = 0

    async def __call__(self) -> None:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)


def lost() -> ConnectionLost:
    return ConnectionLost(address="kafka:1", reason="the broker closed it")


async def test_a_lost_connection_does_not_end_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "AGAIN", Backoff(0.001, 0.001))
    prepare = Preparation(lost(), lost())

    assert await until_reached(prepare, asyncio.Event())

    assert prepare.calls == 3


async def test_what_needs_an_operator_ends_it() -> None:
    denied = KafkaDenied(subject="", api="CreateTopics", detail="TOPIC_AUTHORIZATION_FAILED")

    with pytest.raises(KafkaDenied):
        await until_reached(Preparation(denied), asyncio.Event())


async def test_a_shutdown_is_not_delayed() -> None:
    stop = asyncio.Event()
    stop.set()

    assert not await until_reached(Preparation(lost()), stop)
