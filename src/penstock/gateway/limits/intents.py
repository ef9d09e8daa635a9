"""What clients intend to delete or weaken: the durability audit would take its effect for a loss otherwise.

DeleteRecords, changed topic configurations and deleted topics, with the service account. Topics are given by
Kafka's name, as the requests have them; the auditor knows their ids. Bounded: beyond `WAITING_MAX` the oldest
are dropped and counted, and those of a tenant beyond `TENANT_WAITING_MAX`, which leaves room for others.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

from penstock.model.durability import Deleted, Intent, LogEvent, What, members_of, named_subject

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.gateway.config import Principal
    from penstock.gateway.limits.metering import Source
    from penstock.model.durability import Facts

WAITING_MAX: Final = 10_000
TENANT_WAITING_MAX: Final = 5_000  # until they are taken, once a second
TOPIC_RESOURCE: Final = 2


class Intents:
    """Those of one gateway process that are not published yet."""

    def __init__(self) -> None:
        self.lost = 0
        self._by_tenant: Counter[str] = Counter()
        self._sequence = 0
        self._time_ms = 0
        self._waiting: deque[tuple[str, Facts]] = deque()

    def records_deleted(self, principal: Principal, topic: str, partition: int, before: int) -> None:
        facts = Deleted(before, str(principal.account), str(principal.tenant))
        self._add(principal, named_subject(topic, partition), facts)

    def intended(self, principal: Principal, action: str, topic: str) -> None:
        self._add(principal, named_subject(topic), Intent(action, str(principal.account)))

    def configs_changed(self, principal: Principal | None, resources: Iterable[Mapping[str, Any]]) -> None:
        """Resources of an IncrementalAlterConfigs request, in the broker's names."""
        assert principal is not None, "after login"
        for each in resources:
            if each["ResourceType"] == TOPIC_RESOURCE:
                self.intended(principal, "config", each["ResourceName"])

    def take(self, source: Source, now_ms: int) -> list[LogEvent]:
        """The new ones as events; the time of a source never falls."""
        self._time_ms = max(self._time_ms, now_ms)
        events = []
        self._by_tenant.clear()
        while self._waiting:
            subject, facts = self._waiting.popleft()
            self._sequence += 1
            what = What(type(facts).__name__.lower())
            name = f"gateway/{source.incarnation}"
            events.append(
                LogEvent(
                    source.cluster, subject, name, self._sequence, self._time_ms, what, members_of(facts)
                )
            )
        return events

    def _add(self, principal: Principal, subject: str, facts: Facts) -> None:
        if self._by_tenant[principal.tenant] >= TENANT_WAITING_MAX:
            self.lost += 1
            return
        self._by_tenant[principal.tenant] += 1
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self.lost += 1
        self._waiting.append((subject, facts))
