"""Sample all watched groups of one cluster in one round.

KEDA's calls never reach a broker, so their number does not affect the load on Kafka. A round reads
the groups in batches and then the logs of all their topics once. It reads positions before end
offsets, so a race can make lag a moment too high but never negative.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.model.errors import PenstockError, UpstreamError
from penstock.model.errors.wire import ApiUnsupported
from penstock.scale.decision.values import NO_COMMIT, NO_OWNER, GroupState, Log, Progress, Sample, offsets
from penstock.scale.sampler.records import Sampled
from penstock.scale.sampler.source import GroupSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from penstock.scale.sampler.source import LagSource
    from penstock.scale.watched_groups import WatchedGroups

_log = logging.getLogger("penstock.scale")

GROUPS_PER_RECORD: Final = 25
MARKER_FETCHES_PER_ROUND_MAX: Final = 50  # to distinguish markers from records
MARKER_SPAN_MAX: Final = 16  # offsets; more than this cannot all be markers
MARKERS_CACHED_MAX: Final = 100_000
# A group that does not exist: it never joined, or its offsets expired. Records may wait for it.
GONE: Final = GroupSnapshot(GroupState.DEAD, 0, 0, {})


class ClusterSampler:
    """Samples one cluster."""

    def __init__(
        self, cluster: str, source: LagSource, watches: WatchedGroups, *, instance: str, interval: float
    ) -> None:
        self.cluster = cluster
        self.source = source
        self.interval = interval
        self._watches = watches
        self._instance = instance
        # By (topic, partition, begin, end); None: seen in one round, not fetched yet.
        self._markers: dict[tuple[str, int, int, int], int | None] = {}
        self._marker_fetches = 0
        self._failing: dict[str, str] = {}  # by group: why the last round has no sample of it

    def groups(self, *, only_new: bool = False) -> dict[str, set[str]]:
        """The groups to sample, with the topics of each; an empty name stands for all topics."""
        topics_by_group: dict[str, set[str]] = {}
        for watch in self._watches:
            if watch.policy.cluster == self.cluster and not (only_new and watch.sampled_at is not None):
                topics_by_group.setdefault(watch.policy.group, set()).update(watch.policy.topics or ("",))
        return topics_by_group

    async def round(
        self, number: int, clock: Callable[[], float], *, only_new: bool = False
    ) -> list[Sampled]:
        """Samples everything watched. Raises if the brokers are unreachable."""
        self._marker_fetches = 0
        topics_by_group = self.groups(only_new=only_new)
        at = clock()
        snapshots = await self._snapshots(topics_by_group)
        for group, names in topics_by_group.items():
            snapshot = snapshots.get(group, GONE)
            if "" in names and not isinstance(snapshot, PenstockError):
                names.update(
                    snapshot.topics if snapshot.members else snapshot.topics | self._read_before(group)
                )
        topics = {topic for names in topics_by_group.values() for topic in names if topic}
        logs = await self.source.logs(topics) if topics else {}
        # Groups of one topic go into the same record, which has the topic's log once.
        ordered = sorted(topics_by_group, key=lambda name: (min(topics_by_group[name]), name))
        chunks = (ordered[i : i + GROUPS_PER_RECORD] for i in range(0, len(ordered), GROUPS_PER_RECORD))
        records = [
            await self._record(number, at, names, topics_by_group, snapshots, logs, extra=only_new)
            for names in chunks
        ]
        if not only_new:
            self._log_failures({group: why for record in records for group, why in record.failures.items()})
        return records

    def _read_before(self, group: str) -> set[str]:
        """The topics of the last sample: without members, committed offsets expire, but records may wait."""
        watches = self._watches.of_group(self.cluster, group)
        return {topic for watch in watches if not watch.policy.topics for topic, _ in watch.window.layout}

    def _log_failures(self, failing: dict[str, str]) -> None:
        """Logs groups that cannot be sampled any more, or can again: once, not in every round."""
        for group in failing.keys() - self._failing.keys():
            _log.warning("cluster %s: group %s cannot be sampled: %s", self.cluster, group, failing[group])
        for group in self._failing.keys() - failing.keys():
            _log.info("cluster %s: group %s is sampled again", self.cluster, group)
        self._failing = failing

    async def _snapshots(self, groups: Collection[str]) -> dict[str, GroupSnapshot | PenstockError]:
        """The groups that exist, each with its own failure. Raises if no broker can be reached.

        A group that triggers of both types name is sampled as what it is: one wrong trigger must not
        hide it from the others.
        """
        kinds = {
            group: {watch.policy.group_type for watch in self._watches.of_group(self.cluster, group)}
            for group in groups
        }
        snapshots: dict[str, GroupSnapshot | PenstockError] = {}
        plain = [group for group in groups if kinds[group] != {"share"}]
        if plain:
            snapshots |= await self.source.groups(plain, share=False)
        shared = [group for group in groups if "share" in kinds[group] and group not in snapshots]
        if shared:
            snapshots |= await self.source.groups(shared, share=True)
        failures = [each for each in snapshots.values() if isinstance(each, UpstreamError)]
        failures = [each for each in failures if not isinstance(each, ApiUnsupported)]
        if failures and len(failures) == len(groups):
            raise failures[0]
        return snapshots

    async def _record(
        self,
        number: int,
        at: float,
        names: Collection[str],
        topics_by_group: Mapping[str, set[str]],
        snapshots: Mapping[str, GroupSnapshot | PenstockError],
        logs: Mapping[str, Log | PenstockError],
        *,
        extra: bool,
    ) -> Sampled:
        samples: dict[str, Sample] = {}
        missing: dict[str, str] = {}
        failures: dict[str, str] = {}
        memories = {}
        for group in names:
            topics = sorted(topic for topic in topics_by_group[group] if topic)
            snapshot = snapshots.get(group, GONE)
            if isinstance(snapshot, PenstockError):
                failures[group] = str(snapshot)  # no sample is better than a wrong one
                continue
            if not topics and snapshot is GONE:
                missing[group] = "group"
                continue
            if len(topics_by_group[group]) == 1 and topics and topics[0] not in logs:
                missing[group] = topics[0]
                continue
            failure = next(
                (log for topic in topics if isinstance(log := logs.get(topic), PenstockError)), None
            )
            if failure is not None:
                failures[group] = str(failure)
                continue
            samples[group] = await self._sample(at, snapshot, topics, logs)
            for watch in self._watches.of_group(self.cluster, group):
                if (memory := watch.remembered()).requested is not None:
                    memories[watch.key] = memory
        return Sampled(self.cluster, number, at, self._instance, samples, missing, failures, memories, extra)

    async def _sample(
        self,
        at: float,
        snapshot: GroupSnapshot,
        topics: Collection[str],
        logs: Mapping[str, Log | PenstockError],
    ) -> Sample:
        known = {topic: log for topic in topics if isinstance(log := logs.get(topic), Log)}
        progress = {topic: await self._progress(topic, log, snapshot) for topic, log in known.items()}
        return Sample(at, snapshot.state, snapshot.members, known, progress, snapshot.generation)

    async def _progress(self, topic: str, log: Log, snapshot: GroupSnapshot) -> Progress:
        positions = snapshot.positions.get(topic, {})
        owners = snapshot.owners.get(topic, {})
        count = len(log.end)
        committed = offsets([NO_COMMIT] * count)
        completed_beyond = offsets([0] * count)
        markers = offsets([0] * count)
        for partition, position in positions.items():
            if partition >= count:
                continue
            committed[partition] = position.offset
            begin, end = max(position.offset, log.start[partition]), log.end[partition]
            if end <= begin:
                continue  # no lag, so no markers to count
            if position.lag is not None:
                completed_beyond[partition] = max(0, end - begin - position.lag)
            elif position.completed_beyond:
                completed_beyond[partition] = min(position.completed_beyond, end - begin)
            lag = end - begin - completed_beyond[partition]
            if 0 < lag <= MARKER_SPAN_MAX and position.offset != NO_COMMIT:
                markers[partition] = await self._marker_count(topic, partition, begin, end)
        return Progress(
            committed,
            completed_beyond if any(completed_beyond) else None,
            markers if any(markers) else None,
            offsets([owners.get(partition, NO_OWNER) for partition in range(count)]) if owners else None,
        )

    async def _marker_count(self, topic: str, partition: int, begin: int, end: int) -> int:
        """Markers between the position and the end; fetched once, if both are unchanged since last round."""
        key = (topic, partition, begin, end)
        if key not in self._markers:
            if len(self._markers) >= MARKERS_CACHED_MAX:
                self._markers.clear()
            self._markers[key] = None
            return 0
        count = self._markers[key]
        if count is None:
            if self._marker_fetches >= MARKER_FETCHES_PER_ROUND_MAX:
                return 0
            self._marker_fetches += 1
            try:
                count = self._markers[key] = await self.source.markers(topic, partition, begin, end)
            except PenstockError:
                return 0  # its leader is unavailable; the next round tries again
        return count
