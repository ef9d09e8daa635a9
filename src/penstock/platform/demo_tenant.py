"""The demo tenant: a logical cluster with the topic `orders`, and a record a second."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.admin import topics
from penstock.kafka.admin.partitions import TopicPartition, wait_for_leaders
from penstock.kafka.append import append
from penstock.model.errors import PenstockError
from penstock.model.errors.control import ProblemResponse
from penstock.platform.control_client import connect
from penstock.platform.keyring import create_key, saved_key, saved_keys
from penstock.timed_wait import wait_at_most
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from penstock.fleet.layout import Layout
    from penstock.platform.keyring import SavedKey

NAME: Final = "demo"
TOPIC: Final = "orders"
PARTITIONS: Final = 3
SECONDS_BETWEEN: Final = 1.0
READY_SECONDS: Final = 60.0
_NAME_TAKEN: Final = "PEN-5003"


@dataclass(frozen=True, slots=True)
class DemoTenant:
    layout: Layout
    url: str  # of the control plane

    async def create(self) -> dict[str, str]:
        """Create the cluster, its key and its topic, or find those of an earlier start.

        Returns once a record is written: so the control plane and the gateway work, too.
        """
        facts: dict[str, str] = {}
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                facts = facts or await asyncio.to_thread(self._create_cluster)
                await _create_topic(saved_key(self.layout, NAME))
                return facts
            except PenstockError as error:  # a gateway that still starts refuses even the right key
                if not (facts or error.retriable) or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)

    async def write_orders(self, stop: asyncio.Event) -> None:
        """Append an order a second until `stop`; one that fails is lost."""
        number = 0
        async with saved_key(self.layout, NAME).client() as client:
            while not stop.is_set():
                number += 1
                order = json.dumps({"order": number, "at": int(time.time() * 1000)}).encode()
                with contextlib.suppress(PenstockError):
                    partition = TopicPartition(TOPIC, number % PARTITIONS)
                    await append(client, partition, [(str(number % 10).encode(), order)])
                await wait_at_most(stop, SECONDS_BETWEEN)

    def _create_cluster(self) -> dict[str, str]:
        control = connect(self.layout, self.url)
        try:
            created = control.change("POST", "/clusters", {"name": NAME})
            control.wait(created["operation"])
        except ProblemResponse as error:
            if error.code != _NAME_TAKEN:
                raise
        cluster: dict[str, Any] = control.get(f"/clusters/{NAME}")
        place = (cluster["id"], cluster["bootstrap"])
        if place not in [(key.cluster, key.bootstrap) for key in saved_keys(self.layout)]:
            create_key(control, self.layout, cluster, description="of the demo")
        key = saved_key(self.layout, NAME)
        return {"id": key.cluster, "name": NAME, "bootstrap": key.bootstrap, "key": key.key}


async def _create_topic(key: SavedKey) -> None:
    async with key.client() as client:
        topic = topics.NewTopic(TOPIC, PARTITIONS, configs={"retention.ms": str(3600 * 1000)})
        created = (await topics.create(client, [topic]))[TOPIC]
        if (
            isinstance(created, PenstockError)
            and created.facts.get("error_code") != Code.TOPIC_ALREADY_EXISTS
        ):
            raise created
        partitions = await wait_for_leaders(client, TOPIC)
        await append(client, partitions[0], [(None, b'{"order": 0}')])
