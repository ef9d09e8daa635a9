"""Carries out the moves of one partition that is restored in place."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from penstock.backup.in_place.moves import Done, Elect, Follow, Observation, Place, Wait, next_move, real_of
from penstock.backup.live_log import LiveLog, check_seam, epochs_of, joined_history
from penstock.backup.raw_fetch import LogId
from penstock.backup.restore_steps import InPlaceStep
from penstock.kafka.admin import reassignments, transactions
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.metadata_image import PartitionId
from penstock.model.errors import PenstockError
from penstock.model.errors.backup import BackupDiffers, RestoreStuck
from penstock.model.shadow_ids import is_shadow
from penstock.shadow.following import Followed
from penstock.shadow.partition import LedPartition
from penstock.shadow.responses import Timestamp, Truncation
from penstock.tier.format import id_of
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.backup.archive import Archive
    from penstock.backup.in_place.moves import Move
    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client
    from penstock.kafka.metadata_image import PartitionState
    from penstock.shadow.broker import ShadowBroker
    from penstock.shadow.epoch_history import EpochHistory

POLL_SECONDS: Final = 0.05
STUCK_SECONDS_MAX: Final = 180.0  # in the same state
LEADS_MAX: Final = 3  # times that the shadow leads, if what it rebuilt is lost each time
TRANSACTIONS_SECONDS_MAX: Final = 30.0
READY_SECONDS_MAX: Final = 20.0  # from the election of the shadow until it serves

log = structlog.get_logger()


class Yielded(Exception):
    """The restore of this partition ends, and it becomes as it was."""


@dataclass(slots=True)
class InPlacePartitionRun:
    client: Client
    shadow: ShadowBroker
    archive: Archive
    topic_id: str
    place: TopicPartition
    start: int  # after the restore
    original: tuple[int, ...]
    needed: int
    pause_seconds: float
    reached: Callable[[InPlaceStep], Awaitable[None]]
    truncates: Callable[[Truncation], Awaitable[None]]  # records it before it is possible
    paused_seconds: float = 0.0  # the longest time that the shadow led
    _steps: set[InPlaceStep] = field(default_factory=set)
    _restored: set[int] = field(default_factory=set)
    _followed: Followed = field(init=False)
    _history: tuple[int, EpochHistory] | None = None  # the leader epoch it was read in
    _led_since: float | None = None
    _times_led: int = 0

    def __post_init__(self) -> None:
        self._followed = Followed(self.needed)

    @property
    def key(self) -> PartitionId:
        return PartitionId(id_of(self.topic_id), self.place.partition)

    async def run(self) -> None:
        """Until every replica has the restored records, and the original one leads."""
        await self._move_until_done(undo=False)

    async def undo(self) -> None:
        """Back to the original replicas, led by a real one."""
        self._led_since = None
        await self._move_until_done(undo=True)

    async def _move_until_done(self, *, undo: bool) -> None:
        following: asyncio.Task[None] | None = None
        before, changed_at = "", time.monotonic()
        try:
            while True:
                if (failure := self.shadow.failure()) is not None:
                    raise failure
                observation = await self._observe()
                if observation is not None:
                    await self._note(observation)
                    if not undo:
                        await self._keep_leading(observation)
                    move = next_move(observation, undo=undo)
                    if isinstance(move, Done):
                        return
                    if following is None and observation.has_shadow and not observation.shadow_leads:
                        following = asyncio.create_task(
                            self.shadow.follow(self.place.topic, self.key, self._followed)
                        )
                    if following is not None and following.done():
                        following.result()
                        following = None
                    if repr((move, observation)) != before:
                        before, changed_at = repr((move, observation)), time.monotonic()
                        log.info("restore move", partition=str(self.place), move=repr(move))
                    elif time.monotonic() - changed_at > STUCK_SECONDS_MAX:
                        reason = move.reason if isinstance(move, Wait) else repr(move)
                        raise RestoreStuck(restore=str(self.place), seconds=STUCK_SECONDS_MAX, reason=reason)
                    await self._carry_out(move, observation)
                await asyncio.sleep(POLL_SECONDS)
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            self.shadow.forget(self.key)

    async def _observe(self) -> Observation | None:
        """What the metadata log and the brokers have now; None while the topic is not there."""
        image = self.shadow.image
        state = image.partitions.get(self.key)
        if state is None or image.topics.get(self.place.topic) != self.key.topic_id:
            raise Yielded("the topic was deleted")
        live = frozenset(b for b, one in image.brokers.items() if not one.fenced and not is_shadow(b))
        starts = await asyncio.gather(*(self._start_on(broker) for broker in sorted(live)))
        if image.partitions.get(self.key) != state:
            return None  # it has changed meanwhile: what was read may be of another log
        return Observation(
            self.original, self.start, self.needed, self.shadow.id,
            state.replicas, state.isr, state.leader, state.adding, state.removing,
            live, {b: start for b, start in zip(sorted(live), starts) if start is not None},
        )  # fmt: skip

    async def _start_on(self, broker: int) -> int | None:
        try:
            return await self.shadow.end_on(broker, *self.place, timestamp=Timestamp.EARLIEST)
        except PenstockError:
            return None

    async def _note(self, observation: Observation) -> None:
        """Record what was reached."""
        if self.shadow.id in observation.isr:
            await self._first(InPlaceStep.JOINED)
        for broker in observation.restored:
            if broker not in self._restored:
                self._restored.add(broker)
                await self.reached(InPlaceStep.REBUILT)
        self._restored &= set(observation.restored)
        if observation.leader in observation.restored and not observation.has_shadow:
            await self._first(InPlaceStep.RETURNED)
        if not observation.shadow_leads and self._led_since is not None:
            self.paused_seconds = max(self.paused_seconds, time.monotonic() - self._led_since)
            self._led_since = None
            self.shadow.forget(self.key)

    async def _first(self, step: InPlaceStep) -> None:
        if step not in self._steps:
            self._steps.add(step)
            await self.reached(step)

    async def _keep_leading(self, observation: Observation) -> None:
        """Serve the log if the shadow has begun to lead; give up if producers wait too long."""
        if not observation.shadow_leads:
            return
        if self._led_since is None:
            self._led_since = time.monotonic()
            self._times_led += 1
            if self._times_led > LEADS_MAX:
                raise Yielded(f"it was lost again {LEADS_MAX} times")
            await self._serve(observation)
            await self._first(InPlaceStep.LEADS)
        if (led := self.shadow.led(self.key)) is not None:
            led.finish_truncation()
        if time.monotonic() - self._led_since > self.pause_seconds:
            raise Yielded(f"producers have waited for {self.pause_seconds:.0f} s")

    async def _serve(self, observation: Observation) -> None:
        """Lead the log up to where every real in-sync replica has it."""
        state = self.shadow.image.partitions[self.key]
        if self._history is None or self._history[0] != state.leader_epoch - 1:
            log.warning("shadow elected unexpectedly", partition=str(self.place))
            await self._carry_out(Place(observation.settled), observation)
            return
        start, end = await self._agreed_range(state)
        chain = await self.archive.chain(self.topic_id, self.place.partition)
        if chain.end < start:
            raise Yielded(f"the log starts at {start} now, and the backup ends at {chain.end}")
        in_sync = real_of(state.isr)
        log_id = LogId(self.key.topic_id, self.key.partition)
        epochs = joined_history(chain.epochs, self._history[1], start, end)
        source = LiveLog(self.client, self.archive, chain, log_id, start, in_sync, epochs)
        led = LedPartition(self.key, self.place.topic, self.start, end, source.older, epochs=epochs)
        led.produce_error = Code.NOT_LEADER_OR_FOLLOWER  # producers wait for a real leader
        # What a replica has beyond is acknowledged to no producer, and must go.
        led.truncation, led.truncating = Truncation(state.leader_epoch - 1, end), True
        await self.truncates(led.truncation)
        log.info("log served", partition=str(self.place), start=self.start, live_start=start, end=end)
        self.shadow.lead(led)

    async def _agreed_range(self, state: PartitionState) -> tuple[int, int]:
        """The highest start and the lowest end of the real in-sync replicas.

        The end is not below what the shadow claimed as a follower: the leader before may have acknowledged
        records up to there, and nothing beyond."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        replicas = real_of(state.isr)
        while time.monotonic() < deadline:
            if self.shadow.image.partitions[self.key].leader_epoch != state.leader_epoch:
                raise Yielded("another broker was elected")
            try:
                ends = await asyncio.gather(*(self.shadow.end_on(one, *self.place) for one in replicas))
            except PenstockError:
                ends = [None]
            starts = await asyncio.gather(*(self._start_on(one) for one in replicas))
            known_ends = [end for end in ends if end is not None]
            known_starts = [start for start in starts if start is not None]
            complete = len(known_ends) == len(known_starts) == len(replicas) >= self.needed
            if complete and min(known_ends) >= self._followed.claimed:
                return max(known_starts), min(known_ends)
            await asyncio.sleep(POLL_SECONDS)
        raise Yielded("the ends of its replicas are not known")

    async def _carry_out(self, move: Move, observation: Observation) -> None:
        try:
            match move:
                case Place(replicas, _):
                    results_or_raise(await reassignments.alter(self.client, {self.place: replicas}))
                    await self._until_changed(observation)
                case Elect(leader):
                    if leader == self.shadow.id and not await self._prepare():
                        return
                    results_or_raise(await reassignments.elect(self.client, [self.place]))
                    await self._until_changed(observation)
                case Follow() | Wait() | Done():
                    pass
        except PenstockError as error:
            # Refused while the controller or a leader changes; decided again from the state then.
            log.info("restore move refused", partition=str(self.place), move=repr(move), error=str(error))
            return
        # Not within: a record that cannot be written means that another process has taken over.
        if isinstance(move, Place) and move.dropped >= 0:
            await self.reached(InPlaceStep.DROPPED)

    async def _prepare(self) -> bool:
        """The last checks before producers wait; false if the leader cannot be asked now."""
        await self._until_no_transaction()
        state = self.shadow.image.partitions[self.key]
        chain = await self.archive.chain(self.topic_id, self.place.partition)
        start, end = await self._start_on(state.leader), await self.shadow.end_on(state.leader, *self.place)
        if start is None or end is None:
            return False
        log_id = LogId(self.key.topic_id, self.key.partition)
        try:
            await check_seam(self.client, self.archive, chain, log_id, start, end, state.leader)
        except BackupDiffers as error:
            raise Yielded(str(error)) from error
        epochs = await epochs_of(self.client, self.place, state.leader_epoch, start)
        self._history = (state.leader_epoch, epochs)
        return True

    async def _until_no_transaction(self) -> None:
        """An open one would wait with its producer; give up rather than let it time out."""
        deadline = time.monotonic() + TRANSACTIONS_SECONDS_MAX
        while True:
            active = results_or_raise(await transactions.producers(self.client, [self.place]))[self.place]
            if all(one.open_since_offset is None for one in active):
                return
            if time.monotonic() > deadline:
                raise Yielded(f"a transaction was open for {TRANSACTIONS_SECONDS_MAX:.0f} s")
            await asyncio.sleep(POLL_SECONDS)

    async def _until_changed(self, observation: Observation) -> None:
        """The metadata log shows the effect a moment later."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        known = (observation.replicas, observation.isr, observation.leader, observation.adding)
        while time.monotonic() < deadline:
            state = self.shadow.image.partitions.get(self.key)
            if state is None or (state.replicas, state.isr, state.leader, state.adding) != known:
                return
            await asyncio.sleep(POLL_SECONDS)
