"""Collects what the catalogue records, from a live cluster."""

from __future__ import annotations

import base64
import time
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.backup.catalogue import Catalogue, digest_of, is_due
from penstock.kafka.admin import acls, configs, group_offsets, groups, share_groups, topics
from penstock.kafka.admin.acls import AclFilter
from penstock.kafka.admin.configs import Source
from penstock.kafka.admin.groups import GroupType
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.partition_log import bounds, read
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import KafkaDenied, KafkaMissing
from penstock.model.key_names import REGISTRY_TOPIC
from penstock.tier.format import id_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.backup.archiver import Archiver
    from penstock.kafka.client import Client

CONFIGS_PER_CALL: Final = 200

log = structlog.get_logger()


class Cataloguer:
    """Call `round` every few seconds: it writes an entry when one is due."""

    def __init__(self, client: Client, catalogue: Catalogue, archiver: Archiver, *, interval_ms: int) -> None:
        self._client = client
        self._catalogue = catalogue
        self._archiver = archiver
        self._interval_ms = interval_ms
        self._groups: dict[str, Any] = {}
        self._written_at: float | None = None  # monotonic

    async def round(self) -> bool:
        """True if an entry was written."""
        now_ms = int(time.time() * 1000)
        described, ids = await self._topics()
        parts: dict[str, Any] = {"topics": described}
        parts["acls"] = await self._acls()
        parts["registry"] = await self._registry(ids)
        digests = {name: digest_of(document) for name, document in parts.items()}
        if not is_due(self._catalogue.last, digests, self._elapsed_ms(now_ms), self._interval_ms):
            return False
        parts["groups"] = await self._group_offsets(ids)
        parts["logs"] = self._logs()
        await self._catalogue.write(parts, now_ms)
        self._written_at = time.monotonic()
        return True

    def _elapsed_ms(self, now_ms: int) -> float:
        """Since the last entry; by a clock that is never set, if this process wrote it."""
        if self._written_at is not None:
            return (time.monotonic() - self._written_at) * 1000
        return now_ms - self._catalogue.last.at_ms if self._catalogue.last is not None else 0.0

    async def _topics(self) -> tuple[dict[str, Any], dict[str, str]]:
        listed = await topics.describe(self._client)
        present = {name: topic for name, topic in listed.items() if not isinstance(topic, PenstockError)}
        names = sorted(present)
        explicit: dict[str, dict[str, str | None]] = {}
        for at in range(0, len(names), CONFIGS_PER_CALL):
            resources = [configs.topic(name) for name in names[at : at + CONFIGS_PER_CALL]]
            for resource, entries in (await configs.describe(self._client, resources)).items():
                if isinstance(entries, KafkaMissing):
                    continue  # deleted meanwhile
                if isinstance(entries, PenstockError):
                    raise entries  # without an entry it would count as deleted, and its archive would expire
                explicit[resource.name] = {
                    name: entry.value for name, entry in entries.items() if entry.source is Source.TOPIC
                }
        document = {
            id_text(topic.id): {
                "name": name,
                "partitions": [[p.index, p.leader_epoch, list(p.replicas)] for p in topic.partitions],
                "configs": explicit[name],
            }
            for name, topic in present.items()
            if name in explicit
        }
        return document, {name: id_text(topic.id) for name, topic in present.items()}

    async def _acls(self) -> list[Any]:
        try:
            listed = await acls.describe(self._client, AclFilter())
        except PenstockError as error:
            if not isinstance(error, KafkaDenied):
                raise  # topics would be restored without their ACLs
            log.debug("ACLs not read", error=str(error))  # a cluster without an authorizer has none
            return []
        return sorted(list(astuple(acl)) for acl in listed)

    async def _registry(self, ids: Mapping[str, str]) -> dict[str, str]:
        """The registry's entities, if this is the home cluster."""
        if REGISTRY_TOPIC not in ids:
            return {}
        place = TopicPartition(REGISTRY_TOPIC, 0)
        position, end = await bounds(self._client, place)
        entities: dict[str, str] = {}
        while position < end:
            fetched = await read(self._client, place, position, lane="catalogue", wait_ms=500)
            for record in fetched.records:
                key = (record.key or b"").decode("utf-8", "replace")
                if record.value is None:
                    entities.pop(key, None)
                else:
                    entities[key] = base64.b64encode(record.value).decode()
            position = fetched.position
        return entities

    async def _group_offsets(self, ids: Mapping[str, str]) -> dict[str, Any]:
        """Offsets of every group; a group whose coordinator does not respond keeps its last ones."""
        result: dict[str, Any] = {}
        for name, listing in (await groups.list_all(self._client)).items():
            try:
                if listing.type is GroupType.SHARE:
                    shares = await share_groups.describe(self._client, name)
                    offsets = {
                        f"{ids[place.topic]}/{place.partition}": [one.start, one.leader_epoch, ""]
                        for place, one in shares.items()
                        if not isinstance(one, PenstockError) and place.topic in ids and one.start >= 0
                    }
                else:
                    committed = await group_offsets.committed(self._client, name)
                    offsets = {
                        f"{ids[place.topic]}/{place.partition}": [one.offset, one.leader_epoch, one.metadata]
                        for place, one in committed.items()
                        if place.topic in ids
                    }
            except PenstockError as error:
                log.warning("group offsets not read", group=name, error=str(error))
                if name in self._groups:
                    result[name] = self._groups[name]
                continue
            result[name] = {"type": str(listing.type), "offsets": offsets}
        self._groups = result
        return result

    def _logs(self) -> dict[str, list[list[int]]]:
        document: dict[str, list[list[int]]] = {}
        for key, one in sorted(self._archiver.progress().items()):
            row = [key.partition, one.stored, one.end, one.epoch, one.start]
            document.setdefault(id_text(key.topic_id), []).append(row)
        return document
