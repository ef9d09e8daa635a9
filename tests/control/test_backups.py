"""Backups in the control plane: what the API shows, and what the active control plane alone deletes."""

from __future__ import annotations

import os
import time
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from penstock.backup import expirer
from penstock.backup.settings import read_backup_settings
from penstock.control import backups as module
from penstock.control.backups import Backups
from penstock.control.physical.backup_file import address_before, backup_file, write_backup_file
from penstock.control.physical.cluster_access import Clusters, ProvidedCluster
from penstock.fleet.cluster_record import load_or_create_cluster
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.fleet.layout import Layout, make_directory
from penstock.fleet.local_fleet import load_fleet, save_fleet_document
from penstock.fleet.spec_file import parse_fleet
from penstock.model.errors.backup import BackupNotConfigured
from penstock.model.errors.settings import SettingsUnreadable
from penstock.model.ids import PhysicalClusterId
from penstock.tier.store import Store, StoreSettings
from tests.backup.test_expiry import KEEP_DAYS, objects, stored_backup
from tests.control.in_memory_plane import Api, code
from tests.tier.segments import CLUSTER, NOW_MS

if TYPE_CHECKING:
    from pathlib import Path

HOME = "pkc-000000"
OTHER = "pkc-111111"


def clusters_with(backup: Path | None) -> Clusters:
    key = PlatformKey(b"k" * 32)

    def provided(name: str, settings: Path | None) -> ProvidedCluster:
        return ProvidedCluster(
            PhysicalClusterId(name), "home", "local", "127.0.0.1:1", key, kafka_id=CLUSTER, backup=settings
        )

    return Clusters((provided(HOME, backup), provided(OTHER, None)))


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "backup.yaml"
    document = {
        "cluster": {"bootstrap": "127.0.0.1:1"},
        "store": {"directory": "store", "prefix": "east"},
        "archive": {"keep_days": KEEP_DAYS},
    }
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def at_test_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the stored backup, and no restore."""

    async def none(_: object) -> str:
        return ""

    async def same_clock(_: object) -> None:
        return None

    monkeypatch.setattr(module, "running_restore", none)
    monkeypatch.setattr(expirer, "require_same_clock", same_clock)
    monkeypatch.setattr(time, "time", lambda: NOW_MS / 1000)


def test_only_clusters_with_a_backup_are_listed(api: Api, settings: Path) -> None:
    assert api("GET", "/backups").json() == {"items": []}
    api.plane.backups = Backups(clusters_with(settings), lambda: True)

    (item,) = api("GET", "/backups").json()["items"]

    assert (item["physical_cluster"], item["keep_days"], item["last_sweep"]) == (HOME, KEEP_DAYS, None)
    assert item["store"].endswith("/store")
    for path in ("", "/topics"):
        assert code(api("GET", f"/backups/{OTHER}{path}"), 404) == BackupNotConfigured.code
    body: dict[str, Any] = {"topic": "orders"}
    assert code(api("POST", f"/backups/{OTHER}/plan", body), 404) == BackupNotConfigured.code


@pytest.mark.usefixtures("at_test_time")
async def test_only_the_active_control_plane_deletes(tmp_path: Path, settings: Path) -> None:
    store, _ = await stored_backup(tmp_path)
    before = await objects(store)
    standby = await Backups(clusters_with(settings), lambda: False).sweep(HOME)
    assert (standby.backup_objects, standby.error) == (0, "")
    assert await objects(store) == before

    active = Backups(clusters_with(settings), lambda: True)
    done = await active.sweep(HOME)

    assert done.backup_objects == len(before) - len(await objects(store)) > 0
    assert active.known()[0].last_sweep == done
    assert active.swept[HOME].objects == done.backup_objects
    assert active.swept[HOME].complete_ms == NOW_MS
    assert (await active.sweep(HOME)).backup_objects == 0
    assert active.swept[HOME].objects == done.backup_objects


@pytest.mark.usefixtures("at_test_time")
async def test_a_lost_leadership_ends_a_sweep_at_the_next_object(tmp_path: Path, settings: Path) -> None:
    store, _ = await stored_backup(tmp_path)
    before = await objects(store)
    leads = iter([True, True])

    done = await Backups(clusters_with(settings), lambda: next(leads, False)).sweep(HOME)

    assert done.backup_objects == 2
    assert len(await objects(store)) == len(before) - 2


@pytest.mark.usefixtures("at_test_time")
async def test_a_sweep_that_fails_is_recorded(tmp_path: Path, settings: Path) -> None:
    store, _ = await stored_backup(tmp_path)
    entries = sorted((tmp_path / "store").rglob("entries/*.json"))
    entries[-1].write_text("{}")
    os.utime(entries[-1])
    before = await objects(store)

    done = await Backups(clusters_with(settings), lambda: True).sweep(HOME)

    assert "catalogue entry" in done.error
    assert await objects(store) == before


@pytest.mark.usefixtures("at_test_time")
async def test_a_sweep_that_fails_in_an_unknown_way_ends_no_other_work(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All work of a control plane is one group of tasks."""

    async def plan_expiry(*_: object, **__: object) -> None:
        raise ValueError("surprise")

    monkeypatch.setattr(expirer, "plan_expiry", plan_expiry)
    backups = Backups(clusters_with(settings), lambda: True)
    assert "surprise" in (await backups.sweep(HOME)).error
    assert backups.swept[HOME].complete_ms == 0


