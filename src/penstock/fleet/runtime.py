"""Obtain what is needed to start nodes: Java, jars, launcher, plugin, class-data archive."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.fleet.class_archive import archive_path, ensure_archive
from penstock.fleet.jars import KAFKA_VERSION, cache_directory, fetch_jars, jars_directory, load_jars
from penstock.fleet.java import find_java
from penstock.fleet.launcher import ensure_launcher
from penstock.fleet.node import Runtime
from penstock.fleet.versions import fetch_version, pin_of
from penstock.tier import plugin_jar
from penstock.wire import definitions

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from penstock.fleet.local_fleet import LocalFleet
    from penstock.fleet.spec import ClusterSpec


async def obtain_runtime(
    progress: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(), version: str = ""
) -> Runtime:
    """Find or create the runtime of a Kafka version; `progress` wraps each slow step with its description."""
    java = find_java()
    cache = cache_directory()
    pin = pin_of(cache, version)
    if version not in ("", KAFKA_VERSION) and pin is None:
        with progress(f"downloading Kafka {version} with Maven, once"):
            pin = await asyncio.to_thread(fetch_version, cache, version)
    if not jars_directory(cache, pin).exists():
        with progress(f"downloading Kafka {version or KAFKA_VERSION} with Maven, once"):
            fetch_jars(cache, pin=pin)
    jars = load_jars(cache, pin)
    ensure_launcher(jars.directory.parent)
    if plugin_jar.ensure_compiled(plugin_jar.TIER, java.executable, sorted(jars.directory.glob("*.jar"))):
        jars = replace(jars, plugin=plugin_jar.place(plugin_jar.TIER, jars.directory.parent))
    if pin is None and not definitions.DATA_FILE.exists():  # a wheel contains them, a checkout generates them
        definitions.write(jars.directory)
    path = archive_path(java, jars)
    if not path.exists():
        with progress("preparing Kafka's classes for quick starts, once"):
            await ensure_archive(java, jars)
    return Runtime(java, jars, path)


async def runtime_of(spec: ClusterSpec) -> Runtime:
    """The runtime of a cluster's version."""
    return await obtain_runtime(version=spec.kafka)


async def use_versions(fleet: LocalFleet) -> None:
    """Gives the nodes of clusters with another version than the pinned one their runtime."""
    for cluster in fleet.clusters:
        if cluster.cluster.spec.kafka:
            runtime = await runtime_of(cluster.cluster.spec)
            for node in cluster.nodes:
                node.runtime = runtime
