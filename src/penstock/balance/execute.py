"""Executes moves on a running cluster: the only code that reassigns, elects or throttles.

    executor = Executor(client)
    await executor.move_tenant(Target(tenant, brokers), report=print)

An executor belongs to one cluster. Its jobs (plans, tenant moves, returning leaders) run at the same time and
share one budget: each round observes the cluster, lets `executing.decide` decide for all jobs together, and
acts. Run one executor on a cluster. After a crash, running the same jobs again resumes them, from any
process; a job that is complete changes nothing. Consumer offsets and transaction state of a tenant do not
move, because they are in the cluster's internal topics, on brokers of any cell.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from penstock.balance import replication_throttle as throttle
from penstock.balance.cluster_observation import cluster_health, observe, with_sizes
from penstock.balance.executing import Budget, Health, Memory, Status, decide
from penstock.balance.leader_fitness import unfit_leaders
from penstock.balance.plan_document import RATE_DEFAULT
from penstock.balance.tenant_move import tenant_progress, tenant_work
from penstock.kafka.admin import reassignments
from penstock.kafka.admin.partitions import TopicPartition
from penstock.model.errors import PenstockError
from penstock.model.errors.balance import MoveStalled
from penstock.model.fault_points import declare, reach
from penstock.model.ids import tenant_prefix
from penstock.timed_wait import wait_at_most

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from penstock.balance.executing import Observation, PartitionState, Round, Standing, Work
    from penstock.balance.plan_document import PlannedMove
    from penstock.balance.tenant_move import Progress, Target
    from penstock.kafka.client import Client

POLL_SECONDS: Final = 0.5  # between two rounds
OBSERVING_RATIO_MAX: Final = 0.2  # of the time: on a large cluster, rounds are further apart
HEALTH_SECONDS: Final = 5.0  # between two looks at all partitions of the cluster
STALLED_SECONDS: Final = 600.0  # in which no copy came closer to its end

THROTTLED: Final = declare("balance.move.throttled", "throttles are set, no partition of the batch moves yet")
STARTED: Final = declare("balance.move.started", "a batch is being copied")
PLACED: Final = declare("balance.move.placed", "all partitions are in place, throttles still set")
ELECTED: Final = declare("balance.plan.elected", "preferred leaders are elected, throttles still set")
CANCELLED: Final = declare("balance.plan.cancelled", "reassignments are cancelled, throttles still set")
LIFTED: Final = declare("balance.plan.lifted", "throttles are removed, and the plan is not marked as done")

log = structlog.get_logger("penstock.balance")


class Job(Protocol):
    """Something to move; see `TenantMove` for an example."""

    @property
    def rate(self) -> float:
        """Bytes a second that one broker sends or receives; 0 for a job that copies nothing."""
        ...

    def topics(self) -> Collection[str] | None:
        """The topics to observe; none: all."""
        ...

    def work(self, seen: Observation) -> Work:
        """What is left, given the cluster; called in every round."""
        ...

    def sized(self, seen: Observation) -> Collection[tuple[str, int]]:
        """Partitions whose sizes are needed."""
        ...

    def report(self, seen: Observation, standings: Sequence[Standing], round_: Round) -> None:
        """How the moves of the last `work` stand. May raise: the job ends with this error."""
        ...

    def owned(self) -> Mapping[str, Collection[int]]:
        """The partitions, by topic, whose throttles belong to the job: all that it moved or will move."""
        ...

    def refused(self, key: tuple[str, int], error: PenstockError) -> None:
        """Kafka refuses this reassignment for good. May raise: the job ends with this error."""
        ...


class Executor:
    """Runs the jobs of one cluster.

    `slow` returns what is slow, in words, or nothing. `hold` returns why no copy may start now, or nothing.
    """

    def __init__(
        self,
        client: Client,
        *,
        budget: Budget | None = None,
        slow: Callable[[], str] = lambda: "",
        hold: Callable[[], str] = lambda: "",
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._client = client
        self.budget = budget or Budget()
        self._slow = slow
        self._hold = hold
        self._poll_seconds = poll_seconds
        self._jobs: dict[Job, asyncio.Future[None]] = {}
        self._rounds: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.memory = Memory()
        self._health, self._health_time = Health(), float("-inf")
        self._rated: dict[int, str] = {}  # brokers with a rate, as set by this executor
        self._unrated: frozenset[int] = frozenset()  # brokers without a rate of the platform
        self._changing_rates = asyncio.Lock()

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    async def run(self, job: Job) -> None:
        """Returns when every move of the job is done or dropped, and its throttles are removed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._jobs[job] = done
        self._wake.set()
        if self._rounds is None or self._rounds.done():
            self._rounds = asyncio.create_task(self._run_rounds())
        try:
            await done
        except BaseException:
            self._unrated = frozenset()  # its rates are left: `tidy` removes them if it does not run again
            raise
        finally:
            self._jobs.pop(job, None)
            self._wake.set()
            if not self._jobs and self._rounds is not None:
                # The caller was cancelled, as at the end of a leadership term: act no more.
                self._rounds.cancel()
                self._rounds = None

    async def move_tenant(
        self,
        target: Target,
        *,
        rate: float = RATE_DEFAULT,
        report: Callable[[Progress], None] = lambda _: None,
        stalled_seconds: float = STALLED_SECONDS,
    ) -> Progress:
        """Returns when every partition of the tenant is in the target cell, led there, unthrottled."""
        job = TenantMove(target, rate, report, stalled_seconds)
        await self.run(job)
        assert job.progress is not None
        return job.progress

    async def tidy(self, alive: frozenset[int]) -> None:
        """Removes rates that a crash or a failed job left behind, or that a broker kept which died meanwhile.

        Does something if there may be such rates and nothing runs.
        """
        async with self._changing_rates:
            if alive <= self._unrated or self.busy:
                return
            self._rated.clear()
            silent = await throttle.remove_rates(self._client, alive - self._unrated)
            self._unrated = alive - silent

    # Rounds

    async def _run_rounds(self) -> None:
        """Until no job is left. A round that fails ends all jobs: their owners run them again."""
        try:
            while self._jobs:
                began = time.monotonic()
                acted = await self._round()
                took = time.monotonic() - began
                self._wake.clear()
                if self._jobs and not acted:
                    pause = max(self._poll_seconds, took / OBSERVING_RATIO_MAX - took)
                    await wait_at_most(self._wake, pause)
        except PenstockError as failure:
            self._fail(failure)
        except BaseException as failure:
            self._fail(failure)
            raise

    def _fail(self, failure: BaseException) -> None:
        if asyncio.current_task() is not self._rounds:
            return  # other rounds have begun
        for done in self._jobs.values():
            if not done.done():
                if isinstance(failure, asyncio.CancelledError):
                    done.cancel()
                else:
                    done.set_exception(failure)
        self._jobs.clear()

    async def _round(self) -> bool:
        """One round for all jobs; returns whether moves were started."""
        jobs = [job for job, done in self._jobs.items() if not done.done()]
        seen = await self._observe(jobs)
        works: dict[Job, Work] = {}
        for job in jobs:
            try:
                works[job] = job.work(seen)
            except PenstockError as failure:
                self._end(job, failure)
        now = time.monotonic()
        round_ = decide(list(works.values()), seen, self.budget, self.memory, now)
        if round_.elect and (unfit := await unfit_leaders(self._client, seen, round_.elect)):
            log.warning("replicas not elected", partitions=len(unfit), error=next(iter(unfit.values())))
            seen = replace(seen, unfit=unfit)
            round_ = decide(list(works.values()), seen, self.budget, self.memory, now)
        # What starts now is remembered once Kafka has accepted it.
        starting = {(move.topic, move.partition) for move in round_.start}
        started = {key: at for key, at in round_.memory.started.items() if key not in starting}
        self.memory = replace(round_.memory, started=started)
        if round_.cancel:
            await self._cancel(round_)
        if round_.start:
            await self._start(works, seen, round_)
        else:
            await self._set_rates(works, _brokers(_copying(works, seen, round_)), seen.alive)
        if round_.elect:
            # A replica that cannot lead yet is elected in a later round.
            await reassignments.elect(self._client, [TopicPartition(*key) for key in round_.elect])
            reach(ELECTED)
        for job, standings in zip(works, round_.standings, strict=True):
            await self._report(job, seen, standings, round_)
        return bool(round_.start)

    async def _observe(self, jobs: Sequence[Job]) -> Observation:
        named = [job.topics() for job in jobs]
        now = time.monotonic()
        whole = now - self._health_time > HEALTH_SECONDS
        names = None if whole or None in named else {t for names in named for t in names or ()}
        seen = await observe(self._client, names)
        if whole:
            self._health = await cluster_health(self._client, seen, self._slow())
            self._health_time = now
        for job in jobs:
            seen = await with_sizes(self._client, seen, job.sized(seen))
        return replace(seen, health=self._health, hold=self._hold())

    # Acting

    async def _start(self, works: Mapping[Job, Work], seen: Observation, round_: Round) -> None:
        """Throttles, then starts; what Kafka refuses is reported to its job."""
        moving = [*_copying(works, seen, round_), *round_.start]
        topics = {move.topic for move in round_.start}
        await self._throttle(works, [move for move in moving if move.topic in topics], seen)
        await self._set_rates(works, _brokers(moving), seen.alive)
        reach(THROTTLED)
        targets = {TopicPartition(m.topic, m.partition): list(m.after) for m in round_.start}
        results = await reassignments.alter(self._client, targets, allow_replication_factor_change=False)
        reach(STARTED)
        errors = {tuple(key): error for key, error in results.items() if error is not None}
        accepted = {
            key: at
            for key, at in round_.memory.started.items()
            if key not in errors and TopicPartition(*key) in targets
        }
        self.memory = replace(self.memory, started={**self.memory.started, **accepted})
        self._refuse(works, {k: e for k, e in errors.items() if not e.retriable})

    def _refuse(self, works: Mapping[Job, Work], errors: Mapping[tuple[object, ...], PenstockError]) -> None:
        for job, work in works.items():
            for move in work.moves:
                error = errors.get((move.topic, move.partition))
                if error is None:
                    continue
                log.warning(
                    "reassignment refused", topic=move.topic, partition=move.partition, error=str(error)
                )
                try:
                    job.refused((move.topic, move.partition), error)
                except PenstockError as failure:
                    self._end(job, failure)

    async def _throttle(
        self, works: Mapping[Job, Work], moving: Sequence[PlannedMove], seen: Observation
    ) -> None:
        by_topic: dict[str, list[tuple[int, tuple[int, ...], tuple[int, ...]]]] = {}
        for move in moving:
            state = seen.partitions[move.topic, move.partition]
            adding = state.adding if state.reassigning else move.adding
            senders = tuple(b for b in state.replicas if b not in adding)
            by_topic.setdefault(move.topic, []).append((move.partition, senders, adding))
        lists = {topic: throttle.throttled_replicas(rows) for topic, rows in by_topic.items()}
        await throttle.set_throttled(self._client, lists, _owned(works, lists))

    async def _set_rates(
        self, works: Mapping[Job, Work], moving: Collection[int], alive: frozenset[int]
    ) -> None:
        """The highest rate of all jobs, times the pace; set where it differs.

        Also of what a predecessor started: its rates may have been removed since.
        """
        rate = max((job.rate for job in works), default=0.0) * self.memory.share
        if not rate:
            return  # nothing that runs copies anything
        value = throttle.marked_rate(rate)
        brokers = {*moving, *self._rated} & alive
        changed = {broker for broker in brokers if self._rated.get(broker) != value}
        if changed:
            async with self._changing_rates:
                silent = await throttle.set_rates(self._client, changed, rate)
                self._rated |= dict.fromkeys(changed - silent, value)

    async def _cancel(self, round_: Round) -> None:
        targets = {TopicPartition(*key): replicas for key, replicas in round_.cancel.items()}
        for key, error in (await reassignments.alter(self._client, targets)).items():
            if error is not None:  # it may have ended meanwhile; else it is tried again
                log.info(
                    "reassignment not cancelled", topic=key.topic, partition=key.partition, error=str(error)
                )
        reach(CANCELLED)

    async def _report(
        self, job: Job, seen: Observation, standings: Sequence[Standing], round_: Round
    ) -> None:
        try:
            job.report(seen, standings, round_)
        except PenstockError as failure:
            self._end(job, failure)
            return
        if all(each.ended for each in standings):
            reach(PLACED)
            await self._lift(job, seen.alive)
            reach(LIFTED)
            self._end(job)

    async def _lift(self, job: Job, alive: frozenset[int]) -> None:
        """Removes a job's throttles, and with the last job the brokers' rates."""
        owned = job.owned()
        await throttle.set_throttled(self._client, {t: throttle.throttled_replicas([]) for t in owned}, owned)
        others = [other for other, done in self._jobs.items() if other is not job and not done.done()]
        if not others:
            async with self._changing_rates:
                self._rated.clear()
                self._unrated = alive - await throttle.remove_rates(self._client, alive)

    def _end(self, job: Job, failure: PenstockError | None = None) -> None:
        done = self._jobs.pop(job, None)
        if done is None or done.done():
            return
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)


