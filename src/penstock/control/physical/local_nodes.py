"""The nodes of a local fleet, as health needs them: restarting them, and their log directories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.fleet.local_fleet import load_fleet
from penstock.fleet.restarting import LocalRestarter

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.fleet.layout import Layout
    from penstock.fleet.restarting import Restarter


class Nodes(Protocol):
    def restarter(self, cluster: str) -> Restarter | None:
        """None: nothing here can restart its brokers."""
        ...

    def directory(self, cluster: str, broker: int) -> Path | None:
        """The log directory of a broker on this host; None for others."""
        ...


class LocalNodes:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def restarter(self, cluster: str) -> Restarter | None:
        name = self._name(cluster)
        return None if name is None else LocalRestarter(self._layout, name)

    def directory(self, cluster: str, broker: int) -> Path | None:
        name = self._name(cluster)
        for node in load_fleet(self._layout).nodes:
            if node.cluster.spec.name == name and node.spec.id == broker:
                return node.layout.data
        return None

    def _name(self, cluster: str) -> str | None:
        for each in load_fleet(self._layout).clusters:
            if each.cluster.id == cluster:
                return each.cluster.spec.name
        return None
