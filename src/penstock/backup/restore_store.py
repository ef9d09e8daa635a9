"""The state of restores, in the compacted topic `_penstock.restores` of the cluster.

restore/<id>                       what is restored, how far, and its result
lineage/<id>/<topic>/<partition>   leader epochs, written before records of an epoch are served

The process that restores writes with a transactional id, so a second one fences the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.backup.restore_steps import is_complete
from penstock.kafka.admin import brokers, topics
from penstock.kafka.document_topic import DocumentTopic
from penstock.model.errors import PenstockError
from penstock.model.errors.backup import RestoreRecordInvalid
from penstock.model.key_names import RESTORES_TOPIC
from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client

RESTORE: Final = "restore/"
LINEAGE: Final = "lineage/"

Document = dict[str, Any]


class RestoreStore(DocumentTopic):
    topic = RESTORES_TOPIC
    unreadable = RestoreRecordInvalid

    async def claim(self) -> None:
        """Create the topic on real brokers if needed, and become the only process that writes it."""
        registered = await brokers.describe(self._client)
        await self.ensure(sorted(broker for broker in registered.brokers if not is_shadow(broker)))
        await self.claim_as("_penstock.restore")

    async def exists(self) -> bool:
        described = (await topics.describe(self._client, [RESTORES_TOPIC]))[RESTORES_TOPIC]
        return not isinstance(described, PenstockError)

    def restores(self) -> dict[str, Document]:
        return self.named("restore")

    def running(self) -> tuple[str, Document] | None:
        """The restore that is not complete. There is at most one."""
        for name, one in sorted(self.restores().items()):
            if not is_complete(one):
                return name, one
        return None

    def lineage(self, restore: str, place: TopicPartition) -> Document:
        return self.documents.get(f"{LINEAGE}{restore}/{place.topic}/{place.partition}", {})


async def running_restore(client: Client) -> str:
    """The id of the restore that is not complete; empty if there is none."""
    store = RestoreStore(client)
    if not await store.exists():
        return ""
    await store.refresh()
    running = store.running()
    return running[0] if running else ""
