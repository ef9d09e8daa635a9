"""API keys that are kept here, so that `topic`, `produce` and `consume` need no more than a cluster's name.

One file a key under the home's secrets, readable by this user alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.fleet.layout import SECRET_DIRECTORY_MODE, SECRET_FILE_MODE, make_directory, write_atomically
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.errors.control import KeyNotHere
from penstock.model.errors.settings import UsageInvalid

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.fleet.layout import Layout

DIRECTORY: Final = "keys"


@dataclass(frozen=True, slots=True)
class Kept:
    cluster: str
    name: str
    bootstrap: str
    key: str
    secret: str = field(repr=False)

    def client(self) -> Client:
        return Client(self.bootstrap, Security(Login(self.key, self.secret, Mechanism.PLAIN)))


def keep(layout: Layout, kept: Kept) -> Path:
    make_directory(layout.secrets, mode=SECRET_DIRECTORY_MODE)
    directory = make_directory(layout.secrets / DIRECTORY, mode=SECRET_DIRECTORY_MODE)
    path = directory / f"{kept.cluster}.json"
    write_atomically(path, json.dumps(asdict(kept)), mode=SECRET_FILE_MODE)
    return path


def forget(layout: Layout, cluster: str) -> None:
    (layout.secrets / DIRECTORY / f"{cluster}.json").unlink(missing_ok=True)


def every(layout: Layout) -> list[Kept]:
    paths = sorted((layout.secrets / DIRECTORY).glob("*.json"))
    return [Kept(**json.loads(path.read_text())) for path in paths]


def kept_for(layout: Layout, cluster: str | None) -> Kept:
    """By id or name; without either, the only one there is."""
    known = every(layout)
    if cluster is not None:
        for one in known:
            if cluster in (one.cluster, one.name):
                return one
        raise KeyNotHere(cluster=cluster)
    if len(known) == 1:
        return known[0]
    if not known:
        raise KeyNotHere(cluster="…")
    names = ", ".join(one.name for one in known)
    raise UsageInvalid(
        reason="which logical cluster is meant?", way_out=f"Say --cluster with one of {names}."
    )