class TenantMove:
    """The job of moving a tenant to another cell."""

    def __init__(
        self, target: Target, rate: float, report: Callable[[Progress], None], stalled_seconds: float
    ) -> None:
        self.rate = rate
        self.progress: Progress | None = None
        self._target = target
        self._prefix = tenant_prefix(target.tenant)
        self._on_progress = report
        self._stalled_seconds = stalled_seconds
        self._advanced = time.monotonic()
        self._lacking: dict[tuple[str, int], int] = {}  # the fewest bytes that each copy has lacked
        self._owned: dict[str, set[int]] = {}

    def owned(self) -> Mapping[str, Collection[int]]:
        return self._owned

    def topics(self) -> None:
        """All: topics may be created during the move."""

    def of_tenant(self, seen: Observation) -> dict[tuple[str, int], PartitionState]:
        return {key: state for key, state in seen.partitions.items() if key[0].startswith(self._prefix)}

    def sized(self, seen: Observation) -> Collection[tuple[str, int]]:
        return self.of_tenant(seen)

    def work(self, seen: Observation) -> Work:
        partitions = self.of_tenant(seen)
        for topic, number in partitions:
            self._owned.setdefault(topic, set()).add(number)
        return tenant_work(partitions, self._target)

    def report(self, seen: Observation, standings: Sequence[Standing], round_: Round) -> None:
        partitions = self.of_tenant(seen)
        if self._has_advanced(partitions):
            self._advanced = time.monotonic()
        if (now := tenant_progress(partitions, self._target)) != self.progress:
            if self.progress is None or now.partitions_done > self.progress.partitions_done:
                self._advanced = time.monotonic()
            self.progress = now
            self._on_progress(now)
        if all(each.ended for each in standings):
            return
        if time.monotonic() - self._advanced > self._stalled_seconds:
            reason = round_.waiting or stall_reason(standings)
            raise MoveStalled(tenant=self._target.tenant, seconds=self._stalled_seconds, reason=reason)

    def _has_advanced(self, partitions: Mapping[tuple[str, int], PartitionState]) -> bool:
        """Whether a copy lacks less than ever before. Copied bytes alone show nothing: writers add more."""
        advanced = False
        for key, state in partitions.items():
            lacking = max(0, state.size_bytes - state.copied_bytes)
            if state.reassigning and lacking < self._lacking.get(key, lacking + 1):
                self._lacking[key] = lacking
                advanced = True
        return advanced

    def refused(self, key: tuple[str, int], error: PenstockError) -> None:
        del key
        raise error


