"""The files and directories below PENSTOCK_HOME.

secrets/                        platform.key and the CA, readable by this user only
clusters/<name>/cluster.json    ids and ports fixed at the first start
clusters/<name>/<node>/         server.properties, data/, logs/, lock, process.json, order.json
tier/                           tiered segments, if they are stored in files
documents/<digest>.json         fleet documents that nodes were started with
supervisor.json, supervisor.lock, supervisor.log
adopted/<name>.json             adopted clusters with their capabilities
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.model.errors.fleet import DirectoryNotWritable

if TYPE_CHECKING:
    from pathlib import Path

START_FACTS = "start.json"
ORDER = "order.json"
CLUSTERS = "clusters"
SECRET_FILE_MODE = 0o600
SECRET_DIRECTORY_MODE = 0o700


class NodeLayout:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root.parent.parent.parent
        self.properties = root / "server.properties"
        self.data = root / "data"
        # Kafka writes it last when it formats storage, so it exists only for complete storage.
        self.meta = self.data / "meta.properties"
        self.logs = root / "logs"
        self.log = self.logs / "server.log"
        self.console = self.logs / "console.log"  # the output of the JVM: start-up failures, out of memory
        # The console of the previous run, so that neither file grows without bound.
        self.console_before = self.logs / "console.log.1"
        self.lock = root / "lock"
        self.record = root / "process.json"
        self.start_facts = root / START_FACTS  # what the next process adds to its record
        self.order = root / ORDER  # whether it must run, and for which request
        self.keystore = root / "keystore.pem"


class Layout:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.secrets = home / "secrets"
        self.platform_key = self.secrets / "platform.key"
        self.adopted = home / "adopted"
        self.supervisor_lock = home / "supervisor.lock"
        self.supervisor_record = home / "supervisor.json"
        self.supervisor_log = home / "supervisor.log"
        self.documents = home / "documents"  # fleet documents that nodes run with, by digest
        self.fleet_file = home / "fleet.json"  # the document of the last `up`, for `status`, `logs`, `up`

    def cluster(self, name: str) -> Path:
        return self.home / CLUSTERS / name

    def cluster_record(self, name: str) -> Path:
        return self.cluster(name) / "cluster.json"

    def node(self, cluster: str, node: str) -> NodeLayout:
        return NodeLayout(self.cluster(cluster) / node)


def make_directory(path: Path, *, mode: int = 0o755) -> Path:
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise DirectoryNotWritable(directory=path, reason=error.strerror or error) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise DirectoryNotWritable(directory=path, reason="permission denied")
    return path
