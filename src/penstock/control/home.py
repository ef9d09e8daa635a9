"""A control plane's home: the cluster with the registry, and what a new leadership term writes first."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from penstock.control.decisions import Decision
from penstock.control.load.load_history import ensure_load_topic
from penstock.control.load.load_hours import ensure_load_hours_topic
from penstock.control.registration import registration
from penstock.control.registry import Change, Put, Registry
from penstock.fleet.adopted.capabilities import Capability
from penstock.gateway.process.tenant_source import provision_gateways
from penstock.health.history import ensure_health_topic
from penstock.kafka.admin.partitions import TopicPartition
from penstock.model.backoff import Backoff
from penstock.model.entities import (
    ActiveControlPlane,
    Operation,
    OperatorRole,
    OperatorToken,
)
from penstock.model.errors import UnavailableError
from penstock.model.errors.control import (
    ClocksDiffer,
    ConfigurationDiffers,
    NoneActive,
    NotActive,
    PlatformKeyDiffers,
)
from penstock.model.key_names import AUDIT_TOPIC
from penstock.quota.topics import ensure_topics
from penstock.timed_wait import wait_at_most

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Mapping

    from penstock.control.physical.cluster_access import ProvidedCluster
    from penstock.kafka.client import Client

CLOCK_SKEW_SECONDS_MAX: Final = 5.0  # that is not reported
AGAIN: Final = Backoff(0.5, 10.0)
AUDIT: Final = TopicPartition(AUDIT_TOPIC, 0)
ROOT_TOKEN: Final = "root"  # noqa: S105 - the name of the token created at the first start

log = structlog.get_logger("penstock.control")


async def until_reached(prepare: Callable[[], Awaitable[None]], stop: asyncio.Event) -> bool:
    """Repeats what the start of a control plane needs from its home, which may be away for a moment or lose
    the connection. False at shutdown; other failures need an operator.
    """
    for attempt in itertools.count(1):
        try:
            await prepare()
        except UnavailableError as failure:
            log.warning("home cluster not reached", error=str(failure), remedy=failure.advice)
        else:
            return True
        if await wait_at_most(stop, AGAIN.seconds(attempt)):
            break
    return False


@dataclass(frozen=True, slots=True)
class Home:
    """The cluster that holds the registry, and what a new leadership term writes first."""

    cluster: str
    url: str
    provided_clusters: tuple[ProvidedCluster, ...]
    root_sha256: str = field(repr=False, default="")
    audit: TopicPartition = AUDIT
    settings: Mapping[str, str] = field(default_factory=dict)  # digests, by setting

    def opening_changes(self, incarnation: str, registry: Registry) -> Decision:
        """Registers the active control plane, the known clusters and the root token."""
        now = int(time.time() * 1000)
        before = registry.get(ActiveControlPlane, "active")
        active = ActiveControlPlane(
            id="active",
            version=1 if before is None else before.version + 1,
            changed_ms=now,
            url=self.url,
            incarnation=incarnation,
            since_ms=now,
            settings=self.settings,
        )
        changes: list[Change] = [Put(active), *self.registrations(registry).changes]
        changes += self._root(registry, now)
        return Decision(Operation(id="op-", action="", subject=""), tuple(changes), None)

    def registrations(self, registry: Registry) -> Decision:
        """Registers the known clusters."""
        now = int(time.time() * 1000)
        changes = tuple(
            c for provided in self.provided_clusters for c in registration(registry, provided, now)
        )
        return Decision(Operation(id="op-", action="", subject=""), changes, None)

    def _root(self, registry: Registry, now: int) -> list[Change]:
        known = registry.get(OperatorToken, ROOT_TOKEN)
        if not self.root_sha256 or (known is not None and known.secret_sha256 == self.root_sha256):
            return []
        made = OperatorToken(
            id=ROOT_TOKEN,
            version=1 if known is None else known.version + 1,
            changed_ms=now,
            name=ROOT_TOKEN,
            role=OperatorRole.ADMIN,
            secret_sha256=self.root_sha256,
        )
        return [Put(made)]

    def active_elsewhere(self, registry: Registry) -> str:
        """The URL of the active control plane; empty if this one was the last to register as active."""
        active = registry.get(ActiveControlPlane, "active")
        return active.url if active is not None and active.url != self.url else ""

    def not_active(self, registry: Registry) -> NotActive:
        """The error of a change that this control plane cannot make now."""
        url = self.active_elsewhere(registry)
        return NotActive(url=url) if url else NoneActive()

    def check_settings(self, registry: Registry) -> None:
        """Compares the settings with those of the last active control plane.

        Raises if this one has another platform key; other differences are logged, because a takeover by
        a control plane with newer settings is how they are changed.
        """
        active = registry.get(ActiveControlPlane, "active")
        if active is None:
            return
        behind = active.since_ms / 1000 - time.time()
        if behind > CLOCK_SKEW_SECONDS_MAX:  # it cannot have become active in the future
            skew = ClocksDiffer(url=active.url, seconds=behind)
            log.warning("clocks differ", error=str(skew), remedy=skew.advice)
        if not active.settings or not self.settings:
            return
        names = sorted({*active.settings, *self.settings})
        different = [name for name in names if active.settings.get(name) != self.settings.get(name)]
        if "platform_key" in different:
            raise PlatformKeyDiffers(url=active.url)
        if different:
            error = ConfigurationDiffers(url=active.url, settings=", ".join(different))
            log.warning("settings differ", error=str(error), remedy=error.advice)

    async def prepare(self, client: Client, provided: ProvidedCluster) -> None:
        """Creates what every physical cluster needs: the gateways' user and topics."""
        if provided.allows(Capability.USERS):
            await provision_gateways(client, provided.key, with_acls=provided.sets_acls)
        await ensure_topics(client)
        await ensure_load_topic(client)
        await ensure_health_topic(client)
        await ensure_load_hours_topic(client)
