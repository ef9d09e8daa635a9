"""Starts Kroxylicious with its multi-tenant filter in front of the same broker: a peer on the JVM that
renames.

Maven resolves its jars into the cache once. If that fails, the reason is reported with the result.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from penstock.fleet.jars import cache_directory
from penstock.fleet.java import find_java
from penstock.model.errors import PenstockError

DIRECTORY = Path(__file__).parent / "kroxylicious"
VERSION = "0.12.0"
RESOLVE_SECONDS = 240.0
HEAP = "-Xmx512m"


class Missing(Exception):
    """It cannot run here; the message gives the reason."""


def jars() -> Path:
    """The folder of its jars, resolved if missing."""
    folder = cache_directory() / f"kroxylicious-{VERSION}"
    if folder.is_dir():
        return folder
    if shutil.which("mvn") is None:
        raise Missing("Kroxylicious needs Maven, which is not installed")
    partial = folder.with_suffix(".part")
    command = ["mvn", "-q", "-B", "-f", str(DIRECTORY / "pom.xml"), "dependency:copy-dependencies"]
    try:
        done = subprocess.run(
            [*command, f"-DoutputDirectory={partial}"],
            capture_output=True,
            text=True,
            timeout=RESOLVE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise Missing(f"Maven did not resolve Kroxylicious {VERSION} in {RESOLVE_SECONDS:.0f} s") from late
    if done.returncode:
        raise Missing(f"Maven cannot resolve Kroxylicious {VERSION}")
    partial.rename(folder)
    return folder


def start(home: Path, tenant: str, broker_id: int, broker_port: int, port: int) -> subprocess.Popen[bytes]:
    """Starts it; it listens on `port` for bootstrap, and on the next one for the broker."""
    folder = jars()
    try:
        java = find_java().executable
    except PenstockError as missing:
        raise Missing(str(missing)) from missing
    config = home / "kroxylicious.yaml"
    config.write_text(
        f"""filterDefinitions:
- name: tenants
  type: MultiTenantTransformationFilterFactory
  config:
    prefixResourceNameSeparator: "_"
virtualClusters:
- name: {tenant}
  targetCluster:
    bootstrapServers: 127.0.0.1:{broker_port}
  gateways:
  - name: default
    portIdentifiesNode:
      bootstrapAddress: localhost:{port}
      nodeIdRanges:
      - {{name: brokers, start: {broker_id}, end: {broker_id}}}
  filters: [tenants]
"""
    )
    command = [str(java), HEAP, "-cp", f"{folder}/*", str(DIRECTORY / "Launch.java"), str(config)]
    with (home / "kroxylicious.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)
