"""Why the scaler asks for what it asks: the rules in order, with the numbers they looked at.

From the samples topic where there is one, so that any wish can be tried on what really happened;
else from samples taken now.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from penstock.kafka.client import Client
from penstock.model.errors.scale import ScalerClusterUnknown
from penstock.scale.journal import TopicJournal
from penstock.scale.kafka_source import KafkaLagSource
from penstock.scale.records import Sampled
from penstock.scale.sampler import Sampler
from penstock.scale.sampling import HISTORY_SECONDS
from penstock.scale.watches import Watches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.scale.journal import Told
    from penstock.scale.settings import ScalerSettings
    from penstock.scale.values import Verdict
    from penstock.scale.watches import Watch


async def watched_now(
    settings: ScalerSettings,
    scaled_object: str,
    metadata: Mapping[str, str],
    *,
    seconds: float,
    progress: Callable[[str], object],
) -> Watch:
    """The watch for these wishes after reading what is stored, or after sampling for so long."""
    watches = Watches({name: cluster.interval for name, cluster in settings.clusters.items()})
    watch = watches.admit(scaled_object, metadata, time.time())
    name = watch.policy.cluster
    if name not in settings.clusters:
        known = ", ".join(settings.clusters)
        raise ScalerClusterUnknown(scaled_object=scaled_object, cluster=name, known=known)
    if settings.samples_cluster is not None:
        home = settings.clusters[settings.samples_cluster]
        async with Client(home.bootstrap, home.security()) as client:
            journal = TopicJournal(client, settings.samples_topic, history_seconds=HISTORY_SECONDS)

            async def take(told: Told, live: bool) -> None:
                if isinstance(told, Sampled):
                    for _ in watches.take(told):
                        await asyncio.sleep(0)

            await journal.read_back(take)
    if watch.window.rows:
        progress(f"{len(watch.window.history)} samples read from {settings.samples_topic}")
        return watch
    cluster = settings.clusters[name]
    async with Client(cluster.bootstrap, cluster.security()) as client:
        sampler = Sampler(
            name, KafkaLagSource(client), watches, instance="explain", interval=cluster.interval
        )
        until = time.monotonic() + seconds
        slot = 0
        while True:
            slot += 1
            for part in await sampler.round(slot, time.time):
                for _ in watches.take(part):
                    await asyncio.sleep(0)
            left = until - time.monotonic()
            if left <= 0:
                return watch
            progress(f"sampling, {left:.0f} s left")
            await asyncio.sleep(min(cluster.interval, left))


def explanation(watch: Watch, verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain data."""
    memory = verdict.memory
    return {
        "scaledObject": watch.scaled_object,
        "group": watch.policy.group,
        "verdict": verdict.reason,
        "replicas": verdict.replicas,
        "active": verdict.active,
        "value": verdict.value,
        "lag": verdict.lag,
        "lagSeconds": round(verdict.lag_seconds, 1),
        "replicaCapacity": None if memory.capacity is None else round(memory.capacity, 1),
        "rules": [
            {"rule": each.rule, "holds": each.holds, "because": each.because} for each in verdict.findings
        ],
        "partitions": dict(Counter(state.value for state in verdict.states.values())),
        "stuck": [str(key) for key in verdict.stuck],
    }
