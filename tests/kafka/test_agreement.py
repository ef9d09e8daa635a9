"""kafka-python's admin client and ours agree on every call that both have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kafka.admin import (
    ACL,
    AbortTransactionSpec,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ConfigResourceType,
    OffsetSpec,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka.structs import OffsetAndMetadata

from kafka import KafkaAdminClient
from kafka import TopicPartition as Theirs
from penstock.kafka import quorum
from penstock.kafka.admin import (
    acls,
    brokers,
    configs,
    group_offsets,
    groups,
    log_dirs,
    offsets,
    reassignments,
    topics,
    transactions,
    users,
)
from penstock.kafka.admin.acls import AclFilter
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.security import Mechanism
from tests.kafka.test_transactions import begin
from tests.kafka.waiting import eventually, wait_until_equal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.kafka.client import Client
    from tests.harness.fleet import Fleet
    from tests.kafka.conftest import MakeTopic, Produce

pytestmark = pytest.mark.kafka


class Peer:
    """kafka-python's admin client, called from a thread."""

    def __init__(self, admin: KafkaAdminClient) -> None:
        self._admin = admin

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*arguments: Any, **keys: Any) -> Any:
            return await asyncio.to_thread(getattr(self._admin, name), *arguments, **keys)

        return call


@pytest.fixture
def peer(fleet: Fleet) -> Iterator[Peer]:
    config = fleet.client_config()
    admin = KafkaAdminClient(
        bootstrap_servers=config["bootstrap.servers"],
        security_protocol=config["security.protocol"],
        sasl_mechanism=config["sasl.mechanism"],
        sasl_plain_username=config["sasl.username"],
        sasl_plain_password=config["sasl.password"],
        ssl_cafile=config.get("ssl.ca.location"),
    )
    yield Peer(admin)
    admin.close()


async def test_the_cluster_its_features_and_its_quorum(client: Client, peer: Peer) -> None:
    theirs, ours = await peer.describe_cluster(), await brokers.describe(client)
    assert theirs["cluster_id"] == ours.cluster_id
    assert {b["broker_id"]: (b["host"], b["port"], b["rack"], b["is_fenced"]) for b in theirs["brokers"]} == {
        b.id: (b.address.host, b.address.port, b.rack, b.fenced) for b in ours.brokers.values()
    }

    described = await peer.describe_features()
    assert {name: (f["finalized"][1], *f["supported"]) for name, f in described.items()} == {
        name: (f.level, f.level_min, f.level_max) for name, f in (await brokers.features(client)).items()
    }

    their_quorum, our_quorum = await peer.describe_metadata_quorum(), await quorum.describe(client)
    partition = their_quorum["topics"][0]["partitions"][0]
    assert (partition["leader_id"], partition["leader_epoch"]) == (
        our_quorum.leader_id,
        our_quorum.leader_epoch,
    )
    assert {(r["replica_id"], r["replica_directory_id"]) for r in partition["current_voters"]} == {
        (r.id, str(r.directory_id)) for r in our_quorum.voters
    }
    assert {r["replica_id"] for r in partition["observers"]} == {r.id for r in our_quorum.observers}


async def test_topics_created_by_either_client_are_the_same(
    client: Client, peer: Peer, unique: Callable[[str], str]
) -> None:
    ours, theirs = unique("ours"), unique("theirs")
    layout = {0: [1, 2], 1: [2, 3]}

    results_or_raise(await topics.create(client, [topics.NewTopic(ours, replicas=layout)]))
    await peer.create_topics({theirs: {"assignments": layout}})
    results_or_raise(await topics.add_partitions(client, {ours: 3}, replicas={ours: [[3, 1]]}))
    await peer.create_partitions({theirs: {"count": 3, "assignments": [[3, 1]]}})

    async def settled() -> bool:
        described = await topics.describe(client, [ours, theirs])
        return all(
            isinstance(t, topics.Topic)
            and len(t.partitions) == 3
            and all(len(p.isr) == 2 for p in t.partitions)
            for t in described.values()
        )

    async def by_us() -> dict[tuple[str, str], Any]:
        described: dict[tuple[str, str], Any] = {}
        for name, topic in results_or_raise(await topics.describe(client, [ours, theirs])).items():
            described[name, "id"] = str(topic.id)
            described[name, "partitions"] = [(p.index, p.leader, *p.replicas) for p in topic.partitions]
        return described

    async def by_them() -> dict[tuple[str, str], Any]:
        described: dict[tuple[str, str], Any] = {}
        for topic in await peer.describe_topics([ours, theirs]):
            described[topic["name"], "id"] = topic["topic_id"]
            described[topic["name"], "partitions"] = sorted(
                (p["partition_index"], p["leader_id"], *p["replica_nodes"]) for p in topic["partitions"]
            )
        return described

    await eventually(settled)
    agreed = await wait_until_equal(by_us, by_them)
    replicas = {name: [p[2:] for p in agreed[name, "partitions"]] for name in (ours, theirs)}
    assert replicas[ours] == replicas[theirs] == [(1, 2), (2, 3), (3, 1)]

    async def listed() -> bool:
        return set(await peer.list_topics()) >= {ours, theirs}

    await eventually(listed)

    results_or_raise(await topics.delete(client, [theirs]))
    await peer.delete_topics([ours])

    async def gone() -> bool:
        left = {*await peer.list_topics(), *await topics.describe(client)}
        return not {ours, theirs} & left

    assert await eventually(gone)


