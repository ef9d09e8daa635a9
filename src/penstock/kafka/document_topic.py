"""JSON documents by key in a compacted topic with one partition, of which one process writes.

The writer claims the documents with a transactional id: a second one fences the first.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic
from penstock.kafka.partition_log import (
    ProducerRecord,
    TransactionalProducer,
    bounds,
    ensure_topic,
    read,
)
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from penstock.kafka.client import Client

COPIES_MAX: Final = 3

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


class DocumentTopic:
    """The documents of one topic. `refresh` reads them; `claim`, then `put` writes them."""

    topic: ClassVar[str]
    unreadable: ClassVar[type[PenstockError]]  # a record of another program; gets `topic` and `reason`

    def __init__(self, client: Client) -> None:
        self._client = client
        self._partition = TopicPartition(self.topic, 0)
        self._position: int | None = None
        self._producer: TransactionalProducer | None = None
        self._committing = asyncio.Lock()
        self._lost: PenstockError | None = None  # why nothing can be written any more
        self.documents: dict[str, Document] = {}

    async def ensure(self, brokers: Sequence[int]) -> None:
        """Create the topic on the first of these brokers if it does not exist."""
        replicas = {0: list(brokers[:COPIES_MAX])}
        topic = NewTopic(self.topic, replicas=replicas, configs={"cleanup.policy": "compact"})
        await ensure_topic(self._client, topic)

    async def claim_as(self, transactional_id: str) -> None:
        """Become the only process that writes as this transactional id, and read what was written."""
        self._producer = TransactionalProducer(self._client, transactional_id)
        await self._producer.init()
        await self.refresh()

    async def refresh(self) -> None:
        """Read to the present end."""
        if self._position is None:
            self._position, _ = await bounds(self._client, self._partition)
        while True:
            fetched = await read(self._client, self._partition, self._position, lane=self.topic)
            for record in fetched.records:
                self._apply(record.key, record.value)
            self._position = fetched.position
            if fetched.caught_up:
                return

    async def put(self, key: str, document: Document | None) -> None:
        """Write one document, or remove it. It is committed when this returns."""
        assert self._producer is not None, "call claim_as() before put()"
        record = ProducerRecord(self._partition, key.encode(), encoded(document))
        await finished(self._commit(self._producer, record))

    def named(self, kind: str) -> dict[str, Document]:
        """The documents of a kind, by the rest of their key."""
        start = f"{kind}/"
        return {key[len(start) :]: one for key, one in self.documents.items() if key.startswith(start)}

    async def _commit(self, producer: TransactionalProducer, record: ProducerRecord) -> None:
        """One at a time: a transaction has one writer."""
        async with self._committing:
            if self._lost is not None:
                raise self._lost.with_traceback(None)
            try:
                await producer.commit([record])
            except PenstockError as error:
                # Fenced by a successor, or the outcome is unknown. To claim it again could fence a successor.
                self._lost = self._state_lost(error)
                raise self._lost from error
            self._apply(record.key, record.value)

    def _state_lost(self, cause: PenstockError) -> PenstockError:
        """What is raised by this write, and by every later one."""
        return cause

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        try:
            name = (key or b"").decode()
            if value is None:
                self.documents.pop(name, None)
            else:
                self.documents[name] = json.loads(value)
        except ValueError as error:
            raise self.unreadable(topic=self.topic, reason=str(error)) from error


def encoded(document: Document | None) -> bytes | None:
    return None if document is None else json.dumps(document, sort_keys=True).encode()
