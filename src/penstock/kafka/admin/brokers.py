"""Describe and unregister the nodes of a cluster; read and change feature levels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.broker_errors import check
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.routing import CONTROLLER, Address
from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kafka.client import Client

BROKER_ENDPOINTS: Final = 1
CONTROLLER_ENDPOINTS: Final = 2


@dataclass(frozen=True, slots=True)
class Broker:
    id: int
    address: Address
    rack: str | None
    fenced: bool  # registered, but not serving


@dataclass(frozen=True, slots=True)
class Description:
    cluster_id: str
    controller_id: int
    brokers: Mapping[int, Broker]


@dataclass(frozen=True, slots=True)
class Feature:
    """The finalized level (0: disabled), and the levels this node supports."""

    level: int
    level_min: int
    level_max: int


class Upgrade(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


async def describe(
    client: Client,
    *,
    fenced: bool = False,
    controllers: bool = False,
    shadows: bool = False,
    timeout: float = CALL_SECONDS,
) -> Description:
    """The brokers, including fenced ones if `fenced`; or the controllers, on a controller's client.

    Shadow brokers of links are left out unless `shadows`: they store nothing."""
    endpoints = CONTROLLER_ENDPOINTS if controllers else BROKER_ENDPOINTS

    def body(version: int) -> dict[str, Any]:
        values: dict[str, Any] = {"EndpointType": endpoints} if version >= 1 else {}
        return values | ({"IncludeFencedBrokers": True} if fenced and version >= 2 else {})

    response = await client.call("DescribeCluster", body, timeout=timeout)
    check("DescribeCluster", response["ErrorCode"], response["ErrorMessage"])
    brokers = {
        b["BrokerId"]: Broker(
            b["BrokerId"], Address(b["Host"], b["Port"]), b["Rack"], b.get("IsFenced", False)
        )
        for b in response["Brokers"]
        if shadows or not is_shadow(b["BrokerId"])
    }
    return Description(response["ClusterId"], response["ControllerId"], brokers)


async def unregister(client: Client, broker: int, *, timeout: float = CALL_SECONDS) -> None:
    """Unregister a broker that is down for good. It must hold no replicas: Kafka does not check."""
    response = await client.call("UnregisterBroker", {"BrokerId": broker}, to=CONTROLLER, timeout=timeout)
    check("UnregisterBroker", response["ErrorCode"], response["ErrorMessage"], f"broker {broker}")


async def features(client: Client) -> dict[str, Feature]:
    """Feature levels, as the connected node reports them."""
    versions = (await client.connection()).api_versions
    supported = {f["Name"]: (f["MinVersion"], f["MaxVersion"]) for f in versions.get("SupportedFeatures", ())}
    levels = {f["Name"]: f["MaxVersionLevel"] for f in versions.get("FinalizedFeatures", ())}
    return {name: Feature(levels.get(name, 0), *supported.get(name, (0, 0))) for name in supported | levels}


async def update_features(
    client: Client,
    levels: Mapping[str, int],
    *,
    upgrade: Upgrade = Upgrade.UPGRADE,
    validate_only: bool = False,
    timeout: float = CALL_SECONDS,
) -> None:
    """Set feature levels, all or none; 0 disables a feature."""
    updates = [
        {"Feature": name, "MaxVersionLevel": level, "UpgradeType": upgrade} for name, level in levels.items()
    ]
    body = {"FeatureUpdates": updates, "ValidateOnly": validate_only, "TimeoutMs": int(timeout * 1000)}
    response = await client.call("UpdateFeatures", body, to=CONTROLLER, timeout=timeout)
    for r in response.get("Results", ()):
        check("UpdateFeatures", r["ErrorCode"], r["ErrorMessage"], f"feature {r['Feature']!r}")
    check("UpdateFeatures", response["ErrorCode"], response["ErrorMessage"], ", ".join(levels))
