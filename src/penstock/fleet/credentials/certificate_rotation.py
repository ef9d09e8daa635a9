"""Replace the certificates of running nodes without a restart.

A node reloads its key store when its configuration sets the store's location again (KIP-226), even to
the same path, because Kafka compares modification times. Rotation writes a new file and then makes that
call. Open connections keep the old certificate; new ones get the new one.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from penstock.fleet.readiness import security_of
from penstock.fleet.spec import Listener
from penstock.kafka.admin import configs
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client

if TYPE_CHECKING:
    from penstock.fleet.local_fleet import LocalFleet
    from penstock.fleet.node import Node


async def rotate_certificates(fleet: LocalFleet) -> list[str]:
    """Rotate one node after another; returns the names of the rotated nodes."""
    rotated = []
    for node in fleet.nodes:
        if node.cluster.spec.tls and node.running() is not None:
            fleet.ensure_certificate(node, now=dt.datetime.now(dt.UTC), force=True)
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
        results_or_raise(await configs.alter(client, {configs.broker(node.spec.id): changes}))
