"""Facts from the metadata log."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from penstock.audit.metadata_history import MetadataHistory, static_defaults
from penstock.audit.topic_ids import id_text
from penstock.model.durability import (
    Broker,
    Deleted,
    Intent,
    Placement,
    Policy,
    Removed,
    Topic,
    named_subject,
    partition_subject,
)
from penstock.wire.logs import Entry
from tests.audit.history import event

ID = UUID(int=7)
SUBJECT = partition_subject(id_text(ID), 0)


def entry(name: str, **values: Any) -> Entry:
    return Entry(name, 0, values)


def created() -> list[Entry]:
    return [
        entry("TopicRecord", Name="orders", TopicId=ID),
        entry("ConfigRecord", ResourceType=2, ResourceName="orders", Name="retention.ms", Value="1000"),
        entry(
            "PartitionRecord", PartitionId=0, TopicId=ID,
            Replicas=[1, 2], Isr=[1, 2], Leader=1, LeaderEpoch=0,
            PartitionEpoch=0, LeaderRecoveryState=0, EligibleLeaderReplicas=None,
        ),
    ]  # fmt: skip


def change(**values: Any) -> Entry:
    return entry("PartitionChangeRecord", TopicId=ID, PartitionId=0, **values)


def config(name: str, value: str | None, topic: str = "orders", kind: int = 2) -> Entry:
    return entry("ConfigRecord", ResourceType=kind, ResourceName=topic, Name=name, Value=value)


def test_a_new_topic_has_a_policy_and_a_placement() -> None:
    observations = list(MetadataHistory({"min.insync.replicas": "2"}).apply(created()))

    assert observations == [
        ("topic/orders", Topic(id_text(ID))),
        (SUBJECT, Policy(retention_ms=1000, min_isr=2)),
        (SUBJECT, Placement("orders", (1, 2), (1, 2), 1, 0, 0)),
    ]


def test_each_change_raises_the_partition_epoch_and_a_leader_the_leader_epoch() -> None:
    history = MetadataHistory()
    list(history.apply(created()))

    shrunk, elected = (
        facts for _, facts in history.apply([change(Isr=[2], EligibleLeaderReplicas=[1]), change(Leader=2)])
    )

    assert shrunk == Placement("orders", (1, 2), (2,), 1, 0, 1, (1,))
    assert elected == Placement("orders", (1, 2), (2,), 2, 1, 2, (1,))


def test_an_unclean_election_is_recovering() -> None:
    history = MetadataHistory()
    list(history.apply(created()))

    ((_, facts),) = history.apply([change(Isr=[2], Leader=2, LeaderRecoveryState=1)])

    assert isinstance(facts, Placement)
    assert facts.recovering


def test_configurations_of_topics_come_before_defaults_of_the_cluster_and_of_brokers() -> None:
    history = MetadataHistory({"log.retention.ms": "500"})
    list(history.apply(created()))

    changed = [
        facts.retention_ms
        for _, facts in history.apply(
            [
                config("retention.ms", None),
                config("log.retention.ms", "700", topic="", kind=4),
                config("retention.ms", "900"),
                config("compression.type", "zstd"),
            ]
        )
        if isinstance(facts, Policy)
    ]

    assert changed == [500, 700, 900]


def test_a_transaction_takes_effect_when_it_ends() -> None:
    history = MetadataHistory()
    begun = list(history.apply([entry("BeginTransactionRecord", Name="x"), *created()]))

    ended = list(history.apply([entry("EndTransactionRecord")]))

    assert begun == []
    assert len(ended) == 3


def test_an_aborted_transaction_has_no_effect() -> None:
    history = MetadataHistory()
    entries = [
        entry("BeginTransactionRecord", Name="x"),
        *created(),
        entry("AbortTransactionRecord", Reason=""),
    ]

    assert list(history.apply(entries)) == []


def test_a_deleted_topic_ends_the_history_of_its_partitions() -> None:
    history = MetadataHistory()
    list(history.apply(created()))

    assert list(history.apply([entry("RemoveTopicRecord", TopicId=ID)])) == [
        (SUBJECT, Removed()),
        ("topic/orders", Topic("")),
    ]
    assert list(history.image()) == []


def test_the_image_is_marked_as_a_snapshot() -> None:
    history = MetadataHistory()
    list(history.apply([*created(), change(Leader=2)]))

    placements = [facts for _, facts in history.image() if isinstance(facts, Placement)]

    assert [(each.leader, each.snapshot) for each in placements] == [(2, True)]


def test_registrations_are_followed() -> None:
    history = MetadataHistory()

    observations = list(history.apply([entry("RegisterBrokerRecord", BrokerId=3, BrokerEpoch=9)]))
    list(history.apply([entry("UnregisterBrokerRecord", BrokerId=3, BrokerEpoch=9)]))

    assert observations == [("broker/3", Broker(epoch=9))]
    assert history.brokers == {}


def test_retention_in_hours_counts_if_no_shorter_unit_is_set() -> None:
    assert static_defaults({"log.retention.hours": "2"})["log.retention.ms"] == "7200000"
    assert static_defaults({"log.retention.hours": "2", "log.retention.ms": "5"})["log.retention.ms"] == "5"
    assert static_defaults({"log.retention.hours": "-1"})["log.retention.ms"] == "-1"


def test_what_a_gateway_reports_by_name_is_resolved_to_subjects() -> None:
    history = MetadataHistory()
    list(history.apply(created()))
    deleted = event(0, 5, Deleted(9, "sa-1"), subject=named_subject("orders", 0))
    intended = event(1, 5, Intent("config", "sa-1"), subject=named_subject("orders"))
    elsewhere = event(2, 5, Deleted(9, "sa-1"), subject=named_subject("orders", 1))

    resolved = [each for one in (deleted, intended, elsewhere) for each in history.resolved(one, 7)]

    intent = Intent("config", "sa-1", since_ms=5, until_ms=60_005)
    assert resolved == [(SUBJECT, Deleted(9, "sa-1")), ("topic/orders", intent), (SUBJECT, intent)]
