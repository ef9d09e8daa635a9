"""The state of links, in the compacted topic `_penstock.links` of the destination.

definition/<link>                    what the operator asked for; written by `link create`
request/<link>                       the operator's last action; written by the commands
status/<link>                        state and progress; written by the process that runs the link
copied/<link>                        ACLs and quotas it copied; written by that process, before the copies
lineage/<link>/<topic>/<partition>   leader epochs; written by that process, before records of an epoch

The process that runs a link writes with a transactional id, so a second one fences the first.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.admin import topics
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic
from penstock.kafka.append import append
from penstock.kafka.partition_log import (
    ProducerRecord,
    TransactionalProducer,
    bounds,
    ensure_topic,
    read,
)
from penstock.link.states import State
from penstock.model.errors import PenstockError
from penstock.model.errors.link import LinkRecordInvalid, LinkStateLost
from penstock.model.key_names import LINKS_TOPIC
from penstock.model.shadow_ids import SHADOW_IDS

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.kafka.client import Client

COPIES_MAX: Final = 3
PARTITION: Final = TopicPartition(LINKS_TOPIC, 0)

Document = dict[str, Any]


async def finished(writing: Coroutine[Any, Any, None]) -> None:
    """Finish a write although its caller is cancelled meanwhile.

    In a transaction that is left half-way, the next record would have the sequence number of the last one,
    and a broker takes it for a repetition: it would be acknowledged and dropped."""
    task = asyncio.create_task(writing)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def shadows_of_links(client: Client) -> set[int]:
    """Of links that have begun and are not active: mirrors list them as replicas, also while away."""
    if isinstance((await topics.describe(client, [LINKS_TOPIC]))[LINKS_TOPIC], PenstockError):
        return set()
    store = LinkStore(client)
    await store.refresh()
    states = {name: one.get("state") for name, one in store.named("status").items()}
    return {
        one.get("shadow_id", SHADOW_IDS[0])
        for name, one in store.named("definition").items()
        if name in states and states[name] != State.ACTIVE
    }


class LinkStore:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._link = ""
        self._position: int | None = None
        self._producer: TransactionalProducer | None = None
        self._committing = asyncio.Lock()
        self._lost: str | None = None  # why nothing can be written any more
        self.documents: dict[str, Document] = {}

    async def create(self, *, copies: int, real_brokers: list[int]) -> None:
        """Create the topic if it does not exist, on real brokers."""
        replicas = real_brokers[: min(copies, COPIES_MAX)]
        configs = {"cleanup.policy": "compact"}
        await ensure_topic(self._client, NewTopic(LINKS_TOPIC, replicas={0: replicas}, configs=configs))

    async def claim(self, link: str) -> None:
        """Become the only process that writes the status of this link."""
        self._link = link
        self._producer = TransactionalProducer(self._client, f"_penstock.link.{link}")
        await self._producer.init()
        await self.refresh()

    async def refresh(self) -> None:
        """Read to the present end."""
        if self._position is None:
            self._position, _ = await bounds(self._client, PARTITION)
        while True:
            fetched = await read(self._client, PARTITION, self._position, lane="links")
            for record in fetched.records:
                self._apply(record.key, record.value)
            self._position = fetched.position
            if fetched.caught_up:
                return

    async def put(self, key: str, document: Document | None) -> None:
        """Write one document, or remove it. It is committed when this returns."""
        value = None if document is None else json.dumps(document, sort_keys=True).encode()
        if self._producer is None:
            await append(self._client, PARTITION, [(key.encode(), value)])
            self._apply(key.encode(), value)
        else:
            await finished(self._commit(self._producer, ProducerRecord(PARTITION, key.encode(), value)))

    async def _commit(self, producer: TransactionalProducer, record: ProducerRecord) -> None:
        """One at a time: a transaction has one writer."""
        async with self._committing:
            if self._lost is not None:
                raise LinkStateLost(link=self._link, reason=self._lost)
            try:
                await producer.commit([record])
            except PenstockError as error:
                # Fenced by a successor, or the outcome is unknown. To claim it again could fence a successor.
                self._lost = error.message
                raise LinkStateLost(link=self._link, reason=error.message) from error
            self._apply(record.key, record.value)

    def named(self, kind: str) -> dict[str, Document]:
        """The documents of a kind, by the rest of their key."""
        start = f"{kind}/"
        return {key[len(start) :]: one for key, one in self.documents.items() if key.startswith(start)}

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        try:
            name = (key or b"").decode()
            if value is None:
                self.documents.pop(name, None)
            else:
                self.documents[name] = json.loads(value)
        except ValueError as error:
            raise LinkRecordInvalid(topic=LINKS_TOPIC, reason=str(error)) from error
