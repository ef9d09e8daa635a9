"""The class-data archive: classes parsed once, mapped into every node after.

It more than halves a node's start. One is made for each pair of Java runtime and jars, by running
a throw-away node that writes its loaded classes down when it ends. A JVM that cannot use an
archive ignores it, so this is never a reason to fail.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from penstock.fleet.layout import Layout
from penstock.fleet.local import open_fleet
from penstock.fleet.node import Runtime
from penstock.fleet.parse import parse_fleet
from penstock.fleet.readiness import wait_until_ready
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.fleet.jars import Jars
    from penstock.fleet.java import Java

STOP_AND_DUMP_SECONDS_MAX = 60.0
LOOK_SECONDS_BETWEEN = 0.1

log = structlog.get_logger()

_TRAINING = {"clusters": [{"combined": True, "brokers": 1, "zones": ["a"], "port": 0}]}


def archive_path(java: Java, jars: Jars) -> Path:
    """Named for all that it is valid for: the runtime, and the class path to the letter."""
    key = hashlib.sha256(f"{java.fingerprint}\0{jars.classpath}".encode()).hexdigest()[:8]
    return jars.directory.parent / f"classes-{key}.jsa"


async def ensure_archive(java: Java, jars: Jars) -> Path | None:
    """The archive for this runtime, made if there is none yet; two makers wait for one another.

    None where none could be made: a fleet without starts more slowly, and that is all.
    """
    path = archive_path(java, jars)
    if path.exists():
        return path
    try:
        with path.with_suffix(".lock").open("w") as lock:
            await _locked(lock.fileno())
            if not path.exists():
                await _make(path, java, jars)
    except (OSError, PenstockError) as error:
        log.warning("no class-data archive could be made", error=str(error))
        return None
    return path


async def _locked(descriptor: int) -> None:
    """Wait for the lock in a way that a signal can end."""
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(LOOK_SECONDS_BETWEEN)


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
