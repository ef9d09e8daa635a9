"""Builds a runner from a home and a settings file: which cluster, which lake, which Spark."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.fleet.credentials.passwords import PLATFORM_USER, SCRAM_MECHANISM
from penstock.fleet.local_fleet import load_fleet
from penstock.kafka.security import Mechanism
from penstock.pipeline.jobs import with_topics
from penstock.pipeline.runner import Runner
from penstock.pipeline.settings import Connection, default_settings, read_settings
from penstock.pipeline.spark.kafka import topic_names
from penstock.pipeline.spark.session import open_session

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.fleet.layout import Layout
    from penstock.pipeline.settings import PipelineSettings


def settings_for(layout: Layout, file: Path | None, master: str | None = None) -> PipelineSettings:
    """The settings of the file, else the defaults of this home; `master` overrides both.

    Jobs of patterns are not among them: that takes `match_topics`."""
    settings = default_settings(layout.home) if file is None else read_settings(file, layout.home)
    if master is None:
        return settings
    return replace(settings, engine=replace(settings.engine, master=master))


def connection_for(settings: PipelineSettings, layout: Layout) -> Connection:
    """The configured connection, else the embedded fleet as the platform user. Raises NotRunning."""
    if settings.connection is not None:
        return settings.connection
    fleet = load_fleet(layout)
    spec = fleet.clusters[0].cluster.spec
    return Connection(
        spec.bootstrap(),
        PLATFORM_USER,
        fleet.access.credentials.platform,
        Mechanism(SCRAM_MECHANISM),
        fleet.access.ca if spec.tls else None,
    )


def match_topics(settings: PipelineSettings, layout: Layout) -> PipelineSettings:
    """The settings with the jobs of patterns, for the topics that exist now."""
    if not settings.patterns:
        return settings
    return with_topics(settings, asyncio.run(topic_names(connection_for(settings, layout))))


def runner_for(settings: PipelineSettings, connection: Connection) -> Runner:
    session = open_session(settings.lake, settings.engine, scratch=settings.state / "scratch")
    return Runner(session, settings, connection)
