"""Restores a topic at its original offsets: a shadow leads the new topic from the backup.

Every step is recorded in `_penstock.restores` before the next one begins, and each is idempotent: a process
that takes over repeats at most one. Until the restored log is proved equal on every replica, the topic is
closed for writes and keeps everything.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.audit import intents
from penstock.audit.intents import IntentLog
from penstock.backup import restored_topic
from penstock.backup.proof import ExpectedLog, expected_log, prove
from penstock.backup.replay import Replay
from penstock.backup.restore_plan import Request
from penstock.backup.restore_steps import POINTS, STEPS, Step, needs_shadow, steps_left
from penstock.backup.restore_store import LINEAGE, RESTORE, RestoreStore
from penstock.kafka.admin import topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.link import mirror_topics, promotion
from penstock.link.placement import mirror_assignment
from penstock.model.errors.backup import RestoreRunning, RestoreUnproven
from penstock.model.fault_points import reach
from penstock.shadow.broker import ShadowBroker

if TYPE_CHECKING:
    from penstock.backup.archive import Archive
    from penstock.backup.catalogue import Catalogue
    from penstock.backup.chain import Chain
    from penstock.backup.restore_plan import RestorePlan
    from penstock.kafka.client import Client
    from penstock.link.lineage import Lineage
    from penstock.shadow.broker import ShadowSettings

POLL_SECONDS: Final = 0.05
CATCH_UP_SECONDS_MAX: Final = 30.0

log = structlog.get_logger()


class Restorer:
    """Carries out one restore; `begin` or `resume`, then `run`."""

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

    @property
    def _step(self) -> Step | None:
        return None if self.document["step"] is None else Step(self.document["step"])

    async def begin(self, plan: RestorePlan, restore: str) -> None:
        """Record the intent. Raises if another restore is not complete."""
        await self._store.claim()
        running = self._store.running()
        if running is not None and running[0] != restore:
            raise RestoreRunning(restore=running[0], step=running[1]["step"])
        request = plan.request
        self.restore = restore
        self.document = {
            "cluster": self._archive.cluster,
            "topic_id": request.topic_id,
            "topic": request.topic,
            "target": request.target,
            "until_ms": request.until_ms,
            "configs": dict(plan.configs),
            "partitions": {str(one.partition): one.start for one in plan.partitions},
            "target_id": "",
            "expected": {},
            "report": {},
            "step": None,
            "abandoned": False,
        }
        await self._record(Step.REGISTERED)

    async def resume(self) -> bool:
        """Continue what is not complete; false if nothing is, or if it is in place."""
        if not await self._store.exists():
            return False
        await self._store.claim()
        running = self._store.running()
        if running is None or running[1].get("in_place"):
            return False
        self.restore, self.document = running
        self._archive.cluster = self._catalogue.cluster = self.document["cluster"]
        return True

    async def run(self) -> dict[str, Any]:
        """Carry out the steps that are left; returns the document of the restore."""
        topic_id, until_ms = self.document["topic_id"], self.document["until_ms"]
        await self._archive.load(topic_id)
        chains = {
            int(index): await self._archive.chain(topic_id, int(index), until_ms=until_ms, empty_at=start)
            for index, start in self.document["partitions"].items()
        }
        if needs_shadow(self._step):
            async with AsyncExitStack() as stack:
                shadow = ShadowBroker(self._controllers, self._client, self._shadow_settings)
                await stack.enter_async_context(shadow)
                await self._run_with(shadow, chains)
        for step in steps_left(self._step):
            if step is Step.ABORTED:
                await promotion.wait_for_leaders(self._client, [self.document["target"]])
                await promotion.abort_transactions(self._client, [self.document["target"]])
            elif step is Step.DROPPED:
                shadow_id = self._shadow_settings.broker_id
                await promotion.remove_shadow(self._client, [self.document["target"]], shadow_id)
            elif step is Step.PROVED:
                await self._prove()
            elif step is Step.CONFIGURED:
                await self._configure(chains)
            elif step is Step.OPENED:
                await mirror_topics.open_(self._client, [self.document["target"]])
            await self._record(step)
        return self.document

    async def _run_with(self, shadow: ShadowBroker, chains: dict[int, Chain]) -> None:
        """The steps that need the shadow, up to RETURNED."""
        target = self.document["target"]
        replay = Replay(
            self.restore, shadow, self._archive, self._client, self._controllers,
            lambda place: self._store.lineage(self.restore, place), self._write_lineage, self._intents,
        )  # fmt: skip
        await self._join(shadow, sorted(chains))
        if self._step is Step.REGISTERED:
            await self._record(Step.JOINED)
        await asyncio.gather(
            *(replay.lead(TopicPartition(target, index), chain) for index, chain in chains.items())
        )
        if self._step is Step.JOINED:
            await self._record(Step.LEADS)
        await replay.run()
        if self._step is Step.LEADS:
            expected = {index: await expected_log(self._archive, chain) for index, chain in chains.items()}
            self.document["expected"] = {str(index): list(one) for index, one in expected.items()}
            await replay.burn_producer_ids(max((one.producer_id for one in expected.values()), default=-1))
            await self._record(Step.OBJECTS)
        await self._wait_for_followers(shadow)
        await shadow.step_down()
        await self._record(Step.RETURNED)

    async def _join(self, shadow: ShadowBroker, indexes: list[int]) -> None:
        """Create the topic, closed for writes and with the shadow as its first replica."""
        target = self.document["target"]
        if self._step is not Step.REGISTERED:
            return
        await mirror_topics.close(self._client, [target])
        racks = {broker: one.rack for broker, one in shadow.image.brokers.items() if not one.fenced}
        count = max(indexes) + 1
        assignment = mirror_assignment(range(count), racks, shadow.id)
        values = restored_topic.configs_meanwhile(self.document["configs"])
        await self._intents.record(intents.topic_restore(target, f"restore {self.restore}"))
        created = await restored_topic.create_led_topic(self._client, shadow, target, assignment, values)
        self.document["target_id"] = str(created)

    async def _wait_for_followers(self, shadow: ShadowBroker) -> None:
        """Let every follower join the in-sync replicas, so that each has everything when it may lead."""
        deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
        while time.monotonic() < deadline:
            states = shadow.image.partitions_of(self.document["target"]).values()
            if all(set(state.isr) == set(state.replicas) for state in states):
                return
            await asyncio.sleep(POLL_SECONDS)
        log.warning("followers not in sync", topic=self.document["target"])

    async def _prove(self) -> None:
        target = self.document["target"]
        topic = results_or_raise(await topics.describe(self._client, [target]))[target]
        expected = {int(index): ExpectedLog(*row) for index, row in self.document["expected"].items()}
        proofs = await prove(self._client, topic, expected)
        differing = [f"{target}-{one.partition} on broker {one.broker}" for one in proofs if not one.same]
        if differing:
            self.document["abandoned"] = True  # to repeat it proves nothing else, and others must be possible
            await self._put()
            raise RestoreUnproven(count=len(differing), restore=self.restore, places=", ".join(differing))
        self.document["report"]["replicas_proved"] = len(proofs)

    async def _configure(self, chains: dict[int, Chain]) -> None:
        request = Request(self.document["topic_id"], self.document["topic"], self.document["target"])
        await self._intents.record(intents.config_change([request.target], f"restore {self.restore}"))
        await restored_topic.set_configs(self._client, request.target, self.document["configs"])
        if request.target == request.topic:
            at_ms = self.document["until_ms"]
            report = await restored_topic.restore_access(
                self._client, self._catalogue, request, chains, at_ms=at_ms
            )
            self.document["report"] |= report

    async def _write_lineage(self, place: TopicPartition, lineage: Lineage) -> None:
        key = f"{LINEAGE}{self.restore}/{place.topic}/{place.partition}"
        await self._store.put(key, lineage.as_json())

    async def _record(self, step: Step) -> None:
        if step is not Step.REGISTERED:
            reach(POINTS[step])
        self.document["step"] = step
        await self._put()
        log.info("restore step", restore=self.restore, step=step)
        if step is Step.REGISTERED:
            reach(POINTS[step])
        if step is STEPS[-1]:
            for key in [k for k in self._store.documents if k.startswith(f"{LINEAGE}{self.restore}/")]:
                await self._store.put(key, None)

    async def _put(self) -> None:
        self.document["at_ms"] = int(time.time() * 1000)
        await self._store.put(f"{RESTORE}{self.restore}", self.document)
