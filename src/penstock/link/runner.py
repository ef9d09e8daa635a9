"""Runs one link: mirrors, carries out the operator's requests, and continues what a predecessor began.

A source that is away stops the mirroring, and nothing else: requests are carried out, and a failover needs
nothing of the source. State that cannot be written ends the process, since another one may have taken over.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.audit import intents
from penstock.audit.intents import IntentLog
from penstock.kafka.admin import log_dirs, topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.document_topic import finished
from penstock.link import mirror_topics, promotion
from penstock.link.limits import RateLimit, full_disk
from penstock.link.metadata_service import MetadataService
from penstock.link.mirror import Mirror
from penstock.link.reversal import Reversal
from penstock.link.states import STEPS, Action, State, Step, next_state, steps_left
from penstock.link.store import LinkStore
from penstock.model.errors import PenstockError
from penstock.model.errors.link import (
    LinkStateConflict,
    LinkStateLost,
    LinkUnknown,
    MirrorTopicTaken,
    SourceUnusable,
)
from penstock.model.errors.wire import KafkaMissing
from penstock.model.fault_points import declare, reach
from penstock.model.shadow_ids import is_shadow
from penstock.shadow.broker import ShadowBroker
from penstock.shadow.producer_ids import NO_PRODUCER, ProducerIds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client
    from penstock.link.lineage import Lineage
    from penstock.shadow.broker import ShadowSettings
    from penstock.tier.store import Store

REQUEST_SECONDS: Final = 0.3  # between looks for the operator's requests
HOUSEKEEPING_SECONDS: Final = 2.0  # between looks for topics, groups and lost partitions
METADATA_ROUNDS: Final = 5  # of housekeeping, between looks at configs, ACLs and quotas
OWNED_SECONDS_MAX: Final = 5.0  # since the last write that a successor would have fenced
DELETED_ROUNDS: Final = 3  # of housekeeping without a topic, until it counts as deleted on the source
STEP_POINTS: Final = {
    step: declare(f"link.promote.{step}", f"the promotion is {step}, and that is not recorded")
    for step in Step
}
RECORDED: Final = declare("link.promote.recorded", "a step of the promotion is recorded")
FRESH: Final[dict[str, Any]] = {
    "state": State.CREATING, "step": None, "topics": {}, "request": 0, "error": "",
    "producer_id": NO_PRODUCER, "problems": {}, "source_cluster": None, "tails": {},
}  # fmt: skip

log = structlog.get_logger()


class LinkRunner:
    """`run` returns when the link is active: promoted or failed over."""

    def __init__(
        self,
        link: str,
        source: Client,
        brokers: Client,
        controllers: Client,
        shadow: ShadowSettings,
        *,
        bytes_per_second: float | None = None,
        tails: Store | None = None,
    ) -> None:
        self.link = link
        self._source = source
        self._brokers = brokers
        self._controllers = controllers
        self._shadow_settings = shadow
        self._bytes_per_second = bytes_per_second
        self._tails = tails
        self._store = LinkStore(brokers)
        self._intents = IntentLog(brokers)
        self._writing = asyncio.Lock()
        self._syncing_groups = asyncio.Lock()
        self._definition: dict[str, Any] = {}
        self._missing: dict[str, int] = {}  # topic of the source → rounds without it
        self._rounds = 0
        self._owned_at = -math.inf  # monotonic; when this process last wrote as the only one
        self.status: dict[str, Any] = {}
        self.mirror: Mirror | None = None
        self.metadata: MetadataService | None = None

    @property
    def state(self) -> State:
        return State(self.status["state"])

    async def run(self) -> None:
        await self._store.claim(self.link)
        definitions = self._store.named("definition")
        if self.link not in definitions:
            raise LinkUnknown(link=self.link, known=", ".join(sorted(definitions)) or "none")
        self._definition = definitions[self.link]
        shadow_id = self._definition.get("shadow_id", self._shadow_settings.broker_id)
        self._shadow_settings = replace(self._shadow_settings, broker_id=shadow_id)
        self.status = FRESH | self._store.documents.get(f"status/{self.link}", {})
        await self._save()  # only the latest process gets past this
        if self._needs_shadow():
            shadow = ShadowBroker(self._controllers, self._brokers, self._shadow_settings)
            async with shadow:
                await self._run_with(shadow)
        await self._finish()

    def _needs_shadow(self) -> bool:
        """A failover that is continued needs none: a shadow that died is succeeded by real brokers."""
        step = self._step()
        stepped_down = step is not None and STEPS.index(step) >= STEPS.index(Step.STEPPED_DOWN)
        return self.state not in (State.ACTIVE, State.FAILING_OVER) and not stepped_down

    async def _run_with(self, shadow: ShadowBroker) -> None:
        prefix = f"{self.link}/"
        lineages = self._store.named("lineage")
        self.mirror = mirror = Mirror(
            self.link, shadow, self._source, self._brokers,
            {key[len(prefix) :]: one for key, one in lineages.items() if key.startswith(prefix)},
            self._write_lineage,
            ProducerIds(shadow, self._brokers, self._controllers),
            self._intents,
            topic_ids=dict(self.status["topics"]),
            rate=RateLimit(self._bytes_per_second),
            hold_starts=self._definition.get("hold_start", False),
        )  # fmt: skip
        mirror.producer_ids.saw(self.status["producer_id"])
        copied = self._store.documents.get(f"copied/{self.link}", {})
        self.metadata = MetadataService(
            self._source,
            self._brokers,
            copied,
            self._write_copied,
            lambda names: self._intents.record(intents.config_change(names, f"link {self.link}")),
            self._confirm_ownership,
        )
        tasks = [
            asyncio.create_task(self._mirroring(mirror), name="mirroring"),
            asyncio.create_task(self._housekeeping(mirror), name="housekeeping"),
            asyncio.create_task(self._follow_groups(mirror), name="groups"),
            asyncio.create_task(self._requests(mirror), name="requests"),
        ]
        try:
            await asyncio.wait([*tasks, *shadow.tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            if (failure := shadow.failure()) is not None:
                raise failure
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, mirror.close(), return_exceptions=True)

    async def _mirroring(self, mirror: Mirror) -> None:
        while True:
            if self.state in (State.MIRRORING, State.PROMOTING, State.TRUNCATING):
                await mirror.fetch_once()
            else:
                await asyncio.sleep(REQUEST_SECONDS)

    async def _housekeeping(self, mirror: Mirror) -> None:
        duties: dict[str, Callable[[Mirror], Awaitable[None]]] = {
            "regain": Mirror.regain, "topics": self._follow_topics, "producer ids": self._burn_ids,
            "disks": self._check_disks, "metadata": self._sync_metadata,
        }  # fmt: skip
        while True:
            problems: dict[str, str] = {}
            for name, duty in duties.items():
                try:
                    await duty(mirror)
                except LinkStateLost:
                    raise
                except PenstockError as error:
                    problems[name] = error.message
                    log.warning("link duty failed", duty=name, error=str(error))
            assert self.metadata is not None
            full = {"disks": mirror.held} if mirror.held else {}
            await self._save(problems=problems | self.metadata.problems | full)
            self._rounds += 1
            await asyncio.sleep(HOUSEKEEPING_SECONDS)

    async def _follow_groups(self, mirror: Mirror) -> None:
        """Apart from other duties: one that waits for a broker must not make group offsets stale."""
        while True:
            try:
                await self._sync_groups(mirror)
            except LinkStateLost:
                raise
            except PenstockError as error:
                log.warning("link duty failed", duty="groups", error=str(error))
            await asyncio.sleep(HOUSEKEEPING_SECONDS)

    async def _requests(self, mirror: Mirror) -> None:
        """Carry out requests; returns once real brokers lead."""
        promoting: asyncio.Task[None] | None = None
        try:
            if self.state is State.PROMOTING:
                promoting = asyncio.create_task(self._promote(mirror))
            while promoting is None or not promoting.done() or not await self._promoted(promoting):
                if promoting is not None and promoting.done():
                    again = self.state is State.PROMOTING  # the source could not be opened again
                    promoting = asyncio.create_task(self._promote(mirror)) if again else None
                await asyncio.sleep(REQUEST_SECONDS)
                request = await self._next_request()
                if request is None:
                    continue
                action = Action(request["action"])
                try:
                    await self._change(action, request=request["id"], error="")
                except LinkStateLost:
                    raise
                except PenstockError as error:
                    await self._save(request=request["id"], error=error.message)
                    continue
                if action is Action.RESUME:
                    mirror.accept_starts()
                if action in (Action.PROMOTE, Action.FAILOVER):
                    await _cancelled(promoting)
                    promoting = asyncio.create_task(self._promote(mirror))
        finally:
            await _cancelled(promoting)

    async def _next_request(self) -> dict[str, Any] | None:
        try:
            async with self._writing:
                await self._store.refresh()
        except PenstockError as error:
            log.warning("links not read", error=str(error))
        if f"definition/{self.link}" not in self._store.documents:
            known = ", ".join(sorted(self._store.named("definition"))) or "none"
            raise LinkUnknown(link=self.link, known=known)  # it was deleted: this process ends
        request = self._store.documents.get(f"request/{self.link}")
        return None if request is None or request["id"] == self.status["request"] else request

    async def _promoted(self, promoting: asyncio.Task[None]) -> bool:
        """Whether real brokers lead. A promotion that failed before is cancelled: the source opens again."""
        error = promoting.exception()
        if error is None:
            return True
        if not isinstance(error, PenstockError) or isinstance(error, LinkStateLost):
            raise error
        stepping_down = self.mirror is not None and self.mirror.shadow.is_stepping_down
        if self.state is not State.PROMOTING or stepping_down:
            raise error  # the next process continues it
        log.warning("promotion cancelled", error=str(error))
        # First, so that a successor which continues the promotion closes the source again before it drains.
        await self._save(step=None, error=error.message)
        try:
            await mirror_topics.open_(self._source, list(self.status["topics"]))
        except PenstockError as closed:
            await self._save(error=f"{error.message}; the source stays closed: {closed.message}")
            return False
        await self._change(Action.CANCEL, error=error.message, step=None)
        return False

    async def _promote(self, mirror: Mirror) -> None:
        """The steps that need the shadow."""
        names = list(self.status["topics"])
        for step in steps_left(self.state, self._step()):
            if step is Step.FENCED:
                await promotion.refuse_groups_on_both_sides(self._source, self._brokers, names)
                await promotion.fence_source(self._source, names)
            elif step is Step.DRAINED:
                await promotion.drain(mirror, names)
                await promotion.sync_groups(lambda: self._sync_groups(mirror))
                await promotion.refuse_groups_on_both_sides(self._source, self._brokers, names)
            elif step is Step.STEPPED_DOWN:
                if self.state is State.FAILING_OVER:
                    await self._sync_groups_if_reached(mirror)
                await promotion.step_down(mirror)
            else:
                return
            await self._done(step)

    async def _finish(self) -> None:
        """The steps after real brokers lead."""
        if self.state is State.ACTIVE:
            return
        names = list(self.status["topics"])
        for step in steps_left(self.state, self._step()):
            if step is Step.STEPPED_DOWN:
                await promotion.wait_for_leaders(self._brokers, names)
            elif step is Step.ABORTED:
                await promotion.wait_for_leaders(self._brokers, names)
                aborted = await promotion.abort_transactions(self._brokers, names)
                log.info("open transactions aborted", count=aborted)
            elif step is Step.OPENED:
                await mirror_topics.open_(self._brokers, names)
            elif step is Step.REMOVED:
                await promotion.remove_shadow(self._brokers, names, self._shadow_settings.broker_id)
            await self._done(step)
        await self._change(Action.FINISH, error="")

    async def _done(self, step: Step) -> None:
        reach(STEP_POINTS[step])
        await self._save(step=step)
        reach(RECORDED)

    async def _follow_topics(self, mirror: Mirror) -> None:
        """Add topics and partitions that the source has, and settle those it has no longer.

        Not during a promotion: a topic that is added then would not be closed on the source."""
        if self.state in (State.REVERSING, State.TRUNCATING) or (
            self.state is State.CREATING and "reverses" in self._definition
        ):
            await self._reverse(mirror)
            return
        if self.state not in (State.CREATING, State.MIRRORING):
            await self._attach_known(mirror)
            return
        listed = await topics.describe(self._source)
        await self._check_source()
        existing = {name: one for name, one in listed.items() if not isinstance(one, PenstockError)}
        failures: list[PenstockError] = []
        for name in mirror_topics.matching(self._definition["topics"], list(existing)):
            try:
                await self._follow_topic(mirror, name, existing[name])
            except LinkStateLost:
                raise
            except PenstockError as error:
                failures.append(error)
        for name in [name for name in self.status["topics"] if name not in listed]:
            await self._follow_deletion(mirror, name)
        self._missing = {name: rounds for name, rounds in self._missing.items() if name not in listed}
        if self.state is State.CREATING and not failures:
            await self._change(Action.START)
        if failures:
            raise failures[0]

    async def _reverse(self, mirror: Mirror) -> None:
        """One round of a link back, until it mirrors."""
        await self._check_source()
        if self.state is State.CREATING:
            names = list(self._definition["reverses"]["topics"])
            described = results_or_raise(await topics.describe(self._source, names))
            ids = {name: str(described[name].id) for name in names}
            await self._change(Action.REVERSE, topics=ids)
        mirror.topic_ids.update(self.status["topics"])
        names = list(self.status["topics"])
        reversal = Reversal(
            self.link, self._source, self._brokers, self._tails, self.status["tails"],
            lambda tails: self._save(tails=tails),
        )  # fmt: skip
        if self.state is State.REVERSING:
            await reversal.save_tails(names)
            await self._change(Action.TRUNCATE)
        if self.state is State.TRUNCATING and await reversal.truncate(mirror, names):
            await self._change(Action.START)

    async def _check_source(self) -> None:
        """Another cluster at the same address has none of the topics: they would count as deleted."""
        cluster = (await self._source.cluster(refresh=True)).id
        if self.status["source_cluster"] is None:
            await self._save(source_cluster=cluster)
        elif self.status["source_cluster"] != cluster:
            reason = f"its cluster id is {cluster}, and this link mirrors {self.status['source_cluster']}"
            raise SourceUnusable(reason=reason)

    async def _attach_known(self, mirror: Mirror) -> None:
        """Every recorded topic, with partitions that the source got before it was closed."""
        if mirror.shadow.is_stepping_down or not self.status["topics"]:
            return
        described = await topics.describe(self._source, list(self.status["topics"]))
        for name, topic in described.items():
            if not isinstance(topic, PenstockError):
                attached = sum(place.topic == name for place in mirror.partitions)
                if attached < len(topic.partitions):
                    await mirror.add_topic(name, topic)

    async def _follow_topic(self, mirror: Mirror, name: str, topic: topics.Topic) -> None:
        known = [place for place in mirror.partitions if place.topic == name]
        if len(known) == len(topic.partitions) and mirror.topic_ids.get(name) == str(topic.id):
            return
        if name not in self.status["topics"]:
            await self._intend(name, str(topic.id))
        await mirror.add_topic(name, topic)

    async def _follow_deletion(self, mirror: Mirror, name: str) -> None:
        """A topic that the source has no longer, for some rounds: its mirror stops, or is deleted too."""
        self._missing[name] = self._missing.get(name, 0) + 1
        if self._missing[name] < DELETED_ROUNDS:
            return
        by_name = (await topics.describe(self._source, [name]))[name]
        if not isinstance(by_name, KafkaMissing):
            if isinstance(by_name, PenstockError):
                raise by_name  # not deleted: this user may not see it any more
            return
        mirror.fail_topic(name, "the topic was deleted on the source")
        if not self._definition.get("follow_deletes", False):
            return
        topic_id = mirror.shadow.image.topics.get(name)
        if topic_id is not None:
            log.warning("mirror deleted", link=self.link, topic=name, topic_id=str(topic_id))
            await self._intents.record(intents.topic_deletion([name], f"link {self.link}"))
            for error in (await topics.delete(self._brokers, ids=[topic_id])).values():
                if error is not None:
                    raise error
        mirror.forget_topic(name)
        await mirror_topics.open_(self._brokers, [name])
        await self._save(topics={key: one for key, one in self.status["topics"].items() if key != name})

    async def _intend(self, name: str, topic_id: str) -> None:
        """Record the mirror before it is created; a topic that exists already is not ours."""
        here = (await topics.describe(self._brokers, [name]))[name]
        if not isinstance(here, PenstockError):
            raise MirrorTopicTaken(topic=name)
        await finished(self._record_topic(name, topic_id))

    async def _record_topic(self, name: str, topic_id: str) -> None:
        """A promotion that has begun closes and drains the topics recorded before it, and no others."""
        async with self._writing:
            if self.state not in (State.CREATING, State.MIRRORING):
                raise LinkStateConflict(link=self.link, state=self.state, action="add", possible="later")
            await self._put_status(topics={**self.status["topics"], name: topic_id})

    async def _burn_ids(self, mirror: Mirror) -> None:
        if mirror.producer_ids.largest > self.status["producer_id"]:
            await self._save(producer_id=mirror.producer_ids.largest)
        await mirror.producer_ids.burn()

    async def _sync_groups(self, mirror: Mirror) -> dict[str, str]:
        """Returns the groups that could not be copied. One at a time: an older one must not be the last."""
        assert self.metadata is not None
        async with self._syncing_groups:
            return await self.metadata.sync_groups(mirror.ranges)

    async def _sync_groups_if_reached(self, mirror: Mirror) -> None:
        """Before a failover, as far as the source still responds."""
        try:
            async with asyncio.timeout(promotion.LAST_GROUPS_SECONDS_MAX):
                await self._sync_groups(mirror)
        except LinkStateLost:
            raise
        except (PenstockError, TimeoutError) as error:
            log.warning("latest group offsets not copied", error=str(error))

    async def _sync_metadata(self, mirror: Mirror) -> None:
        assert self.metadata is not None
        if self._rounds % METADATA_ROUNDS == 0 and self.state is State.MIRRORING:
            await self.metadata.sync_metadata(sorted({place.topic for place in mirror.partitions}))

    async def _check_disks(self, mirror: Mirror) -> None:
        if self._rounds % METADATA_ROUNDS:
            return
        brokers = [broker for broker, one in mirror.shadow.image.brokers.items() if not one.fenced]
        real = [broker for broker in brokers if not is_shadow(broker)]
        directories = await log_dirs.describe(self._brokers, real, partitions=())
        held = full_disk(directories, stopped=bool(mirror.held))
        if held != mirror.held:
            log.warning("mirroring stopped" if held else "mirroring continues", reason=held)
        mirror.held = held

    async def _write_lineage(self, place: TopicPartition, lineage: Lineage) -> None:
        assert self.mirror is not None
        topic_id = str(self.mirror.shadow.image.topics.get(place.topic, ""))
        key = f"lineage/{self.link}/{place.topic}/{place.partition}"
        await self._store.put(key, {"topic_id": topic_id, **lineage.as_json()})

    async def _write_copied(self, copied: dict[str, Any]) -> None:
        await self._store.put(f"copied/{self.link}", copied)

    async def _confirm_ownership(self) -> None:
        """Before an effect that a Kafka cluster does not fence: this process may have been suspended, and its
        successor may have promoted the link since. Then the write fails, and this process ends."""
        if time.monotonic() - self._owned_at > OWNED_SECONDS_MAX:
            await self._save()

    async def _change(self, action: Action, **values: Any) -> None:
        state = next_state(self.link, self.state, action)
        log.info("link state changed", before=self.state, action=action, after=state)
        await self._save(state=state, **values)

    async def _save(self, **values: Any) -> None:
        """Commit the status; it takes effect in this process only then."""
        await finished(self._save_alone(values))

    async def _save_alone(self, values: dict[str, Any]) -> None:
        async with self._writing:
            await self._put_status(**values)

    async def _put_status(self, **values: Any) -> None:
        shown = {"progress": self.mirror.progress()} if self.mirror is not None else {}
        status = self.status | shown | {"at_ms": int(time.time() * 1000)} | values
        began = time.monotonic()
        await self._store.put(f"status/{self.link}", status)
        self.status, self._owned_at = status, began

    def _step(self) -> Step | None:
        return None if self.status["step"] is None else Step(self.status["step"])


async def _cancelled(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