async def move_tenant(
    client: Client,
    target: Target,
    *,
    rate: float = RATE_DEFAULT,
    report: Callable[[Progress], None] = lambda _: None,
    poll_seconds: float = POLL_SECONDS,
    stalled_seconds: float = STALLED_SECONDS,
) -> Progress:
    """Moves one tenant on a cluster where nothing else moves."""
    executor = Executor(client, poll_seconds=poll_seconds)
    return await executor.move_tenant(target, rate=rate, report=report, stalled_seconds=stalled_seconds)


def stall_reason(standings: Sequence[Standing]) -> str:
    copying = sum(each.status is Status.COPYING for each in standings)
    if copying:
        return f"{copying} partitions are being copied, not faster than records are written to them"
    reasons = [each.reason for each in standings if not each.ended and each.reason]
    return reasons[0] if reasons else "the cluster accepts reassignments but does not start them"


def _copying(works: Mapping[Job, Work], seen: Observation, round_: Round) -> list[PlannedMove]:
    """Moves whose reassignments are under way."""
    return [
        move
        for work, standings in zip(works.values(), round_.standings, strict=True)
        for move, standing in zip(work.moves, standings, strict=True)
        if standing.status is Status.COPYING
        and (move.topic, move.partition) in seen.under_way
        and (move.topic, move.partition) in seen.partitions
    ]


def _brokers(moves: Iterable[PlannedMove]) -> set[int]:
    return {broker for move in moves for broker in (*move.before, *move.after)}


def _owned(jobs: Collection[Job], topics: Collection[str]) -> dict[str, set[int]]:
    """The partitions of these topics that any job moves."""
    owned: dict[str, set[int]] = {topic: set() for topic in topics}
    for job in jobs:
        for topic, partitions in job.owned().items():
            if topic in owned:
                owned[topic].update(partitions)
    return owned
