"""The agreed names of things in logs, metrics and JSON, and of the internal topics.

A log line or metric that speaks of one of these nouns uses this key and no synonym of it.
"""

from __future__ import annotations

from typing import Final

TENANT: Final = "tenant"
CLUSTER: Final = "cluster"
BROKER: Final = "broker"
NODE: Final = "node"
ZONE: Final = "zone"
CELL: Final = "cell"
TOPIC: Final = "topic"
PARTITION: Final = "partition"
GROUP: Final = "group"
API: Final = "api"
ERROR: Final = "error"

KEYS: Final = (TENANT, CLUSTER, BROKER, NODE, ZONE, CELL, TOPIC, PARTITION, GROUP, API, ERROR)

METRIC_PREFIX: Final = "penstock_"

REGISTRY_TOPIC: Final = "_penstock.registry"
STATE_TOPIC: Final = "_penstock.state"
USAGE_TOPIC: Final = "_penstock.usage"
QUOTA_TOPIC: Final = "_penstock.quota"
HEALTH_TOPIC: Final = "_penstock.health"
ACKS_TOPIC: Final = "_penstock.acks"
AUDIT_TOPIC: Final = "_penstock.audit"
LAG_TOPIC: Final = "_penstock.lag"
PRESSURE_TOPIC: Final = "_penstock.pressure"

COMPACTED_TOPICS: Final = (REGISTRY_TOPIC, STATE_TOPIC)
INTERNAL_TOPICS: Final = (
    *COMPACTED_TOPICS,
    USAGE_TOPIC,
    QUOTA_TOPIC,
    HEALTH_TOPIC,
    ACKS_TOPIC,
    AUDIT_TOPIC,
    LAG_TOPIC,
    PRESSURE_TOPIC,
)

CONTROL_GROUP: Final = "_penstock.control"
COORDINATORS_GROUP: Final = "_penstock.coordinators"
