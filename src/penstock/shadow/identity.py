"""The ids of a shadow, kept on disk: its log directory stays the same, its incarnation does not.

The controller elects no broker whose log directory is not the one that its replicas were assigned to
(KIP-858). So the id of the directory follows from the cluster and the broker: a shadow that is started on
another host, without the file, may lead its partitions again.

A shadow that restarts has lost its window of records. So it registers with a new incarnation and without a
previous broker epoch: the controller takes that for an unclean shutdown and removes it from the in-sync
replicas (KIP-966), until it has caught up with a real leader.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4, uuid5

from penstock.atomic_files import write_atomically
from penstock.model.errors.shadow import ShadowStateUnreadable

if TYPE_CHECKING:
    from pathlib import Path

NO_BROKER_EPOCH: Final = -1
_NAMESPACE: Final = UUID("6f1c7a52-0d1e-4b7e-9a55-3d0c3c1f7e10")


@dataclass(frozen=True, slots=True)
class Identity:
    broker_id: int
    cluster_id: str
    directory_id: UUID
    incarnation_id: UUID


def load_identity(directory: Path, broker_id: int, cluster_id: str) -> Identity:
    """The shadow of this id, in a new incarnation. Several may share a directory, in one cluster."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"shadow-{broker_id}.json"
    directory_id = uuid5(_NAMESPACE, f"{cluster_id} {broker_id}")
    if path.exists():
        try:
            stored = json.loads(path.read_text())
            owner = (stored["broker_id"], stored["cluster_id"])
            directory_id = UUID(stored["directory_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise ShadowStateUnreadable(path=path, reason=f"it is damaged: {error}") from error
        if owner != (broker_id, cluster_id):
            reason = f"it belongs to broker {owner[0]} of cluster {owner[1]}"
            raise ShadowStateUnreadable(path=path, reason=reason)
    else:
        document = {"broker_id": broker_id, "cluster_id": cluster_id, "directory_id": str(directory_id)}
        write_atomically(path, json.dumps(document))
    return Identity(broker_id, cluster_id, directory_id, uuid4())
