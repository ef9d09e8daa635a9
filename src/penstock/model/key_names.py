"""Names of log keys, metrics and internal topics.

A log line or metric about one of these nouns uses this key and no synonym.
"""

from __future__ import annotations

from typing import Final

TENANT: Final = "tenant"
CLUSTER: Final = "cluster"
BROKER: Final = "broker"
CELL: Final = "cell"
TOPIC: Final = "topic"
PARTITION: Final = "partition"
GROUP: Final = "group"
API: Final = "api"
ERROR: Final = "error"

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
LOAD_TOPIC: Final = "_penstock.load"
LOAD_HOURS_TOPIC: Final = "_penstock.load-hours"
GATEWAYS_TOPIC: Final = "_penstock.gateways"
PLANS_TOPIC: Final = "_penstock.plans"
LINKS_TOPIC: Final = "_penstock.links"
DURABILITY_TOPIC: Final = "_penstock.durability"
FINDINGS_TOPIC: Final = "_penstock.findings"
AUDIT_STATE_TOPIC: Final = "_penstock.audit-state"
RESTORES_TOPIC: Final = "_penstock.restores"

CONTROL_GROUP: Final = "_penstock.control"
COORDINATORS_GROUP: Final = "_penstock.coordinators"
AUDITORS_GROUP: Final = "_penstock.auditors"
