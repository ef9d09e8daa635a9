"""Where things lie under PENSTOCK_HOME.

secrets/                    platform.key, the CA; only this user may read it
clusters/<name>/cluster.json    ids and ports fixed at the first start
clusters/<name>/<node>/         server.properties, data/, logs/, lock, process.json
supervisor.json, supervisor.lock, supervisor.log
adopted/<name>.json             clusters that are not ours, with their capabilities
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from penstock.model.errors.fleet import DirectoryNotWritable

SECRET_FILE_MODE = 0o600
SECRET_DIRECTORY_MODE = 0o700


@dataclass(frozen=True, slots=True)
class NodeLayout:
    root: Path

    @property
    def properties(self) -> Path:
        return self.root / "server.properties"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def meta(self) -> Path:
        """Written last when storage is formatted: with it, there is storage."""
        return self.data / "meta.properties"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def log(self) -> Path:
        return self.logs / "server.log"

    @property
    def console(self) -> Path:
        """What the JVM itself says: start-up failures, out of memory."""
        return self.logs / "console.log"

    @property
    def console_before(self) -> Path:
        """The same of the run before, so that neither grows for ever."""
        return self.logs / "console.log.1"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def record(self) -> Path:
        return self.root / "process.json"

    @property
    def keystore(self) -> Path:
        return self.root / "keystore.pem"


@dataclass(frozen=True, slots=True)
class Layout:
    home: Path

    def cluster(self, name: str) -> Path:
        return self.home / "clusters" / name

    def cluster_record(self, name: str) -> Path:
        return self.cluster(name) / "cluster.json"

    def node(self, cluster: str, node: str) -> NodeLayout:
        return NodeLayout(self.cluster(cluster) / node)

    @property
    def secrets(self) -> Path:
        return self.home / "secrets"

    @property
    def platform_key(self) -> Path:
        return self.secrets / "platform.key"

    @property
    def adopted(self) -> Path:
        return self.home / "adopted"

    @property
    def supervisor_lock(self) -> Path:
        return self.home / "supervisor.lock"

    @property
    def supervisor_record(self) -> Path:
        return self.home / "supervisor.json"

    @property
    def supervisor_log(self) -> Path:
        return self.home / "supervisor.log"

    @property
    def fleet_file(self) -> Path:
        """What the running fleet was asked to be, for `status`, `logs` and the next `up`."""
        return self.home / "fleet.json"


def write_atomically(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Replace a file so that a reader, or a crash, sees the old content or the new, never a half."""
    data = content.encode() if isinstance(content, str) else content
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def make_directory(path: Path, *, mode: int = 0o755) -> Path:
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise DirectoryNotWritable(directory=path, reason=error.strerror or error) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise DirectoryNotWritable(directory=path, reason="permission denied")
    return path
