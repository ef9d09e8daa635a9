"""Restores what a live topic has lost, at its original offsets, while producers keep writing.

One partition at a time, by the moves of `in_place_moves`. Producers of a partition wait only while the shadow
leads it, until one replica is rebuilt: the shadow acknowledges nothing. It serves what every real in-sync
replica has, so no acknowledged record is ever on the shadow alone; if it dies, a real broker leads again.
"""

from __future__ import annotations

import contextlib
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.audit import intents
from penstock.audit.intents import IntentLog
from penstock.backup.in_place.partition import InPlacePartitionRun, Yielded
from penstock.backup.in_place.proof import prove_in_place
from penstock.backup.raw_fetch import LogId
from penstock.backup.restore_steps import IN_PLACE_POINTS, InPlaceStep
from penstock.backup.restore_store import RESTORE, RestoreStore
from penstock.kafka.admin import configs
from penstock.kafka.admin.partitions import TopicPartition
from penstock.link import promotion
from penstock.model.errors.backup import InPlaceUnproven, RestoreRunning, RestoreYielded
from penstock.model.fault_points import reach
from penstock.shadow.broker import ShadowBroker
from penstock.tier.format import id_of

if TYPE_CHECKING:
    from penstock.backup.archive import Archive
    from penstock.backup.catalogue import Catalogue
    from penstock.backup.in_place.plan import InPlacePlan
    from penstock.kafka.client import Client
    from penstock.shadow.broker import ShadowSettings
    from penstock.shadow.responses import Truncation

INTENT_MS: Final = 3_600_000  # how long the intent of one partition explains a lower log start

log = structlog.get_logger()


class InPlaceRestorer:
    """Carries out one restore in place; `begin` or `resume`, then `run`."""

    def __init__(
        self,
        client: Client,
        controllers: Client,
        archive: Archive,
        catalogue: Catalogue,
        shadow: ShadowSettings,
    ) -> None:
        self._client = client
        self._controllers = controllers
        self._archive = archive
        self._catalogue = catalogue
        self._shadow_settings = shadow
        self._store = RestoreStore(client)
        self._intents = IntentLog(client)
        self.restore = ""
        self.document: dict[str, Any] = {}

    async def begin(self, plan: InPlacePlan, restore: str) -> None:
        """Record the intent. Raises if another restore is not complete."""
        await self._store.claim()
        running = self._store.running()
        if running is not None and running[0] != restore:
            raise RestoreRunning(restore=running[0], step=running[1]["step"])
        self.restore = restore
        request = plan.request
        self.document = {
            "in_place": True,
            "cluster": self._archive.cluster,
            "topic_id": request.topic_id,
            "topic": request.topic,
            "target": request.topic,
            "retention_ms": request.retention_ms,
            "pause_seconds": request.pause_seconds,
            "needed": plan.needed,
            "partitions": {
                str(one.partition): {"start": one.start, "replicas": list(one.replicas), "done": False}
                for one in plan.partitions
            },
            "report": {"paused_seconds": 0.0},
            "step": None,
            "abandoned": False,
        }
        await self.record(InPlaceStep.REGISTERED)

    async def resume(self) -> bool:
        """Continue what is not complete; false if nothing is, or if it is not in place."""
        if not await self._store.exists():
            return False
        await self._store.claim()
        running = self._store.running()
        if running is None or not running[1].get("in_place"):
            return False
        self.restore, self.document = running
        self._archive.cluster = self._catalogue.cluster = self.document["cluster"]
        return True

    async def run(self) -> dict[str, Any]:
        """Carry out what is left; returns the document of the restore."""
        topic, actor = self.document["topic"], f"restore {self.restore}"
        await self._set_retention(actor)
        await self._archive.load(self.document["topic_id"])
        yielded: RestoreYielded | None = None
        due = [int(index) for index, one in self.document["partitions"].items() if not one["done"]]
        if due:
            async with AsyncExitStack() as stack:
                shadow = ShadowBroker(self._controllers, self._client, self._shadow_settings)
                await stack.enter_async_context(shadow)
                for index in due:
                    until_ms = int(time.time() * 1000) + INTENT_MS
                    await self._intents.record(intents.restore_in_place([topic], actor, until_ms))
                    try:
                        await self._restore(shadow, index)
                    except RestoreYielded as error:
                        yielded = error
                        break
                await shadow.step_down()
        # Also where an earlier process left the shadow among the replicas.
        await promotion.remove_shadow(self._client, [topic], self._shadow_settings.broker_id)
        if yielded is not None:
            raise yielded
        await self._prove()
        await self.record(InPlaceStep.PROVED)
        return self.document

    async def _restore(self, shadow: ShadowBroker, index: int) -> None:
        stored = self.document["partitions"][str(index)]

        async def record_truncation(truncation: Truncation) -> None:
            stored["truncation"] = list(truncation)
            await self._put()

        run = InPlacePartitionRun(
            client=self._client,
            shadow=shadow,
            archive=self._archive,
            topic_id=self.document["topic_id"],
            place=TopicPartition(self.document["topic"], index),
            start=stored["start"],
            original=tuple(stored["replicas"]),
            needed=self.document["needed"],
            pause_seconds=self.document["pause_seconds"],
            reached=self.record,
            truncates=record_truncation,
        )
        try:
            await run.run()
        except Yielded as reason:
            with contextlib.suppress(Yielded):  # the topic was deleted: nothing is left to undo
                await run.undo()
            self.document["abandoned"] = True
            await self._put()
            raise RestoreYielded(
                restore=self.restore, partition=str(run.place), reason=str(reason)
            ) from reason
        stored["done"] = True
        report = self.document["report"]
        report["paused_seconds"] = round(max(report["paused_seconds"], run.paused_seconds), 2)
        await self._put()

    async def _set_retention(self, actor: str) -> None:
        """Before anything is restored that the old retention would delete again."""
        if self.document["retention_ms"] is None:
            return
        topic = self.document["topic"]
        await self._intents.record(intents.config_change([topic], actor))
        values = {"retention.ms": str(self.document["retention_ms"])}
        for error in (
            await configs.alter(self._client, {configs.topic(topic): configs.changes(values)})
        ).values():
            if error is not None:
                raise error

    async def _prove(self) -> None:
        proved, differing = 0, []
        for text in self.document["partitions"]:
            place = TopicPartition(self.document["topic"], int(text))
            log_id = LogId(id_of(self.document["topic_id"]), place.partition)
            chain = await self._archive.chain(self.document["topic_id"], place.partition)
            proof = await prove_in_place(self._client, self._archive, chain, place, log_id)
            proved += len(proof.same)
            differing += [f"{place} on broker {broker}" for broker in proof.differing]
        if differing:
            self.document["abandoned"] = True
            await self._put()
            raise InPlaceUnproven(count=len(differing), restore=self.restore, places=", ".join(differing))
        self.document["report"]["replicas_proved"] = proved

    async def record(self, step: InPlaceStep) -> None:
        if step is not InPlaceStep.REGISTERED:
            reach(IN_PLACE_POINTS[step])
        self.document["step"] = step
        await self._put()
        log.info("restore step", restore=self.restore, step=step)
        if step is InPlaceStep.REGISTERED:
            reach(IN_PLACE_POINTS[step])

    async def _put(self) -> None:
        self.document["at_ms"] = int(time.time() * 1000)
        await self._store.put(f"{RESTORE}{self.restore}", self.document)