async def test_configuration(client: Client, peer: Peer, make_topic: MakeTopic) -> None:
    name = await make_topic()
    topic, resource = configs.topic(name), ConfigResource(ConfigResourceType.TOPIC, name)
    results_or_raise(await configs.alter(client, {topic: configs.changes({"retention.ms": "60000"})}))
    await peer.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"segment.ms": "70000"})])

    async def both_hold() -> bool:
        entries = results_or_raise(await configs.describe(client, [topic]))[topic]
        return (entries["retention.ms"].value, entries["segment.ms"].value) == ("60000", "70000")

    async def by_us() -> list[dict[str, Any]]:
        described = results_or_raise(await configs.describe(client, [topic, configs.broker(1)]))
        return [
            {n: (e.value, e.read_only, e.sensitive) for n, e in described[which].items()}
            for which in (topic, configs.broker(1))
        ]

    async def by_them() -> list[dict[str, Any]]:
        broker = ConfigResource(ConfigResourceType.BROKER, "1")
        described = await peer.describe_configs([resource, broker], config_filter="all")
        return [
            {n: (e["value"], e["read_only"], e["is_sensitive"]) for n, e in entries.items()}
            for entries in (described["topic"][name], described["broker"]["1"])
        ]

    async def listed_by_us() -> set[str]:
        return {r.name for r in await configs.list_resources(client, [configs.ResourceKind.TOPIC])}

    async def listed_by_them() -> set[str]:
        return set((await peer.list_config_resources())["topic"])

    await eventually(both_hold)
    of_topic, of_broker = await wait_until_equal(by_us, by_them)
    assert "retention.ms" in of_topic
    assert "log.retention.ms" in of_broker
    assert name in await wait_until_equal(listed_by_us, listed_by_them)


async def test_offsets_and_deleted_records(
    client: Client, peer: Peer, make_topic: MakeTopic, produce: Produce
) -> None:
    topic = await make_topic(partitions=2)
    await produce(topic, b"a", b"b", b"c", partition=0)
    await produce(topic, b"d", b"e", partition=1)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

    assert results_or_raise(await offsets.delete_before(client, {first: 1})) == {first: 1}
    deleted = await peer.delete_records({Theirs(topic, 1): 1})

    assert deleted[Theirs(topic, 1)]["low_watermark"] == 1
    for their_place, our_place in (
        (OffsetSpec.EARLIEST, offsets.OffsetSpec.EARLIEST),
        (OffsetSpec.LATEST, offsets.OffsetSpec.LATEST),
        (OffsetSpec.MAX_TIMESTAMP, offsets.OffsetSpec.MAX_TIMESTAMP),
        (OffsetSpec.EARLIEST_LOCAL, offsets.OffsetSpec.EARLIEST_LOCAL),
    ):
        theirs = await peer.list_partition_offsets({Theirs(topic, i): their_place for i in (0, 1)})
        ours = results_or_raise(await offsets.list_offsets(client, {first: our_place, second: our_place}))
        assert {(p.topic, p.partition): (o.offset, o.timestamp) for p, o in theirs.items()} == {
            tuple(p): (o.offset, o.timestamp_ms) for p, o in ours.items()
        }


async def test_log_dirs(client: Client, peer: Peer, make_topic: MakeTopic, produce: Produce) -> None:
    topic = await make_topic(replicas={0: [1, 2]})
    await produce(topic, b"x" * 100)

    async def copied() -> bool:
        described = await log_dirs.describe(client, [1, 2], partitions=[TopicPartition(topic, 0)])
        return (
            len({r.size_bytes for dirs in described.values() for d in dirs for r in d.replicas.values()}) == 1
        )

    await eventually(copied)
    theirs = await peer.describe_log_dirs()
    ours = await log_dirs.describe(client)

    def sizes(described: Any) -> dict[tuple[int, str], int]:
        return {
            (entry["broker"], d["log_dir"]): p["partition_size"]
            for entry in described
            for d in entry["log_dirs"]
            for t in d["topics"]
            if t["name"] == topic
            for p in t["partitions"]
        }

    assert sizes(theirs) == {
        (b, d.path): r.size_bytes
        for b, dirs in ours.items()
        for d in dirs
        for p, r in d.replicas.items()
        if p.topic == topic
    }


