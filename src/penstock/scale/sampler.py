"""One sampler a cluster: on its own clock, all groups together, whoever asked for them.

KEDA's calls read what is there and never touch a broker, so their number and rhythm change
nothing. A round asks for groups in batches (positions first, ends after: lag may be a moment
too high, never negative by a race), then for the logs of all their topics once, and publishes
samples part by part, in small steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.scale.records import Sampled
from penstock.scale.turns import Turns
from penstock.scale.values import NO_COMMIT, NO_OWNER, Log, Progress, Sample, offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from penstock.scale.source import GroupLook, LagSource
    from penstock.scale.watches import Watches

GROUPS_A_PART: Final = 25
MARKERS_A_ROUND_MAX: Final = 50  # fetches to tell markers from records
MARKER_SPAN_MAX: Final = 16  # offsets; a longer tail that stands still is no marker
MARKERS_KEPT_MAX: Final = 100_000


class Sampler:
    def __init__(
        self, cluster: str, source: LagSource, watches: Watches, *, instance: str, interval: float
    ) -> None:
        self.cluster = cluster
        self.source = source
        self.interval = interval
        self._watches = watches
        self._instance = instance
        self._markers: dict[tuple[str, int, int, int], int | None] = {}  # None: seen once, not asked yet
        self._asked = 0

    async def groups(self, *, only_new: bool = False) -> dict[str, set[str]]:
        """The groups to look at, with the topics wanted of each; an empty name: all it has."""
        wanted: dict[str, set[str]] = {}
        turns = Turns()
        for watch in self._watches:
            if watch.policy.cluster == self.cluster and not (only_new and watch.sampled_at is not None):
                wanted.setdefault(watch.policy.group, set()).update(watch.policy.topics or ("",))
            await turns.taken()
        return wanted

    async def round(self, slot: int, clock: Callable[[], float], *, only_new: bool = False) -> list[Sampled]:
        """One look at everything watched. Raises when the brokers cannot be seen."""
        self._asked = 0
        wanted = await self.groups(only_new=only_new)
        shared = [group for group in wanted if self._is_share(group)]
        plain = list(wanted.keys() - set(shared)) if shared else list(wanted)
        looks: dict[str, GroupLook | None] = {}
        at = clock()
        if plain:
            looks |= await self.source.groups(plain, share=False)
        if shared:
            looks |= await self.source.groups(shared, share=True)
        topics = {topic for names in wanted.values() for topic in names if topic}
        for group, look in looks.items():
            if look is not None and "" in wanted[group]:
                topics.update(look.positions)
        logs = await self.source.logs(topics) if topics else {}
        ordered = sorted(wanted, key=lambda name: (min(wanted[name]), name))  # groups of one topic together
        return [
            await self._part(slot, at, names, wanted, looks, logs, extra=only_new)
            for names in _chunks(ordered, GROUPS_A_PART)
        ]

    def _is_share(self, group: str) -> bool:
        return any(each.policy.group_type == "share" for each in self._watches.of_group(self.cluster, group))

    async def _part(
        self,
        slot: int,
        at: float,
        names: Collection[str],
        wanted: Mapping[str, set[str]],
        looks: Mapping[str, GroupLook | None],
        logs: Mapping[str, Log | None],
        *,
        extra: bool,
    ) -> Sampled:
        samples: dict[str, Sample] = {}
        missing: dict[str, str] = {}
        memories = {}
        turns = Turns()
        for group in names:
            await turns.taken()
            explicit = sorted(topic for topic in wanted[group] if topic)
            absent = next((topic for topic in explicit if topic not in logs), None)
            look = looks.get(group)
            if group in looks and look is None:
                continue  # its coordinator cannot tell now: no sample is better than a wrong one
            if look is None or (absent is not None and len(explicit) == 1):
                missing[group] = absent or "group"
                continue
            topics = {*explicit, *look.positions} if "" in wanted[group] else set(explicit)
            if any(logs.get(topic, ...) is None for topic in topics):
                continue
            samples[group] = await self._sample(at, look, topics, logs)
            for watch in self._watches.of_group(self.cluster, group):
                if watch.memory.asked is not None:
                    memories[watch.key] = watch.memory
        return Sampled(self.cluster, slot, at, self._instance, samples, missing, memories, extra)

    async def _sample(
        self, at: float, look: GroupLook, topics: set[str], logs: Mapping[str, Log | None]
    ) -> Sample:
        known = {topic: log for topic in sorted(topics) if (log := logs.get(topic)) is not None}
        progress = {topic: await self._progress(topic, log, look) for topic, log in known.items()}
        return Sample(at, look.state, look.members, known, progress, look.generation)

    async def _progress(self, topic: str, log: Log, look: GroupLook) -> Progress:
        positions = look.positions.get(topic, {})
        owners = look.owners.get(topic, {})
        count = len(log.end)
        committed = offsets([NO_COMMIT] * count)
        beyond = offsets([0] * count)
        markers = offsets([0] * count)
        for partition, position in positions.items():
            if partition >= count:
                continue
            committed[partition] = position.offset
            begin, end = max(position.offset, log.start[partition]), log.end[partition]
            if end <= begin:
                continue  # nothing waits, so nothing is to be told apart
            if position.lag is not None:
                beyond[partition] = max(0, end - begin - position.lag)
            elif position.beyond:
                beyond[partition] = min(position.beyond, end - begin)
            if 0 < end - begin - beyond[partition] <= MARKER_SPAN_MAX and position.offset != NO_COMMIT:
                markers[partition] = await self._marked(topic, partition, begin, end)
        return Progress(
            committed,
            beyond if any(beyond) else None,
            markers if any(markers) else None,
            offsets([owners.get(partition, NO_OWNER) for partition in range(count)]) if owners else None,
        )

    async def _marked(self, topic: str, partition: int, begin: int, end: int) -> int:
        """Asked only for a tail that stands still from one round to the next, and once."""
        key = (topic, partition, begin, end)
        if key not in self._markers:
            if len(self._markers) >= MARKERS_KEPT_MAX:
                self._markers.clear()
            self._markers[key] = None
            return 0
        count = self._markers[key]
        if count is None:
            if self._asked >= MARKERS_A_ROUND_MAX:
                return 0
            self._asked += 1
            count = self._markers[key] = await self.source.markers(topic, partition, begin, end)
        return count


def _chunks(names: list[str], size: int) -> Iterator[list[str]]:
    for begin in range(0, len(names), size):
        yield names[begin : begin + size]
