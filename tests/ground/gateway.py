"""A gateway before a real fleet, and tenants that know how to log in to it.

It runs on an event loop of its own in a thread, so that plain synchronous clients can be its tenants.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from penstock.fleet.security import load_platform_key
from penstock.fleet.spec import Listener
from penstock.gateway.config import ApiKey, Broker, GatewayConfig, ServiceAccount, Tenant
from penstock.gateway.provision import provision, rules
from penstock.gateway.server import Gateway
from penstock.gateway.settings import Bounds, GatewaySettings
from penstock.kafka.client import Client
from penstock.kafka.routing import NodeWithId
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.entities import Role
from penstock.model.ids import (
    BrokerId,
    PhysicalClusterId,
    new_logical_cluster_id,
    new_service_account_id,
)
from penstock.wire.codes import Code
from penstock.wire.frames import Request, decode_response, encode_request
from tests.ground.topics import led_everywhere

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from penstock.kafka.acls import Acl
    from penstock.model.ids import ServiceAccountId
    from tests.ground.fleet import Fleet

_T = TypeVar("_T")
ALPHANUMERIC = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
START_SECONDS = 60.0


@dataclass(frozen=True)
class Access:
    """A tenant's way in: its key and secret, and the gateway's address."""

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
    key = "".join(secrets.choice(ALPHANUMERIC) for _ in range(16))
    secret = secrets.token_urlsafe(48)
    digest = hashlib.sha256(secret.encode()).digest()
    made = Tenant(
        new_logical_cluster_id(secrets.choice),
        {account: ServiceAccount(account, role=Role.OWNER)},
        (ApiKey(key, digest, account),),
        **tenant,
    )
    return Access(made, account, key, secret)


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
        """Run a function on the gateway's own loop."""

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
    """Provision the tenants, and serve them."""
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
    """Users and rules of these tenants, known to every broker: each hears of them by itself."""
    async with Client(fleet.bootstrap, fleet.security()) as client:
        await provision(client, tenants, load_platform_key(fleet.local.layout.secrets))
        if not tenants:
            return
        # Users come before rules, and all rules in one go: who has heard of the last has heard of all.
        last = [rule for tenant in tenants for rule in rules(tenant)][-1]
        for node in fleet.brokers:
            async with asyncio.timeout(START_SECONDS):
                while not await _heard(client, node.spec.id, last):
                    await asyncio.sleep(0.02)


async def _heard(client: Client, broker: int, rule: Acl) -> bool:
    body = {
        "ResourceTypeFilter": rule.resource_type,
        "ResourceNameFilter": rule.resource_name,
        "PatternTypeFilter": rule.pattern,
        "PrincipalFilter": rule.principal,
        "HostFilter": rule.host,
        "Operation": rule.operation,
        "PermissionType": rule.permission,
    }
    answer = await client.call("DescribeAcls", body, to=NodeWithId(broker))
    return bool(answer["Resources"])


async def known_everywhere(access: Access, topic: str, partitions: int | None = None) -> None:
    """Wait until every broker knows a tenant's new topic, or its new partitions, and leads its own."""
    await led_everywhere(access.bootstrap, access.security(), topic, partitions)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(START_SECONDS):
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)


async def raw_login(access: Access) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of plain bytes to the first broker, logged in."""
    host, port = access.bootstrap.split(",")[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    token = f"\0{access.key}\0{access.secret}".encode()
    writer.write(encode_request(Request("SaslHandshake", 1, 1, "t", {"Mechanism": "PLAIN"})))
    writer.write(encode_request(Request("SaslAuthenticate", 2, 2, "t", {"AuthBytes": token})))
    await read_frame(reader)
    answer = decode_response("SaslAuthenticate", 2, await read_frame(reader))
    assert answer.body["ErrorCode"] == Code.NONE
    return reader, writer