def open_local(tmp_path: Path, **keys: Any) -> tuple[Any, Any]:
    """A fleet as it is declared, with the ids and ports of its first start."""
    layout, document = Layout(make_directory(tmp_path / "home")), {"clusters": [{"port": 0, **keys}]}
    (spec,) = parse_fleet(document)
    load_or_create_cluster(spec, layout, SystemRandom(), running=False, avoid=[])
    save_fleet_document(layout, document)
    fleet = load_fleet(layout)
    return fleet, fleet.clusters[0]


def test_the_backup_of_a_local_cluster_is_described_by_its_fleet_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3-secret\n")
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = sweeper\naws_secret_access_key = tier-secret\n"
    )
    tier = {
        "store": "s3",
        "bucket": "history",
        "region": "r",
        "credentials_file": str(tmp_path / "credentials"),
    }
    keys = {"access_key": "backup", "password_file": str(tmp_path / "secret"), "keep_days": 30}
    backup = {"store": "s3", "bucket": "backups", "region": "r"} | keys
    fleet, cluster = open_local(tmp_path, tier=tier, backup=backup)
    path = backup_file(fleet.layout, cluster.cluster.spec)
    assert path is not None

    write_backup_file(fleet, cluster, path, "127.0.0.1:28190")

    read = read_backup_settings(path)
    assert (read.store.bucket, read.store.secret_key, read.keep_days) == ("backups", "s3-secret", 30)
    assert read.tier is not None
    assert (read.tier.bucket, read.tier.access_key, read.tier.secret_key) == (
        "history",
        "sweeper",
        "tier-secret",
    )
    assert read.tier.prefix == "tier"
    assert read.controllers is not None
    assert read.shadow is not None
    assert (read.metrics, address_before(path)) == ("127.0.0.1:28190", "127.0.0.1:28190")
    assert path.stat().st_mode & 0o077 == 0


def test_a_file_store_is_below_the_home_and_credentials_must_be_readable(tmp_path: Path) -> None:
    fleet, cluster = open_local(tmp_path, backup={"store": "file"})
    path = backup_file(fleet.layout, cluster.cluster.spec)
    assert path is not None
    write_backup_file(fleet, cluster, path, "127.0.0.1:28190")
    read = read_backup_settings(path)
    assert read.store == StoreSettings("file", "", tmp_path / "home" / "backup")
    assert Store(read.store).name.endswith("backup")

    tier = {"store": "s3", "bucket": "history", "region": "r", "credentials_file": str(tmp_path / "none")}
    fleet, cluster = open_local(tmp_path, tier=tier, backup={"store": "file"})
    with pytest.raises(SettingsUnreadable):
        write_backup_file(fleet, cluster, path, "127.0.0.1:28190")
    fleet, cluster = open_local(tmp_path)
    assert backup_file(fleet.layout, cluster.cluster.spec) is None
