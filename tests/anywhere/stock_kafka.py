"""Kafka clusters as other people run them: started by hand from the jars, with SASL_SSL and an authorizer.

They know nothing of the platform. `Neighbours` are the topics, users, ACLs, client quotas and groups that
others have on such a cluster; `snapshot` reads all of that, to compare it before and after.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import signal
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil

from penstock.fleet.cluster_record import new_kafka_uuid
from penstock.fleet.credentials.certificates import load_authority
from penstock.fleet.java import command, jvm_flags
from penstock.fleet.kafka_properties import as_text
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.spec import Jit
from penstock.kafka.admin import acls, brokers, configs, group_offsets, groups, quotas, topics, users
from penstock.kafka.admin.acls import Acl, Operation, Pattern, ResourceType
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.users import Credential
from penstock.kafka.append import append
from penstock.kafka.client import Client
from penstock.kafka.partition_log import bounds, read
from penstock.kafka.security import Login, Mechanism, Security, tls_context
from penstock.model.errors import PenstockError
from penstock.model.ids import TENANT_NAME
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path
    from typing import TypeVar

    from tests.anywhere.namespaces import Host

    T = TypeVar("T")

ADMIN = Login("admin", "password-of-admin", Mechanism.SCRAM_SHA_512)
PLATFORM = Login("penstock", "password-of-penstock", Mechanism.SCRAM_SHA_512)
FIRST_PORT = 9093
CONTROLLER_PORT = 9193
HEAP_MB = 256
READY_SECONDS_MAX = 240.0
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
_PLATFORM_RIGHTS = (
    (ResourceType.CLUSTER, "kafka-cluster", Pattern.LITERAL),
    (ResourceType.TOPIC, "_penstock.", Pattern.PREFIXED),
    (ResourceType.TOPIC, "lkc-", Pattern.PREFIXED),
    (ResourceType.GROUP, "_penstock.", Pattern.PREFIXED),
    (ResourceType.GROUP, "lkc-", Pattern.PREFIXED),
    (ResourceType.TRANSACTIONAL_ID, "_penstock.", Pattern.PREFIXED),
)


@dataclass
class StockCluster:
    """Combined nodes on one host."""

    host: Host
    directory: Path
    nodes: int = 3
    config: Mapping[str, str] = field(default_factory=dict)
    kafka_id: str = ""
    running: dict[int, subprocess.Popen[Any]] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{self.host.address}:{FIRST_PORT + n}" for n in range(1, self.nodes + 1))

    @property
    def ca(self) -> Path:
        return self.directory / "ca" / "ca.pem"

    def security(self, login: Login = ADMIN) -> Security:
        return Security(login, tls_context(self.ca))

    def start(self) -> None:
        """Format every node, start them, and wait until all are there."""
        runtime = asyncio.run(obtain_runtime())
        now = dt.datetime.now(dt.UTC)
        authority = load_authority(self.directory / "ca", now=now)
        self.kafka_id = new_kafka_uuid(random.SystemRandom())
        for number in range(1, self.nodes + 1):
            keystore = self.directory / f"b{number}.pem"
            keystore.write_bytes(authority.issue(self.host.name, [self.host.address], now=now))
            properties = self.directory / f"b{number}.properties"
            properties.write_text(as_text(self._properties(number, keystore)))
            words = ["format", "-t", self.kafka_id, "-c", str(properties)]
            words += ["--add-scram", f"SCRAM-SHA-512=[name={ADMIN.user},password={ADMIN.password}]"]
            flags = jvm_flags(heap_mb=HEAP_MB, jit=Jit.QUICK, archive=runtime.archive)
            tool = command(runtime.java, runtime.jars, flags, "kafka.tools.StorageTool", *words)
            subprocess.run(tool, check=True, capture_output=True)
        for number in range(1, self.nodes + 1):
            self.start_node(number)
        self.wait()

    def start_node(self, number: int) -> None:
        runtime = asyncio.run(obtain_runtime())
        flags = jvm_flags(heap_mb=HEAP_MB, jit=Jit.QUICK, archive=runtime.archive)
        words = command(
            runtime.java, runtime.jars, flags, "kafka.Kafka", str(self.directory / f"b{number}.properties")
        )
        self.running[number] = self.host.start(words, log=self.directory / f"b{number}.log")

    def kill_node(self, number: int) -> None:
        process = self.running.pop(number)
        psutil.Process(process.pid).send_signal(signal.SIGKILL)
        process.wait()

    def wait(self) -> None:
        async def complete(client: Client) -> bool:
            return len((await brokers.describe(client)).brokers) == self.nodes

        def ready() -> bool:
            try:
                return self.call(complete)
            except PenstockError:
                return False

        wait_for(ready, what=f"{self.host.name} to have {self.nodes} brokers", seconds=READY_SECONDS_MAX)

    def call(self, function: Callable[[Client], Awaitable[T]], login: Login = ADMIN) -> T:
        """Call with a client on the cluster's host."""

        async def connected() -> T:
            async with Client(self.bootstrap, self.security(login)) as client:
                return await function(client)

        return self.host.call(lambda: asyncio.run(connected()))

    def _properties(self, number: int, keystore: Path) -> dict[str, str]:
        voters = ",".join(f"{n}@127.0.0.1:{CONTROLLER_PORT + n}" for n in range(1, self.nodes + 1))
        copies = min(3, self.nodes)
        in_sync = max(1, copies - 1)
        jaas = f'{_SCRAM} username="{ADMIN.user}" password="{ADMIN.password}";'
        return {
            "process.roles": "broker,controller",
            "node.id": str(number),
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"CLIENT://{self.host.address}:{FIRST_PORT + number},"
            f"CONTROLLER://127.0.0.1:{CONTROLLER_PORT + number}",
            "listener.security.protocol.map": "CLIENT:SASL_SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "CLIENT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.client.scram-sha-512.sasl.jaas.config": jaas,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin;User:ANONYMOUS",  # only controllers, on loopback, have no login
            "broker.rack": "abc"[(number - 1) % 3],
            "log.dirs": str(self.directory / f"b{number}"),
            "default.replication.factor": str(copies),
            "min.insync.replicas": str(in_sync),
            "offsets.topic.replication.factor": str(copies),
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": str(copies),
            "transaction.state.log.min.isr": str(in_sync),
            "transaction.state.log.num.partitions": "2",
            "log.cleaner.dedupe.buffer.size": str(16 << 20),
            "group.min.session.timeout.ms": "500",
            "broker.session.timeout.ms": "6000",
            **self.config,
        }

    # What others have on it

    def add_platform_user(self) -> None:
        """The user that the platform gets from the cluster's owners: no super user."""

        async def add(client: Client) -> None:
            results_or_raise(await users.alter(client, upsert=[_credential(PLATFORM)]))
            rights = [
                Acl(f"User:{PLATFORM.user}", Operation.ALL, kind, name, pattern)
                for kind, name, pattern in _PLATFORM_RIGHTS
            ]
            results_or_raise(await acls.create(client, rights))

        self.call(add)

    def add_neighbours(self) -> None:
        """Topics with records, a user with ACLs and a quota, and a group with offsets."""

        async def add(client: Client) -> None:
            alice = Login("alice", "password-of-alice", Mechanism.SCRAM_SHA_512)
            results_or_raise(await users.alter(client, upsert=[_credential(alice)]))
            rights = [
                Acl("User:alice", Operation.READ, ResourceType.TOPIC, "billing.", Pattern.PREFIXED),
                Acl("User:alice", Operation.WRITE, ResourceType.TOPIC, "billing.orders"),
                Acl("User:alice", Operation.READ, ResourceType.GROUP, "billing"),
                Acl("User:bob", Operation.DESCRIBE, ResourceType.TOPIC, "lkc-notes"),
            ]
            results_or_raise(await acls.create(client, rights))
            results_or_raise(
                await quotas.alter(client, {quotas.entity(user="alice"): {quotas.PRODUCER_BYTES: 1e6}})
            )
            new = [
                topics.NewTopic("billing.orders", 2, min(2, self.nodes), configs={"retention.ms": "-1"}),
                topics.NewTopic("lkc-notes", 1, 1),  # resembles a tenant's, and is not
            ]
            results_or_raise(await topics.create(client, new))
            for partition in range(2):
                rows = [(b"key %d" % number, b"value %d" % number) for number in range(9)]
                await append(client, TopicPartition("billing.orders", partition), rows)
            read_up_to = {TopicPartition("billing.orders", 0): CommittedOffset(4)}
            results_or_raise(await group_offsets.commit(client, "billing", read_up_to))

        self.call(add)

    def snapshot(self) -> dict[str, Any]:
        """Everything on the cluster that is not the platform's."""
        return self.call(_snapshot)


