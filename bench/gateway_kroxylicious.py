"""Kroxylicious with its MultiTenant filter before the same broker: a peer that renames, on the JVM.

Its jars are resolved with Maven into the cache, once. Where that fails, the reason is the line's.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from penstock.fleet.jars import cache_directory
from penstock.fleet.java import find_java
from penstock.model.errors import PenstockError

PLACE = Path(__file__).parent / "kroxylicious"
VERSION = "0.12.0"
RESOLVE_SECONDS = 240.0
HEAP = "-Xmx512m"


class Missing(Exception):
    """It cannot run here; the text says why."""


def jars() -> Path:
    """The folder of its jars; resolved if it is not there."""
    folder = cache_directory() / f"kroxylicious-{VERSION}"
    if folder.is_dir():
        return folder
    if shutil.which("mvn") is None:
        raise Missing("Maven is not installed, which resolves Kroxylicious")
    half = folder.with_suffix(".half")
    command = ["mvn", "-q", "-B", "-f", str(PLACE / "pom.xml"), "dependency:copy-dependencies"]
    try:
        done = subprocess.run(
            [*command, f"-DoutputDirectory={half}"],
            capture_output=True,
            text=True,
            timeout=RESOLVE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise Missing(f"Maven did not resolve Kroxylicious {VERSION} in {RESOLVE_SECONDS:.0f} s") from late
    if done.returncode:
        raise Missing(f"Kroxylicious {VERSION} does not resolve from Maven")
    half.rename(folder)
    return folder


def start(home: Path, tenant: str, broker_id: int, broker_port: int, port: int) -> subprocess.Popen[bytes]:
    """Listens on `port` to begin with, and on the next one for the broker."""
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
    command = [str(java), HEAP, "-cp", f"{folder}/*", str(PLACE / "Launch.java"), str(config)]
    with (home / "kroxylicious.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)
