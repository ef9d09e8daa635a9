"""The backups of the known clusters, in the active control plane: their state, plans, and what is deleted.

A cluster's backup is described by a settings file (`penstock.backup.settings`), which only the control plane
and the backup's own process need. The archiver and the brokers create objects. The active control plane
alone deletes them, once an hour: segments of the tier that Kafka deleted long enough ago, and what has
expired of the backup. Before every object it checks that it still leads.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.backup import expirer
from penstock.backup.archive import Archive
from penstock.backup.catalogue import Catalogue
from penstock.backup.holds import holds
from penstock.backup.overview import listed_topics, status_of
from penstock.backup.planning import make_plan
from penstock.backup.restore_store import running_restore
from penstock.backup.settings import read_backup_settings
from penstock.model.errors import PenstockError
from penstock.model.errors.backup import BackupNotConfigured
from penstock.tier import sweeper
from penstock.tier.store import Store
from penstock.tier.sweeper import SweepSettings, unless_restoring

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.backup.planning import Selection
    from penstock.backup.restore_plan import RestorePlan
    from penstock.backup.settings import BackupSettings
    from penstock.control.physical.cluster_access import Clusters, ProvidedCluster
    from penstock.kafka.client import Client

SWEEP_SECONDS: Final = 3600.0
FIRST_SECONDS: Final = 60.0  # after this process began to lead
POLL_SECONDS: Final = 1.0

log = structlog.get_logger("penstock.control")


@dataclass(frozen=True, slots=True)
class Sweep:
    """What one run deleted, and why it did not delete more."""

    at_ms: int
    tier_objects: int = 0
    backup_objects: int = 0
    postponed: int = 0  # segments beyond the limits of a run
    orphans: int = 0
    missing: int = 0
    refused: str = ""  # by the sweep of the tier or the expiry of the backup
    error: str = ""


@dataclass(frozen=True, slots=True)
class Swept:
    """The sweeps of one cluster since this control plane started."""

    last: Sweep
    objects: int = 0  # deleted, by all of them
    complete_ms: int = 0  # the last one that nothing refused and that did not fail


@dataclass(frozen=True, slots=True)
class BackupFacts:
    """A backup without a look at its store."""

    physical_cluster: str
    name: str
    store: str
    tier: str
    keep_days: float
    last_sweep: Sweep | None


@dataclass(frozen=True, slots=True)
class _Opened:
    settings: BackupSettings
    client: Client
    cluster: str
    store: Store
    tier: Store | None

    @property
    def archive(self) -> Archive:
        return Archive(self.cluster, [self.store] if self.tier is None else [self.store, self.tier])

    @property
    def catalogue(self) -> Catalogue:
        return Catalogue(self.store, self.cluster)


class Backups:
    def __init__(
        self, clusters: Clusters, leads: Callable[[], bool], *, sweep_seconds: float = SWEEP_SECONDS
    ) -> None:
        self._clusters = clusters
        self._leads = leads
        self._sweep_seconds = sweep_seconds
        self.swept: dict[str, Swept] = {}  # by physical cluster

    # Reading

    def known(self) -> list[BackupFacts]:
        return [self._facts(each) for each in self._clusters.known if each.backup is not None]

    async def status(self, cluster: str) -> tuple[BackupFacts, dict[str, Any]]:
        opened = self._open(cluster)
        state = await status_of(opened.client, opened.archive, opened.catalogue, opened.store)
        return self._facts(self._clusters.get(cluster)), state

    async def topics(self, cluster: str) -> list[dict[str, Any]]:
        opened = self._open(cluster)
        return await listed_topics(opened.client, opened.archive, opened.catalogue)

    async def plan(self, cluster: str, selection: Selection) -> RestorePlan:
        opened = self._open(cluster)
        return await make_plan(opened.client, opened.archive, opened.catalogue, selection)

    def _facts(self, provided: ProvidedCluster) -> BackupFacts:
        settings = self._settings(provided)
        tier = "" if settings.tier is None else Store(settings.tier).name
        store = Store(settings.store).name
        swept = self.swept.get(provided.id)
        last = swept.last if swept is not None else None
        return BackupFacts(provided.id, provided.name, store, tier, settings.keep_days, last)

    def _settings(self, provided: ProvidedCluster) -> BackupSettings:
        if provided.backup is None:
            raise BackupNotConfigured(cluster=provided.id)
        return read_backup_settings(provided.backup)  # at every use, so that new credentials take effect

    def _open(self, cluster: str) -> _Opened:
        provided = self._clusters.get(cluster)
        settings = self._settings(provided)
        tier = None if settings.tier is None else Store(settings.tier)
        client = self._clusters.client(cluster)
        return _Opened(settings, client, provided.kafka_id, Store(settings.store), tier)

    # Deleting

    async def run(self) -> None:
        """Sweep every cluster once an hour while this control plane leads."""
        due_at = float("inf")
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = time.monotonic()
            if not self._leads():
                due_at = float("inf")
            elif due_at == float("inf"):
                due_at = now + min(FIRST_SECONDS, self._sweep_seconds)
            elif now >= due_at:
                due_at = now + self._sweep_seconds
                for provided in self._clusters.known:
                    if provided.backup is not None:
                        await self.sweep(provided.id)

    async def sweep(self, cluster: str) -> Sweep:
        """One run for one cluster. A failure is recorded, and the next run continues."""
        at_ms = int(time.time() * 1000)
        try:
            done = await self._sweep(self._open(cluster), at_ms)
        except PenstockError as failure:
            log.warning("backup not swept", cluster=cluster, error=str(failure))
            done = Sweep(at_ms, error=str(failure))
        except Exception as failure:  # one cluster's store must not end the control plane
            log.exception("backup not swept", cluster=cluster)
            done = Sweep(at_ms, error=repr(failure))
        before = self.swept.get(cluster)
        objects = (before.objects if before else 0) + done.tier_objects + done.backup_objects
        complete_ms = before.complete_ms if before else 0
        if not done.error and not done.refused:
            complete_ms = at_ms
        self.swept[cluster] = Swept(done, objects, complete_ms)
        return done

    async def _sweep(self, opened: _Opened, at_ms: int) -> Sweep:
        restore_running = bool(await running_restore(opened.client))
        may_delete = unless_restoring(self._leads, lambda: running_restore(opened.client))
        keep_days = opened.settings.keep_days
        refused, tier_objects, postponed, orphans, missing = [], 0, 0, 0, 0
        if opened.tier is not None:
            held = tuple(await holds(opened.store, opened.cluster))
            facts = SweepSettings(keep_days, held, restore_running)
            plan = await sweeper.plan_sweep(opened.client, opened.tier, facts)
            tier_objects = await sweeper.carry_out(opened.tier, plan, may_delete=may_delete)
            refused.append(plan.refused)
            postponed, orphans, missing = plan.postponed, len(plan.orphans), len(plan.missing)
        expiry = await expirer.plan_expiry(
            opened.store, opened.cluster, keep_days, restore_running=restore_running
        )
        backup_objects = await expirer.carry_out(opened.store, opened.cluster, expiry, may_delete=may_delete)
        refused.append(expiry.refused)
        return Sweep(
            at_ms,
            tier_objects,
            backup_objects,
            postponed + expiry.postponed,
            orphans,
            missing,
            "; ".join(dict.fromkeys(one for one in refused if one)),
        )
