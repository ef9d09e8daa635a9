"""Cluster links of the known physical clusters: their states, and the operators' actions.

A link runs as a separate process, and its state is in `_penstock.links` on its destination. The control
plane reads it there. An action is audited, then recorded as the request that the link's process carries out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.control.decisions import Decision, new_operation
from penstock.control.registry import Put
from penstock.link import commands
from penstock.link.states import Action, State, next_state
from penstock.model.entities import PhysicalCluster
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.control.decisions import DecisionContext
    from penstock.control.physical.cluster_access import Clusters
    from penstock.control.registry import Registry

READ_SECONDS_MAX: Final = 10.0  # of one cluster
ACTIONS: Final = (Action.PAUSE, Action.RESUME, Action.PROMOTE, Action.FAILOVER)
NANOSECONDS: Final = 1_000_000  # of a millisecond

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LinksRead:
    rows: tuple[tuple[str, Row], ...]  # cluster and link
    unread: Mapping[str, str]  # why the links of a cluster are not known


def request_action(
    registry: Registry, context: DecisionContext, cluster: str, row: Row, action: Action
) -> Decision:
    """The audited request; refused if the link's state does not allow it. Sent again, it is decided once."""
    physical = registry.need(PhysicalCluster, cluster)
    next_state(row["name"], State(row["state"]), action)
    operation = new_operation(registry, context, f"link.{action}", cluster, None)
    operation = replace(operation, detail=f"link {row['name']}: {action}")
    return Decision(operation, (Put(operation),), physical)


class Links:
    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    async def read(self) -> LinksRead:
        """Those of every known cluster. One that does not respond hides no other."""
        known = sorted(one.id for one in self._clusters.known)
        results = await asyncio.gather(*map(self._of, known))
        rows = [(cluster, row) for cluster, one in zip(known, results, strict=True) for row in one[0]]
        return LinksRead(tuple(rows), {c: one[1] for c, one in zip(known, results, strict=True) if one[1]})

    async def _of(self, cluster: str) -> tuple[list[Row], str]:
        try:
            async with asyncio.timeout(READ_SECONDS_MAX):
                return await commands.links(self._clusters.client(cluster)), ""
        except TimeoutError:
            return [], f"no response within {READ_SECONDS_MAX:.0f} s"
        except PenstockError as error:
            return [], error.message

    async def show(self, cluster: str, link: str) -> Row:
        return await commands.show(self._clusters.client(cluster), link)

    async def request(self, cluster: str, link: str, action: Action, created_ms: int) -> None:
        """Record what the link's process must do. To record the same request again changes nothing."""
        await commands.record_request(self._clusters.client(cluster), link, action, created_ms * NANOSECONDS)
