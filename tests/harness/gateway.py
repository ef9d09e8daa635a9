"""A gateway in front of a real fleet, and tenants that can log in to it.

It runs on its own event loop in a thread, so that tests can use synchronous clients.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
import threading
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from penstock.fleet.credentials.certificates import load_platform_key
from penstock.fleet.spec import Listener
from penstock.gateway.config import ApiKey, Broker, GatewayConfig, ServiceAccount, Tenant
from penstock.gateway.process.server import Gateway
from penstock.gateway.settings import Bounds, GatewaySettings
from penstock.gateway.tenancy.tenant_provisioning import acls_for, provision
from penstock.kafka.client import Client
from penstock.kafka.routing import NodeWithId
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.api_keys import new_api_key
from penstock.model.entities import Role
from penstock.model.ids import (
    BrokerId,
    LogicalClusterId,
    PhysicalClusterId,
    ServiceAccountId,
    new_logical_cluster_id,
    new_service_account_id,
)
from penstock.wire.error_codes import Code
from penstock.wire.frames import Request, decode_response, encode_request
from tests.harness.propagation import wait_for_leaders

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from penstock.kafka.admin.acls import Acl
    from tests.harness.fleet import Fleet

_T = TypeVar("_T")
START_SECONDS = 60.0


@dataclass(frozen=True)
class Access:
    """A tenant with its key and secret, and the gateway's address."""

    tenant: Tenant
    account: ServiceAccountId
    key: str
    secret: str
    bootstrap: str = ""

    @property
    def prefix(self) -> str:
        return self.tenant.prefix.decode()

    @property
    def user(self) -> str:
        return self.tenant.user_of(self.account)

    def client_config(self, **overrides: object) -> dict[str, Any]:
        """librdkafka's properties; `group_id="x"` overrides `group.id`."""
        config = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": self.key,
            "sasl.password": self.secret,
        }
        return config | {key.replace("_", "."): value for key, value in overrides.items()}

    def security(self) -> Security:
        return Security(Login(self.key, self.secret, Mechanism.PLAIN))


def new_access(**tenant: Any) -> Access:
    """A tenant with one account and one key."""
    account = new_service_account_id(secrets.choice)
    key = new_api_key(secrets.choice)
    made = Tenant(
        new_logical_cluster_id(secrets.choice),
        {account: ServiceAccount(account, role=Role.OWNER)},
        (ApiKey(key.id, bytes.fromhex(key.secret_sha256), account),),
        **tenant,
    )
    return Access(made, account, key.id, key.secret)


def access_of(tenant: str, account: str, key: str, secret: str, bootstrap: str) -> Access:
    """A tenant that a control plane has created."""
    owner = ServiceAccountId(account)
    made = Tenant(
        LogicalClusterId(tenant),
        {owner: ServiceAccount(owner, role=Role.OWNER)},
        (ApiKey(key, sha256(secret.encode()).digest(), owner),),
    )
    return Access(made, owner, key, secret, bootstrap)


def brokers_of(fleet: Fleet) -> tuple[Broker, ...]:
    return tuple(
        Broker(BrokerId(node.spec.id), node.spec.zone, node.spec.host, node.spec.ports[Listener.GATEWAY], 0)
        for node in fleet.brokers
    )


@dataclass
class RunningGateway:
    gateway: Gateway
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    accesses: list[Access] = field(default_factory=list)

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(START_SECONDS)

    def do(self, work: Callable[[], _T]) -> _T:
        """Run a function on the gateway's event loop."""

        async def wrapped() -> _T:
            return work()

        return self.call(wrapped())

    def stop(self) -> None:
        self.call(self.gateway.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(START_SECONDS)
        assert not self.thread.is_alive()
        self.loop.close()

    @property
    def bootstrap(self) -> str:
        return self.gateway.bootstrap


def start_gateway(
    fleet: Fleet,
    accesses: Sequence[Access],
    *,
    name: str = "test",
    kind: type[Gateway] = Gateway,
    bounds: Bounds | None = None,
    brokers: Sequence[Broker] | None = None,
    settings: dict[str, Any] | None = None,
    **more: Any,
) -> RunningGateway:
    """Provision the tenants and start a gateway for them."""
    secrets_directory = fleet.local.layout.secrets
    config = GatewayConfig(
        PhysicalClusterId("pkc-000000"),
        tuple(brokers or brokers_of(fleet)),
        tuple(access.tenant for access in accesses),
    )
    made = GatewaySettings(
        gateway=name,
        listen="127.0.0.1",
        advertised_host="127.0.0.1",
        platform_key=secrets_directory / "platform.key",
        bounds=bounds or Bounds(),
        **(settings or {}),
    )
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gateway")
    thread.start()

    async def begin() -> Gateway:
        if accesses:
            await provisioned(fleet, config.tenants)
        gateway = kind(made, config, **more)
        await gateway.start()
        return gateway

    try:
        gateway = asyncio.run_coroutine_threadsafe(begin(), loop).result(START_SECONDS)
    except BaseException:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(START_SECONDS)
        raise
    running = RunningGateway(gateway, loop, thread)
    running.accesses = [Access(a.tenant, a.account, a.key, a.secret, gateway.bootstrap) for a in accesses]
    return running


async def provisioned(fleet: Fleet, tenants: Sequence[Tenant]) -> None:
    """Create the users and ACLs of these tenants, and wait until every broker knows them."""
    async with Client(fleet.bootstrap, fleet.security()) as client:
        await provision(client, tenants, load_platform_key(fleet.local.layout.secrets))
        if not tenants:
            return
        # Users are created before ACLs, so a broker that knows the last ACL knows everything.
        last = [acl for tenant in tenants for acl in acls_for(tenant)][-1]
        for node in fleet.brokers:
            async with asyncio.timeout(START_SECONDS):
                while not await _acl_known(client, node.spec.id, last):
                    await asyncio.sleep(0.02)


async def _acl_known(client: Client, broker: int, acl: Acl) -> bool:
    body = {
        "ResourceTypeFilter": acl.resource_type,
        "ResourceNameFilter": acl.resource_name,
        "PatternTypeFilter": acl.pattern,
        "PrincipalFilter": acl.principal,
        "HostFilter": acl.host,
        "Operation": acl.operation,
        "PermissionType": acl.permission,
    }
    response = await client.call("DescribeAcls", body, to=NodeWithId(broker))
    return bool(response["Resources"])


async def wait_for_topic(access: Access, topic: str, partitions: int | None = None) -> None:
    """Wait until every broker knows a tenant's new topic, or its new partitions, and serves what it leads."""
    await wait_for_leaders(access.bootstrap, access.security(), topic, partitions)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(START_SECONDS):
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)


async def raw_login(access: Access) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A raw connection to the first broker, logged in."""
    host, port = access.bootstrap.split(",")[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    token = f"\0{access.key}\0{access.secret}".encode()
    writer.write(encode_request(Request("SaslHandshake", 1, 1, "t", {"Mechanism": "PLAIN"})))
    writer.write(encode_request(Request("SaslAuthenticate", 2, 2, "t", {"AuthBytes": token})))
    await read_frame(reader)
    response = decode_response("SaslAuthenticate", 2, await read_frame(reader))
    assert response.body["ErrorCode"] == Code.NONE
    return reader, writer
