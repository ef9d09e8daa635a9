"""Waiting until every broker has heard: news reaches them one after the other.

    await topics_heard(fleet, "orders")       # and who leads its partitions
    await setting_heard(fleet, "orders", "max.message.bytes", "1000000")

Whoever asks right after a change may ask a broker that does not know of it yet.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from penstock.fleet.spec import Listener
from penstock.kafka.connection import Connection
from tests.ground.topics import led_everywhere

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from tests.ground.fleet import Fleet

HEARD_SECONDS_MAX = 60.0
_TOPIC_RESOURCE = 2


async def topics_heard(fleet: Fleet, *topics: str) -> None:
    for topic in topics:
        await led_everywhere(fleet.bootstrap, fleet.security(), topic)


async def setting_heard(fleet: Fleet, topic: str, name: str, value: str) -> None:
    async def known(broker: Connection) -> bool:
        wanted = {"ResourceType": _TOPIC_RESOURCE, "ResourceName": topic, "ConfigurationKeys": [name]}
        answer = await broker.call("DescribeConfigs", {"Resources": [wanted]})
        return any(each["Value"] == value for found in answer["Results"] for each in found["Configs"])

    await _every_broker(fleet, known)


def now(waiting: Coroutine[Any, Any, None]) -> None:
    """Waits in plain code, also where an event loop runs already."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, waiting).result()


async def _every_broker(fleet: Fleet, known: Callable[[Connection], Awaitable[bool]]) -> None:
    security = fleet.security()
    async with asyncio.timeout(HEARD_SECONDS_MAX):
        for node in fleet.brokers:
            host, port = node.spec.host, node.spec.ports[Listener.INTERNAL]
            async with await Connection.open(host, port, security, timeout=HEARD_SECONDS_MAX) as broker:
                while not await known(broker):
                    await asyncio.sleep(0.02)
