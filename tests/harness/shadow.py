"""A shadow broker of a test fleet, with a log in memory instead of a source."""

from __future__ import annotations

import datetime as dt
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from penstock.fleet.credentials.passwords import NODE_USER, PLATFORM_USER
from penstock.fleet.readiness import security_of
from penstock.fleet.spec import Listener
from penstock.kafka.client import Client
from penstock.model.shadow_ids import SHADOW_IDS
from penstock.shadow.broker import ShadowBroker, ShadowSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.fleet import Fleet


def controllers_of(fleet: Fleet) -> Client:
    node = next(node for node in fleet.nodes if node.spec.is_controller)
    bootstrap = node.cluster.spec.bootstrap(Listener.CONTROLLER)
    return Client(bootstrap, security_of(node), controllers=True)


def shadow_settings(fleet: Fleet, directory: Path, broker_id: int = SHADOW_IDS[0]) -> ShadowSettings:
    tls = None
    directory.mkdir(parents=True, exist_ok=True)
    if fleet.local.clusters[0].cluster.spec.tls:
        keystore = directory / "keystore.pem"
        hosts = ["127.0.0.1", "localhost"]
        keystore.write_bytes(fleet.local.authority.issue("shadow", hosts, now=dt.datetime.now(dt.UTC)))
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(keystore)
    admitted = frozenset((NODE_USER, PLATFORM_USER))
    return ShadowSettings(broker_id, directory, "INTERNAL", "127.0.0.1", 0, admitted, tls)


@asynccontextmanager
async def running_shadow(fleet: Fleet, directory: Path) -> AsyncIterator[tuple[ShadowBroker, Client]]:
    async with (
        controllers_of(fleet) as controllers,
        Client(fleet.bootstrap, fleet.security()) as brokers,
        ShadowBroker(controllers, brokers, shadow_settings(fleet, directory)) as shadow,
    ):
        yield shadow, brokers
