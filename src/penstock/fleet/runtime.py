"""Obtain what is needed to start nodes: Java, Kafka's jars, the launcher and the class-data archive."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from penstock.fleet.class_archive import archive_path, ensure_archive
from penstock.fleet.jars import KAFKA_VERSION, cache_directory, fetch_jars, jars_directory, load_jars
from penstock.fleet.java import find_java
from penstock.fleet.launcher import ensure_launcher
from penstock.fleet.node import Runtime
from penstock.wire import definitions

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


async def obtain_runtime(
    progress: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> Runtime:
    """Find or create the runtime; `progress` wraps each slow step with a description of it."""
    java = find_java()
    cache = cache_directory()
    if not jars_directory(cache).exists():
        with progress(f"downloading Kafka {KAFKA_VERSION} with Maven, once"):
            fetch_jars(cache)
    jars = load_jars(cache)
    ensure_launcher(jars.directory.parent)
    if not definitions.DATA_FILE.exists():  # a wheel contains them, a checkout generates them
        definitions.write(jars.directory)
    path = archive_path(java, jars)
    if not path.exists():
        with progress("preparing Kafka's classes for quick starts, once"):
            await ensure_archive(java, jars)
    return Runtime(java, jars, path)
