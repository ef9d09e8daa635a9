"""Which configs, ACLs, quotas and share-group offsets follow the source."""

from __future__ import annotations

from penstock.kafka.admin.acls import Acl, Operation, Pattern, Permission, ResourceType
from penstock.kafka.admin.configs import Entry, Source
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.quotas import PRODUCER_BYTES, entity
from penstock.link.group_sync import MirrorRange, share_starts
from penstock.link.metadata_service import _acl_of, _acl_row, _quota_key, _quota_row
from penstock.link.metadata_sync import acl_changes, config_changes, follows, quota_changes
from penstock.link.mirror_topics import closing_acl

TOPICS = ["orders", "payments.eu"]
READ = Acl("User:app", Operation.READ, ResourceType.TOPIC, "orders")
ADA, BOB = (entity(user="ada"), PRODUCER_BYTES), (entity(user="bob"), PRODUCER_BYTES)


def entry(name: str, value: str, origin: Source = Source.TOPIC) -> Entry:
    return Entry(name, value, origin, read_only=False, sensitive=False)


def test_changed_configs_follow_and_removed_ones_are_removed() -> None:
    there = {one.name: one for one in (entry("retention.ms", "5"), entry("cleanup.policy", "delete"))}
    here = {
        one.name: one
        for one in (entry("retention.ms", "9"), entry("cleanup.policy", "delete"), entry("segment.ms", "3"))
    }
    assert config_changes(there, here) == {"retention.ms": "5", "segment.ms": None}
    assert config_changes(there, there) == {}


def test_acls_of_mirrored_topics_and_of_groups_follow() -> None:
    prefixed = Acl("User:app", Operation.READ, ResourceType.TOPIC, "payments.", Pattern.PREFIXED)
    group = Acl("User:app", Operation.READ, ResourceType.GROUP, "billing")
    deny = Acl("User:*", Operation.READ, ResourceType.TOPIC, "orders", permission=Permission.DENY)
    assert all(follows(acl, TOPICS) for acl in (READ, prefixed, group, deny))
    others = (
        Acl("User:app", Operation.READ, ResourceType.TOPIC, "others"),
        Acl("User:app", Operation.READ, ResourceType.TOPIC, "*"),
        Acl("User:app", Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster"),
        Acl("User:_penstock.platform", Operation.READ, ResourceType.TOPIC, "orders"),
        Acl("User:app", Operation.READ, ResourceType.TOPIC, "__consumer_offsets"),
        closing_acl("orders"),
    )
    assert not any(follows(acl, TOPICS) for acl in others)


def test_an_acl_is_removed_only_if_the_link_has_copied_it() -> None:
    mine = Acl("User:mine", Operation.READ, ResourceType.TOPIC, "orders")
    first = acl_changes([READ, mine], [mine], [], TOPICS)
    assert first.create == first.copied == {READ}
    later = acl_changes([], [READ, mine], first.copied, TOPICS)
    assert later.delete == {READ}
    assert not later.copied
    assert acl_changes([READ], [READ], [READ], TOPICS).copied == {READ}


def test_the_destinations_quotas_stay_and_copied_ones_follow() -> None:
    first = quota_changes({ADA: 5.0, BOB: 7.0}, {BOB: 1.0}, [])
    assert first.values == {ADA: 5.0}
    assert first.copied == {ADA}
    assert quota_changes({ADA: 6.0}, {ADA: 5.0}, [ADA]).values == {ADA: 6.0}
    gone = quota_changes({}, {ADA: 6.0, BOB: 1.0}, [ADA])
    assert gone.values == {ADA: None}
    assert not gone.copied
    platform = (entity(user="_penstock.platform"), PRODUCER_BYTES)
    assert quota_changes({platform: 1.0}, {}, []).values == {}


def test_what_was_copied_is_stored_as_it_is() -> None:
    assert _acl_of(_acl_row(READ)) == READ
    for key in (ADA, (entity(user=None, client_id="c"), "request_percentage")):
        assert _quota_key(_quota_row(key)) == key


def test_a_share_group_starts_where_it_started_on_the_source() -> None:
    place, other = TopicPartition("orders", 0), TopicPartition("orders", 1)
    ranges = {place: MirrorRange(0, 50), other: MirrorRange(0, 50)}
    starts = share_starts({place: 20, other: -1}, {place: 3}, ranges, state_here="Empty")
    assert (starts.offsets, starts.clamped) == ({place: 20}, 0)
    assert share_starts({place: 90}, {}, ranges, state_here="").offsets == {place: 50}
    assert share_starts({place: 20}, {}, ranges, state_here="Stable").offsets == {}
