"""What `penstock backup` shows through the control plane, without a settings file of the backup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.backup.overview import time_text
from penstock.cli.remote import connected
from penstock.model.errors.backup import BackupNotConfigured
from penstock.model.errors.settings import UsageInvalid

if TYPE_CHECKING:
    from penstock.cli.settings import RemoteOptions
    from penstock.platform.control_client import ControlClient


def remote_status(options: RemoteOptions, physical: str | None) -> dict[str, Any]:
    """The state of a backup, with the last sweep of the active control plane in its own rows."""
    control = connected(options)
    state: dict[str, Any] = control.get(f"/backups/{_chosen(control, physical)}")
    sweep = state.pop("last_sweep") or {}
    state["last_sweep"] = time_text(sweep.get("at_ms", 0))
    if sweep:
        state["swept_objects"] = sweep["tier_objects"] + sweep["backup_objects"]
        state["missing_segments"] = sweep["missing"]
        state["sweep_refused"] = sweep["error"] or sweep["refused"]
    return state


def remote_topics(options: RemoteOptions, physical: str | None) -> list[dict[str, Any]]:
    control = connected(options)
    topics: list[dict[str, Any]] = control.get(f"/backups/{_chosen(control, physical)}/topics")["items"]
    return topics


def _chosen(control: ControlClient, physical: str | None) -> str:
    """The given physical cluster, or the only one with a backup."""
    if physical is not None:
        return physical
    known = [str(one["physical_cluster"]) for one in control.get("/backups")["items"]]
    if not known:
        raise BackupNotConfigured(cluster="any")
    if len(known) > 1:
        reason = f"there are {len(known)} backups: {', '.join(known)}"
        raise UsageInvalid(reason=reason, way_out="Choose: --physical-cluster ID.")
    return known[0]