async def test_groups_and_their_commits(
    client: Client, peer: Peer, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    topic, ours, theirs = await make_topic(partitions=2), unique("ours"), unique("theirs")
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

    results_or_raise(
        await group_offsets.commit(
            client, ours, {first: CommittedOffset(3, 0, "a"), second: CommittedOffset(4, 0, "b")}
        )
    )
    await group_offsets.committed(
        client, theirs
    )  # its coordinator has loaded: kafka-python would not ask again
    await peer.alter_group_offsets(
        theirs,
        {Theirs(topic, 0): OffsetAndMetadata(3, "a", 0), Theirs(topic, 1): OffsetAndMetadata(4, "b", 0)},
    )

    by_us = await group_offsets.committed(client, theirs)
    by_them = (await peer.list_group_offsets({ours: None}))[ours]
    assert by_us == await group_offsets.committed(client, ours)
    assert {(p.topic, p.partition): (o.offset, o.metadata, o.leader_epoch) for p, o in by_them.items()} == {
        tuple(p): (c.offset, c.metadata, c.leader_epoch) for p, c in by_us.items()
    }
    listed = {g["group_id"]: g for g in await peer.list_groups()}
    mine = await groups.list_all(client)
    for group in (ours, theirs):
        assert (listed[group]["group_state"], listed[group]["protocol_type"]) == (
            mine[group].state,
            mine[group].protocol_type,
        )
    their_view = (await peer.describe_groups([ours]))[ours]
    our_view = results_or_raise(await groups.describe(client, [theirs]))[theirs]
    assert (their_view["group_state"], their_view["members"]) == (our_view.state, [])

    results_or_raise(await groups.delete(client, [theirs]))
    await peer.delete_groups([ours])
    assert not {ours, theirs} & (await groups.list_all(client)).keys()


async def test_reassignments_and_elections(client: Client, peer: Peer, make_topic: MakeTopic) -> None:
    topic = await make_topic(replicas={0: [1, 2], 1: [1, 2]})

    results_or_raise(await reassignments.alter(client, {TopicPartition(topic, 0): [2, 1]}))
    await peer.alter_partition_reassignments({Theirs(topic, 1): [2, 1]})

    async def moved() -> bool:
        described = results_or_raise(await topics.describe(client, [topic]))[topic]
        return all(p.replicas == (2, 1) for p in described.partitions)

    await eventually(moved)
    results_or_raise(await reassignments.elect(client, [TopicPartition(topic, 0)]))
    await peer.elect_leaders(0, {topic: [1]}, raise_errors=False)

    async def led() -> bool:
        described = results_or_raise(await topics.describe(client, [topic]))[topic]
        return all(p.leader == 2 for p in described.partitions)

    assert await eventually(led)
    assert await peer.list_partition_reassignments({topic: [0, 1]}) == {}
    assert await reassignments.under_way(client, [TopicPartition(topic, 0), TopicPartition(topic, 1)]) == {}


async def test_users(client: Client, peer: Peer, unique: Callable[[str], str]) -> None:
    ours, theirs = unique("ours"), unique("theirs")

    results_or_raise(await users.alter(client, upsert=[users.Credential(ours, "secret", iterations=4096)]))
    await peer.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(theirs, ScramMechanism.SCRAM_SHA_512, "secret", iterations=4096)]
    )

    async def known() -> bool:
        return {ours, theirs} <= (await users.describe(client)).keys()

    async def by_us() -> dict[str, list[int]]:
        return {
            user: list(credentials.values()) for user, credentials in (await users.describe(client)).items()
        }

    async def by_them() -> dict[str, list[int]]:
        described = await peer.describe_user_scram_credentials()
        return {
            user: [c["iterations"] for c in credentials["credential_infos"]]
            for user, credentials in described.items()
        }

    await eventually(known)
    agreed = await wait_until_equal(by_us, by_them)
    assert agreed[ours] == agreed[theirs] == [4096]

    results_or_raise(await users.alter(client, delete=[(theirs, Mechanism.SCRAM_SHA_512)]))
    await peer.alter_user_scram_credentials([UserScramCredentialDeletion(ours, ScramMechanism.SCRAM_SHA_512)])

    async def gone() -> bool:
        return not {ours, theirs} & (await users.describe(client)).keys()

    assert await eventually(gone)


