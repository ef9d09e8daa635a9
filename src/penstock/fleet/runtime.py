"""Java, Kafka's jars and what is made of them: obtained once, with a word about what takes long."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from penstock.fleet.archive import archive_path, ensure_archive
from penstock.fleet.jars import KAFKA_VERSION, cache_directory, fetch_jars, jars_directory, load_jars
from penstock.fleet.java import find_java
from penstock.fleet.launcher import ensure_launcher
from penstock.fleet.node import Runtime
from penstock.wire import definitions

if TYPE_CHECKING:
    from collections.abc import Callable


def _silently(_doing: str) -> AbstractContextManager[None]:
    return nullcontext()


async def obtain_runtime(doing: Callable[[str], AbstractContextManager[None]] = _silently) -> Runtime:
    """What it takes to start nodes; `doing` is told of whatever takes long, and wraps it."""
    java = find_java()
    cache = cache_directory()
    if not jars_directory(cache).exists():
        with doing(f"fetching Kafka {KAFKA_VERSION} with Maven, once"):
            fetch_jars(cache)
    jars = load_jars(cache)
    ensure_launcher(jars.directory.parent)
    if not definitions.DATA_FILE.exists():  # a wheel brings them along, a checkout makes them
        definitions.write(jars.directory)
    path = archive_path(java, jars)
    if not path.exists():
        with doing("preparing Kafka's classes for quick starts, once"):
            await ensure_archive(java, jars)
    return Runtime(java, jars, path)
