"""The settings file of the backup of a local cluster, which `penstock up` writes from the fleet file.

It is an ordinary settings file of `penstock backup`, readable by this user only: it has secrets.
"""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from penstock.atomic_files import write_atomically
from penstock.fleet.credentials.passwords import NODE_USER, PLATFORM_USER, SCRAM_MECHANISM
from penstock.fleet.layout import SECRET_FILE_MODE, make_directory
from penstock.fleet.spec import Listener, TierStore
from penstock.model.errors.settings import SettingsUnreadable

if TYPE_CHECKING:
    from penstock.fleet.layout import Layout
    from penstock.fleet.local_fleet import LocalCluster, LocalFleet
    from penstock.fleet.spec import ClusterSpec

BACKUP_FILE: Final = "backup.yaml"
DIRECTORY: Final = "backup"  # of a file store, below PENSTOCK_HOME
TIER_DIRECTORY: Final = "tier"


def backup_file(layout: Layout, spec: ClusterSpec) -> Path | None:
    """Where its settings are; None if the cluster has no backup."""
    return None if spec.backup.store is TierStore.NONE else layout.cluster(spec.name) / BACKUP_FILE


def address_before(path: Path) -> str:
    """Its management address in the file of an earlier start; empty without one."""
    return str(yaml.safe_load(path.read_text()).get("metrics", "")) if path.exists() else ""


def write_backup_file(fleet: LocalFleet, cluster: LocalCluster, path: Path, metrics: str) -> None:
    spec = cluster.cluster.spec
    document: dict[str, Any] = {
        "cluster": {
            "bootstrap": spec.bootstrap(),
            "controllers": spec.bootstrap(Listener.CONTROLLER),
            "login": {
                "mechanism": SCRAM_MECHANISM,
                "user": PLATFORM_USER,
                "password": fleet.access.credentials.platform,
            },
        },
        "store": _store(spec, fleet.layout),
        "archive": {"keep_days": spec.backup.keep_days},
        "metrics": metrics,
    }
    if spec.tls:
        document["cluster"]["tls"] = {"ca": str(fleet.access.ca.absolute())}
    else:
        # With TLS a shadow needs a certificate that the brokers trust: restores then name one themselves.
        shadow = path.parent / "shadow"
        admitted = [NODE_USER, PLATFORM_USER]
        document["shadow"] = {"directory": str(shadow), "host": "127.0.0.1", "admitted": admitted}
    if spec.tier.store is not TierStore.NONE:
        document["tier"] = _tier(spec, fleet.layout)
    make_directory(path.parent)
    write_atomically(path, yaml.safe_dump(document, sort_keys=False), mode=SECRET_FILE_MODE)


def _store(spec: ClusterSpec, layout: Layout) -> dict[str, Any]:
    backup = spec.backup
    values: dict[str, Any] = {"kind": backup.store.value, "prefix": backup.prefix}
    if backup.store is TierStore.FILE:
        values["directory"] = str(Path(backup.directory or layout.home / DIRECTORY).absolute())
    else:
        values |= {"bucket": backup.bucket, "region": backup.region, "endpoint": backup.endpoint}
        values |= {"access_key": backup.access_key}
        if backup.password_file:
            values["password_file"] = str(Path(backup.password_file).absolute())
    return {key: value for key, value in values.items() if value}


def _tier(spec: ClusterSpec, layout: Layout) -> dict[str, Any]:
    tier = spec.tier
    values: dict[str, Any] = {"kind": tier.store.value, "prefix": tier.prefix}
    if tier.store is TierStore.FILE:
        values["directory"] = str(Path(tier.directory or layout.home / TIER_DIRECTORY).absolute())
    else:
        values |= {"bucket": tier.bucket, "region": tier.region, "endpoint": tier.endpoint}
        if tier.credentials_file:
            values |= _credentials(Path(tier.credentials_file))
    return {key: value for key, value in values.items() if value}


def _credentials(path: Path) -> dict[str, str]:
    """The default profile of a file in Amazon's format."""
    parser = configparser.ConfigParser()
    try:
        parser.read_string(path.read_text())
        section = parser["default"]
        return {"access_key": section["aws_access_key_id"], "password": section["aws_secret_access_key"]}
    except (OSError, configparser.Error, KeyError) as failure:
        raise SettingsUnreadable(path=path, reason=str(failure)) from failure
