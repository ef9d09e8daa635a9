"""Watched ScaledObjects: samples in, verdicts out.

There is one `Watch` for each ScaledObject and metadata. It is created by KEDA's first call or by
another instance's announcement. It expires when no call has come for a while, since KEDA has no call
to end it. Time is passed in; nothing here reads a clock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.model.errors.scale import (
    BrokersUnreachable,
    GroupEmpty,
    GroupNotSampled,
    GroupUnknown,
    SamplesPending,
    TopicUnknown,
)
from penstock.scale.decision.policy import Policy, metadata_hash, policy_of
from penstock.scale.decision.values import Change, GroupState, Memory, Verdict, VerdictSummary
from penstock.scale.decision.verdict import decide_all
from penstock.scale.decision.window import Window, add_samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.model.errors import PenstockError
    from penstock.scale.decision.values import Sample
    from penstock.scale.sampler.records import Sampled

INTERVAL_DEFAULT: Final = 10.0  # seconds, for a cluster that only another instance has
GAP_INTERVALS: Final = 3.5  # a longer gap between samples restarts the window
FORGET_SECONDS: Final = 1800.0  # without a call, a watch expires
REFRESH_SECONDS: Final = 300.0  # how often an active watch is announced to other instances
WATCHES_MAX: Final = 100_000
ROUND_SHARE_MIN: Final = 0.5  # of an interval: a round sooner after another is that of a second writer


class Round(NamedTuple):
    """The newest round of a cluster that counts."""

    by: str  # the instance that sampled
    number: int
    at: float
    received_at: float | None  # on this host's clock; None: read from the history


class Watch:
    """One ScaledObject's policy, window, memory and last verdict."""

    def __init__(
        self, scaled_object: str, metadata: Mapping[str, str], policy: Policy, interval: float
    ) -> None:
        self.scaled_object = scaled_object
        self.metadata = dict(metadata)
        self.policy = policy
        self.key = watch_key(scaled_object, metadata)
        self.interval = interval
        self.memory = Memory()
        self.verdict: Verdict | None = None
        self.missing: str | None = None  # "group" or a topic's name, if the last sample had none
        self.failure: str | None = None  # why the last round has no sample of it
        self.sampled_at: float | None = None  # on the journal's clock
        self.received_at: float | None = None  # on this host's clock, as all below
        self.called_at = -math.inf
        self.announced_at = -math.inf  # to the other instances
        self.forwarded_at = -math.inf  # to the sampler
        self.window = Window(policy, gap=GAP_INTERVALS * interval)

    def remembered(self) -> Memory:
        """The memory after the newest sample, also if that was read from the history."""
        if self.verdict is None and self.missing is None:
            evaluate([self])
        return self.memory

    def summary(self) -> VerdictSummary | None:
        """What the service needs to answer calls for this watch; None before its first round."""
        if self.received_at is None and self.failure is None:
            return None
        self.remembered()
        state = str(self.window.state)
        if self.verdict is None:
            return VerdictSummary(self.received_at, None, 0.0, False, self.missing, state, self.failure)
        verdict = self.verdict
        return VerdictSummary(
            self.received_at, verdict.replicas, verdict.value, verdict.active, None, state, self.failure
        )

    def apply_summary(self, summary: VerdictSummary) -> None:
        """Sets the verdict from what the sampler process sent."""
        self.received_at, self.missing, self.failure = summary.received_at, summary.missing, summary.failure
        self.window.state = summary.state
        self.verdict = None
        if summary.replicas is not None:
            self.verdict = Verdict(
                summary.received_at or 0.0, Change.HOLD, summary.replicas, summary.active, "", self.memory,
                value=summary.value,
            )  # fmt: skip

    def mark_missing(self, what: str, at: float, now: float | None) -> None:
        self.missing, self.failure = what, None
        self.sampled_at = at
        self.received_at = now if now is not None else self.received_at
        self.verdict = None

    def current_verdict(self, now: float, unreachable: str = "no sample yet") -> Verdict:
        """The current verdict; raises why there is none. Never a guess, never 0."""
        policy = self.policy
        age = now - (self.received_at or 0.0)
        too_old = self.received_at is None or age > GAP_INTERVALS * self.interval
        if too_old and self.failure is not None:
            raise GroupNotSampled(cluster=policy.cluster, group=policy.group, reason=self.failure)
        if self.received_at is None:
            raise SamplesPending(cluster=policy.cluster, group=policy.group, interval=self.interval)
        if too_old:
            raise BrokersUnreachable(cluster=policy.cluster, group=policy.group, age=age, reason=unreachable)
        if self.missing is not None:
            raise self._not_found(self.missing)
        if self.verdict is None:
            evaluate([self])
        if self.verdict is None and self.window.state == GroupState.DEAD:
            raise self._not_found("group")
        if self.verdict is None:
            raise GroupEmpty(cluster=policy.cluster, group=policy.group, state=self.window.state)
        return self.verdict

    def _not_found(self, what: str) -> PenstockError:
        policy = self.policy
        if what == "group":
            topics = ", ".join(policy.topics) or "any topic"
            return GroupUnknown(cluster=policy.cluster, group=policy.group, topics=topics)
        return TopicUnknown(cluster=policy.cluster, topic=what)


