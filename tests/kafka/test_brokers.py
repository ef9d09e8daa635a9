"""Nodes and feature levels of a real cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from penstock.kafka.admin import brokers
from penstock.kafka.routing import CONTROLLER
from penstock.model.errors.wire import KafkaMissing, KafkaRefused
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from penstock.kafka.client import Client
    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka


async def test_brokers_and_controllers_are_described_by_their_listeners(
    fleet: Fleet, client: Client, controllers: Client
) -> None:
    described = await brokers.describe(client)
    quorum = await brokers.describe(controllers, controllers=True)

    assert (described.cluster_id, quorum.cluster_id) == (fleet.kafka_id, fleet.kafka_id)
    assert {b.id: b.rack for b in described.brokers.values()} == {1: "a", 2: "b", 3: "c"}
    assert not any(b.fenced for b in described.brokers.values())
    assert list(quorum.brokers) == [1001]
    assert quorum.controller_id == 1001


async def test_a_dead_broker_is_unregistered(client: Client, controllers: Client) -> None:
    await registered(controllers, 77)

    async def fenced() -> bool:
        registered_brokers = (await brokers.describe(client, fenced=True)).brokers
        return 77 in registered_brokers and registered_brokers[77].fenced

    assert await eventually(fenced)
    assert 77 not in (await brokers.describe(client)).brokers

    await brokers.unregister(client, 77)

    async def is_unregistered() -> bool:
        return 77 not in (await brokers.describe(client, fenced=True)).brokers

    assert await eventually(is_unregistered)
    with pytest.raises(KafkaMissing, match="BROKER_ID_NOT_REGISTERED"):
        await brokers.unregister(client, 77)


async def registered(controllers: Client, broker_id: int) -> None:
    """Register a broker that never serves, like one that crashed."""
    cluster = await controllers.cluster()
    levels = await brokers.features(controllers)
    body = {
        "BrokerId": broker_id,
        "ClusterId": cluster.id,
        "IncarnationId": uuid4(),
        "Listeners": [
            {"Name": name, "Host": "127.0.0.1", "Port": 9, "SecurityProtocol": 3}
            for name in ("INTERNAL", "GATEWAY")
        ],
        "Features": [
            {"Name": name, "MinSupportedVersion": f.level_min, "MaxSupportedVersion": f.level_max}
            for name, f in levels.items()
        ],
        "LogDirs": [uuid4()],
        "PreviousBrokerEpoch": -1,
    }
    response = await controllers.call("BrokerRegistration", body, to=CONTROLLER)
    assert response["ErrorCode"] == 0


async def test_feature_levels_are_reported_and_checked_before_they_change(client: Client) -> None:
    features = await brokers.features(client)

    await brokers.update_features(
        client, {"transaction.version": features["transaction.version"].level_max}, validate_only=True
    )
    with pytest.raises(KafkaRefused, match=r"metadata\.version"):
        await brokers.update_features(client, {"metadata.version": 999}, validate_only=True)

    assert features["metadata.version"].level > 0
    assert features["metadata.version"].level_max >= features["metadata.version"].level
