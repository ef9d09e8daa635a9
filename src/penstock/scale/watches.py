"""Who is watched, and what is known of each: samples in, verdicts out.

One `Watch` for each ScaledObject and wish (namespace, name, metadata). It is made when KEDA first
asks or when another instance says so, and forgotten when nobody has asked for a while: KEDA has
no call for "I am done". Reads no clock; the time is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.model.errors.scale import BrokersUnseen, GroupEmpty, GroupUnknown, SamplesPending, TopicUnknown
from penstock.scale.policy import Policy, metadata_hash, policy_of
from penstock.scale.values import Change, Memory, Standing, Verdict
from penstock.scale.verdict import decide
from penstock.scale.window import Window

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.model.errors import PenstockError
    from penstock.scale.records import Sampled
    from penstock.scale.values import Sample

GAP_INTERVALS: Final = 3.5  # samples missing for longer break what was continuous
FORGET_SECONDS: Final = 1800.0  # without a call
REFRESH_SECONDS: Final = 300.0  # how often a watch that is asked for is told to the others
WATCHES_MAX: Final = 100_000
SET_BACK_SLOTS: Final = 6  # a writer that falls back by more had its clock set


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
        self.missing: str | None = None  # "group" or a topic's name, when the last look found none
        self.sampled_at: float | None = None
        self.called_at = 0.0
        self.told_at = 0.0  # when the other instances last heard that it is asked for
        self.wished_at = 0.0  # when the sampler did
        self.window = Window(policy, gap=GAP_INTERVALS * interval)

    def take(self, sample: Sample, memory: Memory | None, *, judge: bool = True) -> None:
        """One more sample. `memory` is what its writer remembered before it, if it did.

        History is read without judging: the next sample's memory says what came of this one.
        """
        self.missing = None
        self.sampled_at = sample.at
        self.memory = memory or self.memory
        self.window.add(sample)
        self.verdict = None
        if judge:
            self._judge()

    def standing(self) -> Standing | None:
        """What another process needs to answer for this watch; None before its first sample."""
        if self.sampled_at is None:
            return None
        if self.verdict is None and self.missing is None:
            self._judge()
        state = str(self.window.state)
        if self.verdict is None:
            return Standing(self.sampled_at, None, 0.0, False, self.missing, state)
        found = self.verdict
        return Standing(self.sampled_at, found.replicas, found.value, found.active, None, state)

    def told(self, standing: Standing) -> None:
        """Takes what the process that has the samples made of them."""
        self.sampled_at, self.missing = standing.at, standing.missing
        self.window.state = standing.state
        self.verdict = None
        if standing.replicas is not None:
            self.verdict = Verdict(
                standing.at, Change.HOLD, standing.replicas, standing.active, "", self.memory,
                value=standing.value,
            )  # fmt: skip

    def _judge(self) -> None:
        if not self.window.rows:
            return
        self.verdict = decide(self.window, self.memory, interval=self.interval)
        if self.verdict is not None:
            self.memory = self.verdict.memory

    def miss(self, what: str, at: float) -> None:
        self.missing = what
        self.sampled_at = at
        self.verdict = None

    def answer(self, now: float, unseen: str = "no answer yet") -> Verdict:
        """The verdict in force, or the error that says why there is none. Never a guess, never 0."""
        policy = self.policy
        if self.sampled_at is None:
            raise SamplesPending(cluster=policy.cluster, group=policy.group, interval=self.interval)
        age = now - self.sampled_at
        if age > GAP_INTERVALS * self.interval:
            raise BrokersUnseen(cluster=policy.cluster, group=policy.group, age=age, reason=unseen)
        if self.missing is not None:
            raise self._not_found(self.missing)
        if self.verdict is None:
            self._judge()
        if self.verdict is None:
            raise GroupEmpty(cluster=policy.cluster, group=policy.group, state=self.window.state)
        return self.verdict

    def _not_found(self, what: str) -> PenstockError:
        policy = self.policy
        if what == "group":
            topics = ", ".join(policy.topics) or "any topic"
            return GroupUnknown(cluster=policy.cluster, group=policy.group, topics=topics)
        return TopicUnknown(cluster=policy.cluster, topic=what)


class Watches:
    """All of them, found by key and by group."""

    def __init__(self, intervals: Mapping[str, float]) -> None:
        self._intervals = intervals  # seconds between samples, by cluster
        self._by_key: dict[str, Watch] = {}
        self._by_group: dict[tuple[str, str], dict[str, Watch]] = {}
        self._slots: dict[str, tuple[int, str]] = {}  # by cluster: newest slot, and whose round counts

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Watch]:
        return iter(list(self._by_key.values()))

    def get(self, key: str) -> Watch | None:
        return self._by_key.get(key)

    def of_group(self, cluster: str, group: str) -> Iterable[Watch]:
        return list(self._by_group.get((cluster, group), {}).values())

    def admit(self, scaled_object: str, metadata: Mapping[str, str], now: float) -> Watch:
        """The watch for this wish, made if it is new. Raises what is wrong with the metadata."""
        key = watch_key(scaled_object, metadata)
        watch = self._by_key.get(key)
        if watch is None:
            policy = policy_of(metadata, scaled_object=scaled_object)
            watch = Watch(scaled_object, metadata, policy, self._intervals.get(policy.cluster, 10.0))
            if len(self._by_key) >= WATCHES_MAX:
                self._drop(min(self._by_key.values(), key=lambda each: each.called_at))
            self._by_key[key] = watch
            self._by_group.setdefault((policy.cluster, policy.group), {})[key] = watch
        watch.called_at = max(watch.called_at, now)
        return watch

    def expire(self, now: float) -> list[Watch]:
        """Forgets those nobody asked for lately, and returns them."""
        gone = [watch for watch in self._by_key.values() if now - watch.called_at > FORGET_SECONDS]
        for watch in gone:
            self._drop(watch)
        return gone

    def counts(self, record: Sampled) -> bool:
        """Whether this part of a round is to be taken: of each slot, the first writer's."""
        slot, writer = self._slots.get(record.cluster, (-1, ""))
        if record.extra:
            return True
        set_back = record.by == writer and record.slot < slot - SET_BACK_SLOTS
        if record.slot > slot or set_back:
            self._slots[record.cluster] = (record.slot, record.by)
            return True
        return record.slot == slot and record.by == writer

    def newest_slot(self, cluster: str) -> tuple[int, str]:
        return self._slots.get(cluster, (-1, ""))

    def take(self, record: Sampled, *, judge: bool = True) -> Iterator[Watch]:
        """Takes the samples of one record, and yields each watch after its verdict."""
        if not self.counts(record):
            return
        for group, sample in record.samples.items():
            for watch in self.of_group(record.cluster, group):
                if record.extra and watch.sampled_at is not None:
                    continue
                absent = next((topic for topic in watch.policy.topics if topic not in sample.logs), None)
                if absent is not None:
                    watch.miss(absent, record.at)
                else:
                    watch.take(sample, record.memories.get(watch.key), judge=judge)
                yield watch
        for group, what in record.missing.items():
            for watch in self.of_group(record.cluster, group):
                watch.miss(what, record.at)
                yield watch

    def _drop(self, watch: Watch) -> None:
        del self._by_key[watch.key]
        group = (watch.policy.cluster, watch.policy.group)
        self._by_group[group].pop(watch.key, None)
        if not self._by_group[group]:
            del self._by_group[group]


def next_slot(now: float, interval: float, last: int) -> int:
    """The slot to sample after `last`: the coming one, each once, also when the clock is set back."""
    coming = int(now // interval) + 1
    return coming if coming > last or coming < last - SET_BACK_SLOTS else last + 1


def watch_key(scaled_object: str, metadata: Mapping[str, str]) -> str:
    return f"{scaled_object}#{metadata_hash(metadata)}"
