"""A publisher that ends fails what waits for it: the operation is tried again with the next publisher."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from penstock.control.gateways.state_publisher import StatePublisher
from penstock.control.registry import Registry
from penstock.model.errors.wire import BrokerUnreachable, ConnectionLost

if TYPE_CHECKING:
    from penstock.kafka.client import Client


class UnreachableClient:
    """Fails once the test lets it."""

    def __init__(self) -> None:
        self.fails = asyncio.Event()

    async def call(self, *_: object, **__: object) -> None:
        await self.fails.wait()
        raise BrokerUnreachable(address="pkc-000001", reason="refused")


def publisher_of(client: UnreachableClient) -> StatePublisher:
    return StatePublisher(cast("Client", client), "pkc-000001", Registry, lambda: True)


@pytest.mark.timeout(30)
async def test_a_state_that_waits_for_a_publisher_fails_when_that_ends() -> None:
    client = UnreachableClient()
    publisher = publisher_of(client)
    running = asyncio.create_task(publisher.run())
    waiting = asyncio.create_task(publisher.publish("lkc-000001"))
    await asyncio.sleep(0)

    client.fails.set()

    with pytest.raises(ConnectionLost, match="pkc-000001") as failure:
        await waiting
    assert failure.value.retriable
    with pytest.raises(BrokerUnreachable):
        await running


@pytest.mark.timeout(30)
async def test_a_state_given_to_a_publisher_that_has_ended_fails_at_once() -> None:
    publisher = publisher_of(UnreachableClient())
    running = asyncio.create_task(publisher.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    with pytest.raises(ConnectionLost):
        await publisher.publish("lkc-000001")
