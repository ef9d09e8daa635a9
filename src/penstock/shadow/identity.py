"""The ids of a shadow, kept on disk: its log directory stays the same, its incarnation does not.

A shadow that restarts has lost its window of records. So it registers with a new incarnation and without a
previous broker epoch: the controller takes that for an unclean shutdown and removes it from the in-sync
replicas (KIP-966), until it has caught up with a real leader.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from penstock.atomic_files import write_atomically
from penstock.model.errors.shadow import ShadowStateUnreadable

if TYPE_CHECKING:
    from pathlib import Path

NO_BROKER_EPOCH: Final = -1
_FILE: Final = "shadow.json"


@dataclass(frozen=True, slots=True)
class Identity:
    broker_id: int
    cluster_id: str
    directory_id: UUID
    incarnation_id: UUID


def load_identity(directory: Path, broker_id: int, cluster_id: str) -> Identity:
    """The shadow of this directory, in a new incarnation. Another broker's or cluster's is refused."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / _FILE
    directory_id = uuid4()
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