async def test_access_control(client: Client, peer: Peer, unique: Callable[[str], str]) -> None:
    principal, name = f"User:{unique('ada')}", unique("orders")
    ours = acls.Acl(principal, acls.Operation.READ, acls.ResourceType.TOPIC, name, acls.Pattern.PREFIXED)
    pattern = ResourcePattern(ResourceType.TOPIC, name, ACLResourcePatternType.PREFIXED)
    theirs = ACL(principal, "*", ACLOperation.WRITE, ACLPermissionType.ALLOW, pattern)
    anything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    mine = ACLFilter(principal, None, ACLOperation.ANY, ACLPermissionType.ANY, anything)

    results_or_raise(await acls.create(client, [ours]))
    await peer.create_acls([theirs])

    async def known() -> bool:
        return len(await acls.describe(client, AclFilter(principal))) == 2

    async def by_us() -> set[tuple[Any, ...]]:
        described = await acls.describe(client, AclFilter(principal))
        return {
            (a.principal, a.host, a.operation.value, a.permission.value, a.resource_name) for a in described
        }

    async def by_them() -> set[tuple[Any, ...]]:
        described, _ = await peer.describe_acls(mine)
        return {
            (
                a.principal,
                a.host,
                a.operation.value,
                a.permission_type.value,
                a.resource_pattern.resource_name,
            )
            for a in described
        }

    await eventually(known)
    assert len(await wait_until_equal(by_us, by_them)) == 2
    await peer.delete_acls([mine])

    async def gone() -> bool:
        return not await acls.describe(client, AclFilter(principal))

    assert await eventually(gone)


async def test_transactions_and_producers(
    fleet: Fleet, client: Client, peer: Peer, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    topic, name = await make_topic(), unique("till")
    producer = await asyncio.to_thread(begin, fleet, name, topic)
    partition = TopicPartition(topic, 0)

    theirs = (await peer.describe_transactions([name]))[name]
    ours = results_or_raise(await transactions.describe(client, [name]))[name]
    listed = {t.transactional_id: t for some in (await peer.list_transactions()).values() for t in some}
    mine = await transactions.list_all(client)
    (their_writer,) = (await peer.describe_producers([Theirs(topic, 0)]))[Theirs(topic, 0)].active_producers
    (our_writer,) = results_or_raise(await transactions.producers(client, [partition]))[partition]
    await asyncio.to_thread(producer.abort_transaction, 30)

    assert (theirs.producer_id, theirs.producer_epoch) == (ours.producer_id, ours.producer_epoch)
    assert (theirs.transaction_timeout_ms, theirs.transaction_start_time_ms) == (
        ours.timeout_ms,
        ours.started_ms,
    )
    assert {(p.topic, p.partition) for p in theirs.topic_partitions} == {tuple(p) for p in ours.partitions}
    assert listed[name].producer_id == mine[name].producer_id
    assert (their_writer.producer_id, their_writer.producer_epoch, their_writer.last_sequence) == (
        our_writer.id,
        our_writer.epoch,
        our_writer.last_sequence,
    )
    assert their_writer.current_transaction_start_offset == our_writer.open_since_offset


async def test_api_versions(client: Client, peer: Peer) -> None:
    spoken = await peer.api_versions()

    ours = {api: (v.first, v.last) for api, v in (await client.connection()).versions.items()}
    assert {key.name: tuple(versions) for key, versions in spoken.items() if key.name in ours} == {
        api: versions for api, versions in ours.items() if api in {key.name for key in spoken}
    }


async def test_an_aborted_hanging_transaction(
    fleet: Fleet, client: Client, peer: Peer, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    ours, theirs = TopicPartition(await make_topic(), 0), TopicPartition(await make_topic(), 0)
    writers = {}
    for partition in (ours, theirs):
        await asyncio.to_thread(begin, fleet, unique("till"), partition.topic)
        (writers[partition],) = results_or_raise(await transactions.producers(client, [partition]))[partition]

    await transactions.abort(client, ours, writers[ours])
    writer = writers[theirs]
    await peer.abort_transaction(
        AbortTransactionSpec(Theirs(*theirs), writer.id, writer.epoch, max(writer.coordinator_epoch, 0))
    )

    ended = results_or_raise(await transactions.producers(client, [ours, theirs]))
    assert [[w.open_since_offset for w in writers] for writers in ended.values()] == [[None], [None]]
