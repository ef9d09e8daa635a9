"""The cluster's nodes and feature levels: describe, change, take away."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.refusals import check
from penstock.kafka.routing import CONTROLLER, Address

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
    fenced: bool  # registered, but not (yet, or any more) serving


@dataclass(frozen=True, slots=True)
class Description:
    cluster_id: str
    controller_id: int
    brokers: Mapping[int, Broker]


@dataclass(frozen=True, slots=True)
class Feature:
    """Levels: what is in force (0: nothing), and what this node could do."""

    level: int
    level_min: int
    level_max: int


class Upgrade(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


async def describe(
    client: Client, *, fenced: bool = False, controllers: bool = False, timeout: float = CALL_SECONDS
) -> Description:
    """The brokers, fenced ones too if asked; or, asked of a controller, the controllers."""
    endpoints = CONTROLLER_ENDPOINTS if controllers else BROKER_ENDPOINTS

    def body(version: int) -> dict[str, Any]:
        wanted: dict[str, Any] = {"EndpointType": endpoints} if version >= 1 else {}
        return wanted | ({"IncludeFencedBrokers": True} if fenced and version >= 2 else {})

    answer = await client.call("DescribeCluster", body, timeout=timeout)
    check("DescribeCluster", answer["ErrorCode"], answer["ErrorMessage"])
    brokers = {
        b["BrokerId"]: Broker(
            b["BrokerId"], Address(b["Host"], b["Port"]), b["Rack"], b.get("IsFenced", False)
        )
        for b in answer["Brokers"]
    }
    return Description(answer["ClusterId"], answer["ControllerId"], brokers)


async def unregister(client: Client, broker: int, *, timeout: float = CALL_SECONDS) -> None:
    """Forget a broker that is down for good. It must hold no replicas: Kafka does not check."""
    answer = await client.call("UnregisterBroker", {"BrokerId": broker}, to=CONTROLLER, timeout=timeout)
    check("UnregisterBroker", answer["ErrorCode"], answer["ErrorMessage"], f"broker {broker}")


async def features(client: Client) -> dict[str, Feature]:
    """As the node we are connected to tells them."""
    told = (await client.connection()).api_versions
    supported = {f["Name"]: (f["MinVersion"], f["MaxVersion"]) for f in told.get("SupportedFeatures", ())}
    levels = {f["Name"]: f["MaxVersionLevel"] for f in told.get("FinalizedFeatures", ())}
    return {name: Feature(levels.get(name, 0), *supported.get(name, (0, 0))) for name in supported | levels}


async def update_features(
    client: Client,
    levels: Mapping[str, int],
    *,
    upgrade: Upgrade = Upgrade.UPGRADE,
    validate_only: bool = False,
    timeout: float = CALL_SECONDS,
) -> None:
    """Set feature levels, all or none; 0 takes a feature away."""
    updates = [
        {"Feature": name, "MaxVersionLevel": level, "UpgradeType": upgrade} for name, level in levels.items()
    ]
    body = {"FeatureUpdates": updates, "ValidateOnly": validate_only, "TimeoutMs": int(timeout * 1000)}
    answer = await client.call("UpdateFeatures", body, to=CONTROLLER, timeout=timeout)
    for r in answer.get("Results", ()):
        check("UpdateFeatures", r["ErrorCode"], r["ErrorMessage"], f"feature {r['Feature']!r}")
    check("UpdateFeatures", answer["ErrorCode"], answer["ErrorMessage"], ", ".join(levels))
