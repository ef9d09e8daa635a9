"""A node's Kafka properties for tiered storage. Pure.

Brokers get the plugin, its store, and a login for the topic of tier metadata, which they read and write as
clients of the cluster. Controllers need to know that tiering is on, and refuse `retention.bytes` on
tiered topics (KAFKA-20732).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.fleet.credentials.passwords import SCRAM_MECHANISM
from penstock.fleet.spec import Listener, TierStore

if TYPE_CHECKING:
    from penstock.fleet.spec import ClusterSpec, NodeSpec, TierSpec

STORAGE_MANAGER: Final = "penstock.tier.PenstockStorageManager"
TOPIC_POLICY: Final = "penstock.tier.TieredTopicPolicy"
METADATA_TOPIC: Final = "__remote_log_metadata"

# Threads of each broker: together with the plugin's cache they bound its memory (`docs/tier.md`).
COPY_THREADS: Final = 2
READ_THREADS: Final = 4
OTHER_THREADS: Final = 2
METADATA_PARTITIONS: Final = 4
INDEX_CACHE_BYTES: Final = 128 << 20  # on disk

# A broker that stops while it looks for the topic of tier metadata waits for the call, by default a minute.
ADMIN_MS_MAX: Final = 2000

_ADMIN = "rlmm.config.remote.log.metadata.admin."
_CLIENT = "rlmm.config.remote.log.metadata.common.client."
_TOPIC = "rlmm.config.remote.log.metadata.topic."


@dataclass(frozen=True, slots=True)
class TierPlace:
    """What tiering needs to know beyond the spec."""

    kafka_id: str
    directory: Path  # of the file store, unless the spec names one
    class_path: str = ""  # of the S3 store; the file store is on the node's own class path


def tier_properties(
    cluster: ClusterSpec, node: NodeSpec, place: TierPlace, login: str, ca: Path
) -> dict[str, str]:
    """Nothing if tiering is off; `login` is the JAAS line of the node's user."""
    if cluster.tier.store is TierStore.NONE:
        return {}
    properties = {"remote.log.storage.system.enable": "true"}
    if node.is_controller:
        properties |= {
            "create.topic.policy.class.name": TOPIC_POLICY,
            "alter.config.policy.class.name": TOPIC_POLICY,
        }
    if node.is_broker:
        listener = Listener.INTERNAL.upper()
        properties |= _broker(len(cluster.brokers), listener) | _store(cluster.tier, place)
        properties |= _login(cluster, login, ca)
    return properties


def adopted_properties(
    tier: TierSpec, kafka_id: str, brokers: int, directory: str, listener: str
) -> dict[str, dict[str, str]]:
    """What an adopted cluster adds, by role. Its jars are in `directory`; the login of the topic of tier
    metadata, `rlmm.config.remote.log.metadata.common.client.*`, is its own."""
    enabled = {"remote.log.storage.system.enable": "true"}
    policy = {"create.topic.policy.class.name": TOPIC_POLICY, "alter.config.policy.class.name": TOPIC_POLICY}
    store = _store(tier, TierPlace(kafka_id, Path(directory)))
    store["remote.log.storage.manager.class.path"] = f"{directory}/*"
    return {"broker": enabled | _broker(brokers, listener) | store, "controller": enabled | policy}


def _store(tier: TierSpec, place: TierPlace) -> dict[str, str]:
    values = {"store": tier.store.value, "prefix": tier.prefix, "cluster.id": place.kafka_id}
    if tier.store is TierStore.FILE:
        values["file.directory"] = tier.directory or str(place.directory)
    else:
        values |= {
            "s3.bucket": tier.bucket,
            "s3.region": tier.region,
            "s3.endpoint": tier.endpoint,
            "s3.path.style": str(bool(tier.endpoint)).lower(),
            "s3.credentials.file": tier.credentials_file,
        }
    properties = {f"rsm.config.{name}": value for name, value in values.items() if value}
    properties["remote.log.storage.manager.class.name"] = STORAGE_MANAGER
    if tier.store is TierStore.S3:
        properties["remote.log.storage.manager.class.path"] = place.class_path
    return properties


def _broker(brokers: int, listener: str) -> dict[str, str]:
    copies = min(3, brokers)
    return {
        "remote.log.metadata.manager.listener.name": listener,
        f"{_TOPIC}replication.factor": str(copies),
        f"{_TOPIC}min.isr": str(max(1, copies - 1)),
        f"{_TOPIC}num.partitions": str(METADATA_PARTITIONS),
        f"{_ADMIN}default.api.timeout.ms": str(ADMIN_MS_MAX),
        f"{_ADMIN}request.timeout.ms": str(ADMIN_MS_MAX),
        "remote.log.manager.copier.thread.pool.size": str(COPY_THREADS),
        "remote.log.manager.expiration.thread.pool.size": str(OTHER_THREADS),
        "remote.log.manager.follower.thread.pool.size": str(OTHER_THREADS),
        "remote.log.reader.threads": str(READ_THREADS),
        "remote.log.index.file.cache.total.size.bytes": str(INDEX_CACHE_BYTES),
        # KIP-1023: a new replica starts at the first offset that is not in the store yet.
        "follower.fetch.last.tiered.offset.enable": "true",
    }


def _login(cluster: ClusterSpec, login: str, ca: Path) -> dict[str, str]:
    properties = {
        f"{_CLIENT}security.protocol": "SASL_SSL" if cluster.tls else "SASL_PLAINTEXT",
        f"{_CLIENT}sasl.mechanism": SCRAM_MECHANISM,
        f"{_CLIENT}sasl.jaas.config": login,
    }
    if cluster.tls:
        properties |= {
            f"{_CLIENT}ssl.truststore.type": "PEM",
            f"{_CLIENT}ssl.truststore.location": str(ca),
        }
    return properties
