"""Explain a verdict rule by rule, for `penstock scale explain`.

It uses the samples topic if there is one, so that any metadata can be tried on recorded samples;
otherwise it samples the cluster for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from penstock.kafka.client import Client
from penstock.model.errors.scale import ScalerClusterUnknown
from penstock.scale.decision.values import GroupState, Verdict
from penstock.scale.sampler.cluster import ClusterSampler
from penstock.scale.sampler.kafka_source import KafkaLagSource
from penstock.scale.sampler.process import HISTORY_SECONDS
from penstock.scale.sampler.records import Sampled
from penstock.scale.sampler.samples_topic import SamplesTopic
from penstock.scale.watched_groups import WatchedGroups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.scale.decision.values import Verdict
    from penstock.scale.sampler.samples_topic import Event
    from penstock.scale.settings import ScalerSettings
    from penstock.scale.watched_groups import Watch


async def sampled_watch(
    settings: ScalerSettings,
    scaled_object: str,
    metadata: Mapping[str, str],
    *,
    seconds: float,
    progress: Callable[[str], object],
) -> Watch:
    """The watch for this metadata, filled from the samples topic or by sampling for `seconds`."""
    watches = WatchedGroups({name: cluster.interval for name, cluster in settings.clusters.items()})
    watch = watches.admit(scaled_object, metadata, time.monotonic())
    name = watch.policy.cluster
    if name not in settings.clusters:
        known = ", ".join(settings.clusters)
        raise ScalerClusterUnknown(scaled_object=scaled_object, cluster=name, known=known)
    if settings.samples_cluster is not None:
        home = settings.clusters[settings.samples_cluster]
        async with Client(home.bootstrap, home.security()) as client:
            journal = SamplesTopic(client, settings.samples_topic, history_seconds=HISTORY_SECONDS)

            async def take(event: Event, live: bool) -> None:
                if isinstance(event, Sampled):
                    watches.take(event, event.at)  # evaluates every sample: the metadata may be new
                    await asyncio.sleep(0)

            await journal.read_back(take)
    if watch.window.at:
        progress(f"{len(watch.window.history)} samples read from {settings.samples_topic}")
        return watch
    cluster = settings.clusters[name]
    async with Client(cluster.bootstrap, cluster.security()) as client:
        sampler = ClusterSampler(
            name, KafkaLagSource(client), watches, instance="explain", interval=cluster.interval
        )
        until = time.monotonic() + seconds
        number = 0
        while True:
            number += 1
            for part in await sampler.round(number, time.monotonic):
                watches.take(part, part.at)
                await asyncio.sleep(0)
            left = until - time.monotonic()
            if left <= 0 or watch.missing is not None or watch.window.state == GroupState.DEAD:
                return watch  # a group or topic that does not exist appears by itself, not by sampling
            progress(f"sampling, {left:.0f} s left")
            await asyncio.sleep(min(cluster.interval, left))


def explanation(watch: Watch, verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain data."""
    capacity, members = verdict.memory.capacity, watch.policy.consumers_per_replica
    return {
        "scaledObject": watch.scaled_object,
        "group": watch.policy.group,
        "verdict": verdict.reason,
        "replicas": verdict.replicas,
        "active": verdict.active,
        "value": verdict.value,
        "lag": verdict.lag,
        "lagSeconds": round(verdict.lag_seconds, 1),
        "replicaCapacity": None if capacity is None else round(capacity * members, 1),
        "rules": [each._asdict() for each in verdict.rule_results],
        "partitions": dict(Counter(state.value for state in verdict.states.values())),
        "stuck": [str(key) for key in verdict.stuck],
    }
