"""The state of restores, in the compacted topic `_penstock.restores` of the cluster.

restore/<id>                       what is restored, how far, and its result
lineage/<id>/<topic>/<partition>   leader epochs, written before records of an epoch are served

The process that restores writes with a transactional id, so a second one fences the first.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from penstock.backup.restore_steps import is_complete
from penstock.kafka.admin import brokers, topics
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic
from penstock.kafka.partition_log import ProducerRecord, TransactionalProducer, bounds, ensure_topic, read
from penstock.model.errors import PenstockError
from penstock.model.errors.backup import RestoreRecordInvalid
from penstock.model.key_names import RESTORES_TOPIC
from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from penstock.kafka.client import Client

COPIES_MAX: Final = 3
PARTITION: Final = TopicPartition(RESTORES_TOPIC, 0)
RESTORE: Final = "restore/"
LINEAGE: Final = "lineage/"

Document = dict[str, Any]


class RestoreStore:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._position: int | None = None
        self._producer: TransactionalProducer | None = None
        self._lost: PenstockError | None = None  # why nothing can be written any more
        self.documents: dict[str, Document] = {}

    async def claim(self) -> None:
        """Create the topic on real brokers if needed, and become the only process that writes it."""
        registered = await brokers.describe(self._client)
        real = sorted(broker for broker in registered.brokers if not is_shadow(broker))[:COPIES_MAX]
        configs = {"cleanup.policy": "compact"}
        await ensure_topic(self._client, NewTopic(RESTORES_TOPIC, replicas={0: real}, configs=configs))
        self._producer = TransactionalProducer(self._client, "_penstock.restore")
        await self._producer.init()
        await self.refresh()

    async def exists(self) -> bool:
        described = (await topics.describe(self._client, [RESTORES_TOPIC]))[RESTORES_TOPIC]
        return not isinstance(described, PenstockError)

    async def refresh(self) -> None:
        """Read to the present end."""
        if self._position is None:
            self._position, _ = await bounds(self._client, PARTITION)
        while True:
            fetched = await read(self._client, PARTITION, self._position, lane="restores")
            for record in fetched.records:
                self._apply(record.key, record.value)
            self._position = fetched.position
            if fetched.caught_up:
                return

    async def put(self, key: str, document: Document | None) -> None:
        """Write one document, or remove it. It is committed when this returns.

        After an error nothing more is written: a successor has fenced this process, or the outcome is not
        known, and a broker could take the next record for a repetition of this one and drop it."""
        assert self._producer is not None, "call claim() before put()"
        if self._lost is not None:
            raise self._lost
        value = None if document is None else json.dumps(document, sort_keys=True).encode()
        try:
            await self._producer.commit([ProducerRecord(PARTITION, key.encode(), value)])
        except PenstockError as error:
            self._lost = error
            raise
        self._apply(key.encode(), value)

    def restores(self) -> dict[str, Document]:
        return {key[len(RESTORE) :]: one for key, one in self.documents.items() if key.startswith(RESTORE)}

    def running(self) -> tuple[str, Document] | None:
        """The restore that is not complete. There is at most one."""
        for name, one in sorted(self.restores().items()):
            if not is_complete(one):
                return name, one
        return None

    def lineage(self, restore: str, place: TopicPartition) -> Document:
        return self.documents.get(f"{LINEAGE}{restore}/{place.topic}/{place.partition}", {})

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        try:
            name = (key or b"").decode()
            if value is None:
                self.documents.pop(name, None)
            else:
                self.documents[name] = json.loads(value)
        except ValueError as error:
            raise RestoreRecordInvalid(topic=RESTORES_TOPIC, reason=str(error)) from error


async def running_restore(client: Client) -> str:
    """The id of the restore that is not complete; empty if there is none."""
    store = RestoreStore(client)
    if not await store.exists():
        return ""
    await store.refresh()
    running = store.running()
    return running[0] if running else ""
