"""Findings of the durability audit, of every physical cluster, for the API.

Each cluster stores its own. A cluster that does not respond is named beside the findings of the others.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.audit.finding_reader import FindingReader
from penstock.control.decisions import Decision, new_operation
from penstock.control.registry import Put
from penstock.kafka.connection import CALL_SECONDS
from penstock.model.errors import PenstockError
from penstock.model.errors.audit import FindingsUnread

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from penstock.control.decisions import DecisionContext
    from penstock.control.physical.cluster_access import Clusters
    from penstock.control.registry import Registry
    from penstock.kafka.client import Client
    from penstock.model.durability import FindingRecord, FindingState

READ_SECONDS: Final = 2 * CALL_SECONDS


@dataclass(frozen=True, slots=True)
class ClusterFinding:
    cluster: str  # physical
    finding: FindingRecord


@dataclass(frozen=True, slots=True)
class AllFindings:
    findings: tuple[ClusterFinding, ...]  # in order of ids
    failures: Mapping[str, str] = field(default_factory=dict)  # by cluster that could not be read

    def of(self, clusters: Collection[str]) -> AllFindings:
        """Those of some physical clusters."""
        return AllFindings(
            tuple(each for each in self.findings if each.cluster in clusters),
            {cluster: reason for cluster, reason in self.failures.items() if cluster in clusters},
        )

    def need(self, finding_id: str) -> ClusterFinding | None:
        """The finding, if there is one. Raises an error if a cluster that might have it was not read."""
        for each in self.findings:
            if each.finding.id == finding_id:
                return each
        for cluster, reason in self.failures.items():
            raise FindingsUnread(cluster=cluster, reason=reason)
        return None


class Findings:
    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._readers: dict[str, tuple[Client, FindingReader]] = {}

    async def read(self) -> AllFindings:
        """All findings of all known clusters, in their present state."""
        ids = [provided.id for provided in self._clusters.known]
        results = await asyncio.gather(*map(self._read, ids))
        return all_findings(zip(ids, results))

    async def of_cluster(self, cluster: str) -> list[FindingRecord]:
        return (await self._reader(cluster).read()).current()

    async def handle(self, one: ClusterFinding, state: FindingState, actor: str, note: str) -> None:
        await self._reader(one.cluster).handle(one.finding.id, state, actor, note)

    async def _read(self, cluster: str) -> list[FindingRecord] | str:
        """The findings of one cluster, or why they could not be read."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                return (await self._reader(cluster).read()).current()
        except PenstockError as failure:
            return str(failure)
        except TimeoutError:
            return f"no response in {READ_SECONDS:g} s"

    def _reader(self, cluster: str) -> FindingReader:
        """The cluster's, with the client that reaches it now."""
        client = self._clusters.client(cluster)
        known = self._readers.get(cluster)
        if known is None or known[0] is not client:
            known = self._readers[cluster] = (client, FindingReader(client))
        return known[1]


def all_findings(read: Iterable[tuple[str, list[FindingRecord] | str]]) -> AllFindings:
    findings: list[ClusterFinding] = []
    failures = {}
    for cluster, result in read:
        if isinstance(result, str):
            failures[cluster] = result
        else:
            findings += [ClusterFinding(cluster, each) for each in result]
    return AllFindings(tuple(sorted(findings, key=lambda each: each.finding.id)), failures)


def change_finding(
    registry: Registry, context: DecisionContext, one: ClusterFinding, state: FindingState, note: str
) -> Decision:
    """Records that an operator acknowledges, resolves or opens a finding; the finding itself is elsewhere."""
    operation = new_operation(registry, context, "finding.change", one.finding.id, None)
    operation = replace(operation, detail=f"{state}: {note}" if note else str(state))
    return Decision(operation, (Put(operation),), None)