def _credential(login: Login) -> Credential:
    return Credential(login.user, login.password, login.mechanism, 4096)


def _is_platforms(name: str) -> bool:
    """Whether a topic, user or group of this name is the platform's, or Kafka's own."""
    return name.startswith(("_penstock.", "__")) or TENANT_NAME.match(name) is not None


async def _snapshot(client: Client) -> dict[str, Any]:
    listed = results_or_raise(await topics.describe(client))
    named = {name: topic for name, topic in listed.items() if not _is_platforms(name)}
    resources = {name: configs.topic(name) for name in named}
    settings = results_or_raise(await configs.describe(client, list(resources.values())))
    group_names = [group for group in await groups.list_all(client) if not _is_platforms(group)]
    principals = {f"User:{user}" for user in await users.describe(client) if _is_platforms(user)}
    return {
        "topics": {
            name: {
                "id": topic.id,
                "replicas": [sorted(partition.replicas) for partition in topic.partitions],
                "configs": {key: entry.value for key, entry in settings[resources[name]].items()},
                "records": [
                    await _records(client, TopicPartition(name, partition))
                    for partition in range(len(topic.partitions))
                ],
            }
            for name, topic in named.items()
        },
        "users": {
            user: credentials
            for user, credentials in (await users.describe(client)).items()
            if not _is_platforms(user)
        },
        "acls": {str(acl) for acl in await acls.describe(client) if acl.principal not in principals},
        "quotas": {
            entity: dict(values)
            for entity, values in (await quotas.describe(client)).items()
            if not any(part.name and _is_platforms(part.name) for part in entity)
        },
        "groups": {group: await group_offsets.committed(client, group) for group in group_names},
    }


async def _records(client: Client, partition: TopicPartition) -> list[tuple[int, bytes | None, bytes | None]]:
    position, end = await bounds(client, partition)
    records = []
    while position < end:
        chunk = await read(client, partition, position)
        records += [(record.offset, record.key, record.value) for record in chunk.records]
        position = chunk.position
    return records
