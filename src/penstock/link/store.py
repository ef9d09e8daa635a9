"""The state of links, in the compacted topic `_penstock.links` of the destination.

definition/<link>                    what the operator asked for; written by `link create`
request/<link>                       the operator's last action; written by the commands
status/<link>                        state and progress; written by the process that runs the link
copied/<link>                        ACLs and quotas it copied; written by that process, before the copies
lineage/<link>/<topic>/<partition>   leader epochs; written by that process, before records of an epoch

The process that runs a link writes with a transactional id, so a second one fences the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kafka.admin import topics
from penstock.kafka.append import append
from penstock.kafka.document_topic import DocumentTopic, encoded
from penstock.link.states import State
from penstock.model.errors import PenstockError
from penstock.model.errors.link import LinkRecordInvalid, LinkStateLost
from penstock.model.key_names import LINKS_TOPIC
from penstock.model.shadow_ids import SHADOW_IDS

if TYPE_CHECKING:
    from penstock.kafka.client import Client
    from penstock.kafka.document_topic import Document


class LinkStore(DocumentTopic):
    topic = LINKS_TOPIC
    unreadable = LinkRecordInvalid

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._link = ""

    async def claim(self, link: str) -> None:
        """Become the only process that writes the status of this link."""
        self._link = link
        await self.claim_as(f"_penstock.link.{link}")

    async def put(self, key: str, document: Document | None) -> None:
        """Write one document, or remove it. It is committed when this returns.

        The commands write definitions and requests without a claim, while the link runs."""
        if self._producer is not None:
            await super().put(key, document)
            return
        value = encoded(document)
        await append(self._client, self._partition, [(key.encode(), value)])
        self._apply(key.encode(), value)

    def _state_lost(self, cause: PenstockError) -> PenstockError:
        return LinkStateLost(link=self._link, reason=cause.message)


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
