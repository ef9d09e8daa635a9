"""New certificates without a restart.

A node re-reads its key store when its configuration names the store again (KIP-226), even if
under the same path: Kafka looks at the file's time. So rotation is a new file, then that call.
Connections that are open stay as they are; new ones get the new certificate.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from penstock.fleet.readiness import security_of
from penstock.fleet.spec import Listener
from penstock.kafka import configs
from penstock.kafka.client import Client
from penstock.kafka.outcomes import all_done

if TYPE_CHECKING:
    from penstock.fleet.local import LocalFleet
    from penstock.fleet.node import Node


async def rotate_certificates(fleet: LocalFleet) -> list[str]:
    """One node after the other; the names of those that were given a new certificate."""
    rotated = []
    for node in fleet.nodes:
        if node.cluster.spec.tls and node.running() is not None:
            fleet.certify(node, now=dt.datetime.now(dt.UTC), force=True)
            await _reload(node)
            rotated.append(node.name)
    return rotated


async def _reload(node: Node) -> None:
    listeners = [listener for listener in node.spec.ports if listener is not Listener.METRICS]
    changes = configs.changes(
        {f"listener.name.{name}.ssl.keystore.location": str(node.layout.keystore) for name in listeners}
    )
    address = node.spec.address(node.spec.probe_listener)
    async with Client(address, security_of(node), controllers=not node.spec.is_broker) as client:
        all_done(await configs.alter(client, {configs.broker(node.spec.id): changes}))
