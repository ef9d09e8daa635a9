"""The image of the metadata log: what each record changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from penstock.fleet.readiness import security_of
from penstock.fleet.spec import Listener
from penstock.kafka.client import Client
from penstock.kafka.metadata_image import MetadataFollower, MetadataImage, PartitionState
from penstock.wire.logs import Entry

if TYPE_CHECKING:
    from tests.harness.fleet import Fleet

TOPIC = UUID(int=7)


def image(*records: tuple[str, dict[str, Any]]) -> MetadataImage:
    made = MetadataImage()
    for name, values in records:
        made.apply(Entry(name, 0, values))
    return made


REGISTERED = (
    "RegisterBrokerRecord",
    {
        "BrokerId": 1,
        "BrokerEpoch": 5,
        "EndPoints": [{"Name": "INTERNAL", "Host": "b", "Port": 9}],
        "IncarnationId": UUID(int=1),
        "Rack": "a",
        "Fenced": True,
        "Features": [{"Name": "metadata.version", "MinSupportedVersion": 7, "MaxSupportedVersion": 29}],
    },
)
CREATED = ("TopicRecord", {"TopicId": TOPIC, "Name": "orders"})
PARTITION = (
    "PartitionRecord",
    {
        "TopicId": TOPIC,
        "PartitionId": 0,
        "Replicas": [1, 2, 3],
        "Isr": [1, 2, 3],
        "Leader": 1,
        "LeaderEpoch": 0,
        "PartitionEpoch": 0,
        "AddingReplicas": [],
        "RemovingReplicas": [],
    },
)


def change(**values: object) -> tuple[str, dict[str, Any]]:
    return "PartitionChangeRecord", {"TopicId": TOPIC, "PartitionId": 0, **values}


def test_a_broker_is_fenced_until_it_is_unfenced() -> None:
    unfenced = ("BrokerRegistrationChangeRecord", {"BrokerId": 1, "Fenced": -1})
    assert image(REGISTERED).brokers[1].fenced
    assert not image(REGISTERED, unfenced).brokers[1].fenced
    assert not image(REGISTERED, ("UnfenceBrokerRecord", {"Id": 1})).brokers[1].fenced
    assert image(REGISTERED).brokers[1].features == {"metadata.version": (7, 29)}


def test_an_exclusion_ends_with_the_next_registration() -> None:
    excluded = ("BrokerRegistrationChangeRecord", {"BrokerId": 1, "InControlledShutdown": 1})
    assert image(REGISTERED, excluded).brokers[1].shutting_down
    assert not image(REGISTERED, excluded, REGISTERED).brokers[1].shutting_down
    assert not image(REGISTERED, ("UnregisterBrokerRecord", {"BrokerId": 1})).brokers


def test_a_change_keeps_what_it_does_not_name() -> None:
    made = image(CREATED, PARTITION, change(Isr=[1, 2]), change(Leader=2), change(AddingReplicas=[4]))
    expected = PartitionState((1, 2, 3), (1, 2), 2, 1, 3, adding=frozenset((4,)))
    assert made.by_name == {("orders", 0): expected}
    assert image(CREATED, PARTITION, change(Leader=-1)).by_name["orders", 0].leader == -1


def test_a_removed_topic_takes_its_partitions_along() -> None:
    made = image(CREATED, PARTITION, ("RemoveTopicRecord", {"TopicId": TOPIC}))
    assert not made.partitions
    assert not made.by_name


@pytest.mark.kafka
async def test_the_image_of_a_running_cluster(fleet: Fleet) -> None:
    spec = fleet.local.clusters[0].cluster.spec
    controller = next(node for node in fleet.nodes if not node.spec.is_broker)
    async with Client(
        spec.bootstrap(Listener.CONTROLLER), security_of(controller), controllers=True
    ) as client:
        follower = MetadataFollower(client)
        made = await follower.catch_up()
        again = await follower.catch_up()

    assert {node.spec.id for node in fleet.brokers} <= made.brokers.keys()
    assert made.controllers.keys() == {node.id for node in spec.controllers}
    assert made.features["metadata.version"] > 0
    assert {broker.rack for broker in made.brokers.values()} == {*spec.zones}
    assert again is made
