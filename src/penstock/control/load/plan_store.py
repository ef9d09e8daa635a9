"""The plans in `_penstock.plans` on the home cluster. All control planes read them, the active one writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.balance.plan_document import PlanDocuments
from penstock.control.gateways.state_publisher import COMPACTED
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic
from penstock.kafka.compacted_topic import CompactedTopicReader
from penstock.kafka.partition_log import ProducerRecord, TransactionalProducer, bounds, ensure_topic
from penstock.model.errors.balance import PlanUnknown
from penstock.model.errors.wire import CommitUnfinished
from penstock.model.fault_points import declare, reach
from penstock.model.key_names import PLANS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.balance.plan_document import PlanDocument, PlanHeader
    from penstock.kafka.client import Client
    from penstock.wire.records import Record

TRANSACTIONAL_ID: Final = "_penstock.plans"
PLANS: Final = TopicPartition(PLANS_TOPIC, 0)

WRITTEN: Final = declare("balance.plan.written", "a plan or its new state is stored, and not acted on yet")


class PlanStore:
    """Follows the topic. `run` it; `documents` is what has been read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.documents = PlanDocuments()
        self._building = self.documents
        self.changed = asyncio.Event()
        self.follower = CompactedTopicReader(
            client, PLANS, apply=self._apply, reset=self._reset, progressed=self._progressed
        )

    async def run(self) -> None:
        await ensure_topic(self._client, NewTopic(PLANS_TOPIC, 1, configs=COMPACTED))
        await self.follower.run()

    def need(self, plan: str) -> PlanDocument:
        document = self.documents.document(plan)
        if document is None:
            raise PlanUnknown(plan=plan)
        return document

    def _reset(self) -> None:
        """What has been read is served until everything has been read again."""
        self._building = PlanDocuments()

    def _apply(self, records: Sequence[Record]) -> None:
        for record in records:
            assert record.key is not None
            self._building.apply(record.key, record.value)

    def _progressed(self) -> None:
        if self.follower.caught_up:
            self.documents = self._building
            self.changed.set()


class PlanWriter:
    """Writes plans, fenced by a transactional id. `init` fences the predecessor and reads all it wrote."""

    def __init__(self, client: Client, store: PlanStore) -> None:
        self._client = client
        self._store = store
        self._producer = TransactionalProducer(client, TRANSACTIONAL_ID)
        self._lock = asyncio.Lock()
        self._failed = asyncio.Event()

    async def init(self) -> None:
        await self._producer.init()
        self._failed.clear()
        _, end = await bounds(self._client, PLANS)
        await self._store.follower.wait_for_offset(end - 1)

    async def until_failed(self) -> None:
        """Raises once any write has failed or was interrupted: `init` must come next."""
        await self._failed.wait()
        raise CommitUnfinished(transactional_id=TRANSACTIONAL_ID)

    async def write(self, document: PlanDocument) -> None:
        """All records in one transaction, the header last."""
        await self._commit(document.records())

    async def put(self, header: PlanHeader) -> None:
        """A new state of a plan."""
        await self._commit([(header.key, header.to_bytes())])

    async def delete(self, plan: str) -> None:
        await self._commit([(key, None) for key in self._store.documents.tombstones(plan)])

    async def _commit(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Returns once the store has read it back."""
        async with self._lock:
            records = [ProducerRecord(PLANS, key, value) for key, value in rows]
            try:
                written = await self._producer.commit(records)
            except BaseException:
                self._failed.set()
                raise
            await self._store.follower.wait_for_offset(written[PLANS])
        reach(WRITTEN)
