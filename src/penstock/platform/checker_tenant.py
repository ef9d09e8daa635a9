"""The health checker's tenant: a logical cluster with a small quota and a key kept with the home's secrets.

The key is not in the keyring: commands for tenants would find it there.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.atomic_files import write_atomically
from penstock.control.health.probe_tenants import CHECKER_LABEL
from penstock.control.physical.local import fleet_clusters
from penstock.fleet.credentials.passwords import PLATFORM_USER
from penstock.fleet.layout import SECRET_DIRECTORY_MODE, SECRET_FILE_MODE, make_directory
from penstock.fleet.local_fleet import load_fleet
from penstock.health.checker import ProbedCluster
from penstock.kafka.security import Login, Mechanism, Security, tls_context
from penstock.model.errors import PenstockError
from penstock.model.errors.control import ProblemResponse
from penstock.model.events import Dimension
from penstock.platform.control_client import connect
from penstock.platform.keyring import SavedKey

if TYPE_CHECKING:
    from penstock.fleet.layout import Layout
    from penstock.platform.control_client import ControlClient

NAME: Final = "penstock-health"
FILE: Final = "checker.json"
READY_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.5
BROKER_BYTES: Final = 20_000.0  # a second and broker, in each direction
BROKER_REQUESTS: Final = 50.0  # a second and broker
BROKER_CONNECTIONS: Final = 20.0
_NAME_TAKEN: Final = "PEN-5003"


@dataclass(frozen=True, slots=True)
class CheckerTenant:
    layout: Layout
    url: str  # of the control plane

    async def create(self) -> None:
        """Creates the logical cluster and its key, or finds those of an earlier start."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                return await asyncio.to_thread(self._create)
            except PenstockError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(POLL_SECONDS)

    def _create(self) -> None:
        control = connect(self.layout, self.url)
        brokers = len(fleet_clusters(self.layout)[0].brokers)
        try:
            body = {"name": NAME, "labels": dict([CHECKER_LABEL]), "overrides": small_quota(brokers)}
            control.wait(control.change("POST", "/clusters", body)["operation"])
        except ProblemResponse as error:
            if error.code != _NAME_TAKEN:
                raise
        cluster: dict[str, Any] = control.get(f"/clusters/{NAME}")
        known = read_key(self.layout)
        if known is None or (known.cluster, known.bootstrap) != (cluster["id"], cluster["bootstrap"]):
            _save(self.layout, _new_key(control, cluster))


def small_quota(brokers: int) -> dict[str, float]:
    """Enough for the probes of so many brokers, and for little else."""
    return {
        str(Dimension.INGRESS_BYTES): BROKER_BYTES * brokers,
        str(Dimension.EGRESS_BYTES): 4 * BROKER_BYTES * brokers,
        str(Dimension.REQUESTS): BROKER_REQUESTS * brokers,
        str(Dimension.CONNECTIONS): BROKER_CONNECTIONS * brokers,
    }


def read_key(layout: Layout) -> SavedKey | None:
    try:
        return SavedKey(**json.loads((layout.secrets / FILE).read_text()))
    except FileNotFoundError:
        return None


async def probed_clusters(layout: Layout) -> tuple[ProbedCluster, ...]:
    """The home cluster, once the checker's tenant exists."""
    while (key := await asyncio.to_thread(read_key, layout)) is None:
        await asyncio.sleep(POLL_SECONDS)
    provided = fleet_clusters(layout)[0]
    login = Login(PLATFORM_USER, provided.key.password(PLATFORM_USER), Mechanism.SCRAM_SHA_512)
    tls = tls_context(Path(key.ca) if key.ca else None) if key.tls else None
    nodes = [node for node in load_fleet(layout).nodes if node.cluster.spec.name == provided.name]
    return (
        ProbedCluster(
            provided.id,
            provided.name,
            provided.bootstrap,
            Security(login, provided.tls),
            tenant=key.cluster,
            gateways=key.bootstrap,
            tenant_security=Security(key.login, tls),
            directories={node.spec.id: node.layout.data for node in nodes if node.spec.is_broker},
        ),
    )


def _new_key(control: ControlClient, cluster: dict[str, Any]) -> SavedKey:
    body = {"account": None, "description": "of the health checker"}
    created = control.change("POST", f"/clusters/{cluster['id']}/keys", body)
    control.wait(created["operation"])
    return SavedKey(
        cluster["id"],
        cluster["name"],
        cluster["bootstrap"],
        created["key"]["id"],
        created["secret"],
        tls=cluster.get("tls", False),
    )


def _save(layout: Layout, key: SavedKey) -> None:
    make_directory(layout.secrets, mode=SECRET_DIRECTORY_MODE)
    write_atomically(layout.secrets / FILE, json.dumps(asdict(key)), mode=SECRET_FILE_MODE)
