"""API keys saved on this machine, so that `topic`, `produce` and `consume` need only a cluster's name.

One file for each logical cluster, below the home's secrets, readable by this user alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.atomic_files import write_atomically
from penstock.fleet.layout import SECRET_DIRECTORY_MODE, SECRET_FILE_MODE, make_directory
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism, Security, tls_context
from penstock.model.errors.control import KeyNotStored
from penstock.model.errors.settings import UsageInvalid
from penstock.platform.control_client import ControlClient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.fleet.layout import Layout

DIRECTORY: Final = "keys"


@dataclass(frozen=True, slots=True)
class SavedKey:
    cluster: str
    name: str
    bootstrap: str
    key: str
    secret: str = field(repr=False)
    tls: bool = False
    ca: str = ""  # path of the CA's certificate; empty: the system's CAs

    @property
    def login(self) -> Login:
        return Login(self.key, self.secret, Mechanism.PLAIN)

    def client(self) -> Client:
        tls = tls_context(Path(self.ca) if self.ca else None) if self.tls else None
        return Client(self.bootstrap, Security(self.login, tls))


def create_key(
    control: ControlClient,
    layout: Layout,
    cluster: Mapping[str, Any],
    account: str | None = None,
    description: str = "",
    *,
    wait: Callable[[ControlClient, dict[str, Any]], object] = ControlClient.wait,
) -> SavedKey:
    """Create an API key, wait until it works, and save it. Without an account it is the owner's."""
    created = control.change(
        "POST", f"/clusters/{cluster['id']}/keys", {"account": account, "description": description}
    )
    wait(control, created["operation"])
    key = SavedKey(
        cluster["id"],
        cluster["name"],
        cluster["bootstrap"],
        created["key"]["id"],
        created["secret"],
        tls=cluster.get("tls", False),
    )
    save_key(layout, key)
    return key


def save_key(layout: Layout, key: SavedKey) -> Path:
    make_directory(layout.secrets, mode=SECRET_DIRECTORY_MODE)
    directory = make_directory(layout.secrets / DIRECTORY, mode=SECRET_DIRECTORY_MODE)
    path = directory / f"{key.cluster or key.key}.json"
    write_atomically(path, json.dumps(asdict(key)), mode=SECRET_FILE_MODE)
    return path


def delete_key(layout: Layout, cluster: str) -> None:
    (layout.secrets / DIRECTORY / f"{cluster}.json").unlink(missing_ok=True)


def saved_keys(layout: Layout) -> list[SavedKey]:
    paths = sorted((layout.secrets / DIRECTORY).glob("*.json"))
    return [SavedKey(**json.loads(path.read_text())) for path in paths]


def saved_key(layout: Layout, cluster: str | None) -> SavedKey:
    """The key of a cluster, by id or name; without a cluster, the only key there is."""
    keys = saved_keys(layout)
    if cluster is not None:
        for key in keys:
            if cluster in (key.cluster, key.name):
                return key
        raise KeyNotStored(cluster=cluster)
    if len(keys) == 1:
        return keys[0]
    if not keys:
        raise KeyNotStored(cluster="…")
    names = ", ".join(key.name for key in keys)
    raise UsageInvalid(
        reason="several logical clusters have an API key here",
        way_out=f"Name one with --cluster: {names}.",
    )
