"""Create the JVM class-data archive, which more than halves the start time of a node.

There is one archive per Java runtime and set of jars. A temporary node creates it: the JVM dumps its
loaded classes when it exits. A JVM that cannot use the archive ignores it, so a missing archive is
never an error.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import open_fleet
from penstock.fleet.node import Runtime
from penstock.fleet.readiness import wait_until_ready
from penstock.fleet.spec_file import parse_fleet
from penstock.model.errors import PenstockError
from penstock.process_identity import try_lock

if TYPE_CHECKING:
    from penstock.fleet.jars import Jars
    from penstock.fleet.java import Java

STOP_AND_DUMP_SECONDS_MAX = 60.0
POLL_SECONDS = 0.1

log = structlog.get_logger()

_TRAINING = {"clusters": [{"combined": True, "brokers": 1, "zones": ["a"], "port": 0}]}


def archive_path(java: Java, jars: Jars) -> Path:
    """Its path, which depends on the runtime and on the exact class path it is valid for."""
    key = hashlib.sha256(f"{java.fingerprint}\0{jars.classpath}".encode()).hexdigest()[:8]
    return jars.directory.parent / f"classes-{key}.jsa"


async def ensure_archive(java: Java, jars: Jars) -> Path | None:
    """The archive for this runtime, created if needed; concurrent callers wait for each other.

    None if it could not be created: the fleet then just starts more slowly."""
    path = archive_path(java, jars)
    if path.exists():
        return path
    try:
        with path.with_suffix(".lock").open("w") as lock:
            await _locked(lock.fileno())
            if not path.exists():
                await _make(path, java, jars)
    except (OSError, PenstockError) as error:
        log.warning("class-data archive not created", error=str(error))
        return None
    return path


async def _locked(descriptor: int) -> None:
    """Wait for the lock; a signal can interrupt this."""
    while not try_lock(descriptor):
        await asyncio.sleep(POLL_SECONDS)


async def _make(path: Path, java: Java, jars: Jars) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-archive-", dir=path.parent) as scratch:
        fresh = Path(scratch) / "classes.jsa"
        layout = Layout(Path(scratch) / "home")
        flags = (f"-XX:ArchiveClassesAtExit={fresh}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
        runtime = Runtime(java, jars, archive=None, extra_flags=flags)
        fleet = open_fleet(parse_fleet(_TRAINING), layout, runtime)
        await fleet.prepare()
        (node,) = fleet.nodes
        await node.start()
        try:
            await wait_until_ready([node])
        finally:
            await node.stop(deadline=STOP_AND_DUMP_SECONDS_MAX)
        fresh.rename(path)