def _add(
    watches: Sequence[Watch], samples: Sequence[Sample], memories: Mapping[str, Memory], now: float | None
) -> None:
    """Adds a sample to each watch. `memories` are what their writer remembered before, by watch.

    History (`now` is None) is not evaluated: the next sample's memory has the outcome of this one.
    """
    for watch, sample in zip(watches, samples, strict=True):
        watch.memory = memories.get(watch.key) or watch.remembered()
        watch.missing = watch.failure = watch.verdict = None
        watch.sampled_at = sample.at
        watch.received_at = watch.received_at if now is None else now
    add_samples([watch.window for watch in watches], samples)
    if now is not None:
        evaluate(watches)


def evaluate(watches: Sequence[Watch]) -> None:
    """Sets the verdicts of those watches that have a sample."""
    sampled = [watch for watch in watches if watch.window.at]
    if sampled:
        verdicts = decide_all(
            [each.window for each in sampled], [each.memory for each in sampled],
            [each.interval for each in sampled],
        )  # fmt: skip
        for watch, verdict in zip(sampled, verdicts):
            watch.verdict = verdict
            watch.memory = watch.memory if verdict is None else verdict.memory


class WatchedGroups:
    """All watches, by key and by group."""

    def __init__(self, intervals: Mapping[str, float]) -> None:
        self._intervals = intervals  # seconds between samples, by cluster
        self._by_key: dict[str, Watch] = {}
        self._by_group: dict[tuple[str, str], dict[str, Watch]] = {}
        self._rounds: dict[str, Round] = {}  # by cluster

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Watch]:
        return iter(list(self._by_key.values()))

    def get(self, key: str) -> Watch | None:
        return self._by_key.get(key)

    def of_group(self, cluster: str, group: str) -> Iterable[Watch]:
        return list(self._by_group.get((cluster, group), {}).values())

    def admit(self, scaled_object: str, metadata: Mapping[str, str], now: float) -> Watch:
        """The watch for this metadata, created if new. Raises if the metadata is invalid."""
        key = watch_key(scaled_object, metadata)
        watch = self._by_key.get(key)
        if watch is None:
            policy = policy_of(metadata, scaled_object=scaled_object)
            watch = Watch(
                scaled_object, metadata, policy, self._intervals.get(policy.cluster, INTERVAL_DEFAULT)
            )
            if len(self._by_key) >= WATCHES_MAX:
                self._drop(min(self._by_key.values(), key=lambda each: each.called_at))
            self._by_key[key] = watch
            self._by_group.setdefault((policy.cluster, policy.group), {})[key] = watch
        watch.called_at = max(watch.called_at, now)
        return watch

    def expire(self, now: float) -> list[Watch]:
        """Removes and returns the watches without a recent call."""
        expired = [watch for watch in self._by_key.values() if now - watch.called_at > FORGET_SECONDS]
        for watch in expired:
            self._drop(watch)
        return expired

    def accepts(self, record: Sampled, now: float | None) -> bool:
        """Whether this record counts: if two instances sample at the same time, the first in the topic does.

        Only the journal's clock decides, so that a wrong clock of an instance hides no samples.
        """
        last = self._rounds.get(record.cluster)
        if record.extra or (last is not None and (last.by, last.number) == (record.by, record.round)):
            return True
        interval = self._intervals.get(record.cluster, INTERVAL_DEFAULT)
        passed = record.at - last.at if last is not None else math.inf
        if -GAP_INTERVALS * interval <= passed < ROUND_SHARE_MIN * interval:
            return False
        self._rounds[record.cluster] = Round(record.by, record.round, record.at, now)
        return True

    def last_round(self, cluster: str) -> Round | None:
        return self._rounds.get(cluster)

    def take(self, record: Sampled, now: float | None) -> list[Watch]:
        """Adds the samples of one record to their watches; returns these, with their verdicts.

        `now` is when the record was received; None if it was read from the history.
        """
        if not self.accepts(record, now):
            return []
        sampled: dict[str, tuple[Watch, Sample]] = {}
        others: list[Watch] = []
        for group, sample in record.samples.items():
            for watch in self.of_group(record.cluster, group):
                if record.extra and watch.sampled_at is not None:
                    continue
                absent = next((topic for topic in watch.policy.topics if topic not in sample.logs), None)
                if absent is not None:
                    watch.mark_missing(absent, record.at, now)
                    others.append(watch)
                else:
                    sampled[watch.key] = (watch, sample)
        if sampled:
            watches, samples = zip(*sampled.values())
            _add(watches, samples, record.memories, now)
        for group, what in record.missing.items():
            for watch in self.of_group(record.cluster, group):
                watch.mark_missing(what, record.at, now)
                others.append(watch)
        for group, reason in record.failures.items():
            for watch in self.of_group(record.cluster, group):
                watch.failure = reason  # the last verdict stays valid until it is too old
                others.append(watch)
        return [*(watch for watch, _ in sampled.values()), *others]

    def _drop(self, watch: Watch) -> None:
        del self._by_key[watch.key]
        group = (watch.policy.cluster, watch.policy.group)
        self._by_group[group].pop(watch.key, None)
        if not self._by_group[group]:
            del self._by_group[group]


def watch_key(scaled_object: str, metadata: Mapping[str, str]) -> str:
    return f"{scaled_object}#{metadata_hash(metadata)}"
