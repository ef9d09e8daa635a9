"""Where the object stores of audited clusters are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.audit.settings import read_audit_settings
from penstock.audit.stores import Stores
from penstock.fleet.local_fleet import load_fleet
from penstock.fleet.spec import TierStore
from penstock.tier.store import StoreSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.cli.settings import Options
    from penstock.fleet.local_fleet import LocalFleet


def stores_by_cluster(config: Path | None, options: Options) -> Mapping[str, Stores]:
    """The object stores of each cluster that is audited."""
    if config is not None:
        clusters = read_audit_settings(config, os.environ).clusters
        return {each.name: Stores(each.tier, each.backup) for each in clusters}
    return local_stores(load_fleet(options.layout))


def local_stores(fleet: LocalFleet) -> dict[str, Stores]:
    """A local fleet's tier, if it is a directory."""
    result: dict[str, Stores] = {}
    for each in fleet.clusters:
        spec = each.cluster.spec.tier
        if spec.store is TierStore.FILE:
            directory = spec.directory or str(fleet.layout.home / "tier")
            result[each.cluster.id] = Stores(StoreSettings("file", spec.prefix, Path(directory)))
    return result
