"""From a home and a settings file to a runner: which cluster, which lake, which Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.fleet.local import watched_fleet
from penstock.fleet.passwords import PLATFORM_USER, SCRAM_MECHANISM
from penstock.kafka.security import Mechanism
from penstock.pipeline.runner import Runner
from penstock.pipeline.session import open_session
from penstock.pipeline.settings import Connection, default_settings, read_settings

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.fleet.layout import Layout
    from penstock.pipeline.settings import PipelineSettings


def settings_for(layout: Layout, file: Path | None, master: str | None = None) -> PipelineSettings:
    """The file's settings, or those of this home; `master` goes before both."""
    settings = default_settings(layout.home) if file is None else read_settings(file, layout.home)
    if master is None:
        return settings
    return replace(settings, engine=replace(settings.engine, master=master))


def connection_for(settings: PipelineSettings, layout: Layout) -> Connection:
    """As the settings say; else the embedded fleet, as the platform itself. Raises NotRunning."""
    if settings.connection is not None:
        return settings.connection
    fleet = watched_fleet(layout)
    spec = fleet.clusters[0].cluster.spec
    return Connection(
        spec.bootstrap(),
        PLATFORM_USER,
        fleet.access.credentials.platform,
        Mechanism(SCRAM_MECHANISM),
        fleet.access.ca if spec.tls else None,
    )


def runner_for(settings: PipelineSettings, connection: Connection) -> Runner:
    session = open_session(settings.lake, settings.engine, scratch=settings.state / "scratch")
    return Runner(session, settings, connection)
