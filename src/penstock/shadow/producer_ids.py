"""Keeps new producer ids of a cluster above those of mirrored and restored logs.

A new producer with a mirrored id would be taken for the mirrored one: fenced, or worse, its first batch
acknowledged as a duplicate and dropped. Brokers allocate ids from blocks that they get from the controller.
So blocks up to the largest mirrored id are allocated here and not used, and ids of the block that a broker
already has are used up. Links do so all the time, not at a failover.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.kafka.broker_errors import check
from penstock.kafka.routing import CONTROLLER, NodeWithId
from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from penstock.kafka.client import Client
    from penstock.shadow.broker import ShadowBroker

BLOCKS_MAX: Final = 200  # allocated at a time, 1,000 ids each
AT_ONCE_MAX: Final = 20
IDS_MAX: Final = 3_000  # used up at a time on one broker: its block, and the next one it has fetched
NO_PRODUCER: Final = -1
TIMEOUT_MS: Final = 30_000


class ProducerIds:
    def __init__(self, shadow: ShadowBroker, brokers: Client, controllers: Client) -> None:
        self._shadow = shadow
        self._brokers = brokers
        self._controllers = controllers
        self._allocated = 0  # ids below this one are in blocks that are allocated
        self._given: dict[int, int] = {}  # broker → the last id it gave
        self.largest = NO_PRODUCER  # mirrored

    def saw(self, producer_id: int) -> None:
        self.largest = max(self.largest, producer_id)

    @property
    def below(self) -> tuple[int, ...]:
        """Brokers that may still give a mirrored id to a new producer."""
        return tuple(broker for broker in self._real() if self._given.get(broker, -1) < self.largest)

    async def burn(self) -> None:
        """One round: bounded, and continued by the next one."""
        if not self.below:
            return
        for _ in range(0, BLOCKS_MAX, AT_ONCE_MAX):
            if self._allocated > self.largest:
                break
            left = (self.largest - self._allocated) // 1_000 + 1
            await asyncio.gather(*(self._allocate() for _ in range(min(AT_ONCE_MAX, left))))
        for broker in self.below:
            await self._use_up(broker)

    async def _allocate(self) -> None:
        body = {"BrokerId": self._shadow.id, "BrokerEpoch": self._shadow.session.broker_epoch}
        block = await self._controllers.call("AllocateProducerIds", body, to=CONTROLLER)
        check("AllocateProducerIds", block["ErrorCode"])
        self._allocated = max(self._allocated, block["ProducerIdStart"] + block["ProducerIdLen"])

    async def _use_up(self, broker: int) -> None:
        await self._give(broker)
        for _ in range(0, IDS_MAX, AT_ONCE_MAX):
            if self._given[broker] >= self.largest or self._allocated <= self.largest:
                return
            await asyncio.gather(*(self._give(broker) for _ in range(AT_ONCE_MAX)))

    async def _give(self, broker: int) -> None:
        body = {"TransactionalId": None, "TransactionTimeoutMs": TIMEOUT_MS}
        response = await self._brokers.call("InitProducerId", body, to=NodeWithId(broker), lane="ids")
        check("InitProducerId", response["ErrorCode"], None, f"broker {broker}")
        self._given[broker] = max(self._given.get(broker, -1), response["ProducerId"])

    def _real(self) -> list[int]:
        brokers = self._shadow.image.brokers.items()
        return sorted(broker for broker, one in brokers if not one.fenced and not is_shadow(broker))
