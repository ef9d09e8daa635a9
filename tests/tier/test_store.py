"""An object store of files: conditional writes, reads, lists, and a store that is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.model.errors.backup import (
    ObjectExists,
    ObjectMissing,
    StoreUnavailable,
    StoreUnconditional,
)
from penstock.model.errors.settings import SettingInvalid
from penstock.model.settings_reader import Section
from penstock.tier.store import KEYS, Store, StoreSettings, read_store_settings


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(StoreSettings("file", "backups/east", tmp_path / "store"))


async def test_an_object_is_written_once(store: Store) -> None:
    assert await store.create("a/b", b"first")
    assert not await store.create("a/b", b"first")
    with pytest.raises(ObjectExists):
        await store.create("a/b", b"second")
    assert await store.read("a/b") == b"first"
    assert await store.read("a/b", 1, 3) == b"irs"


async def test_objects_are_listed_below_a_prefix(store: Store) -> None:
    for key in ("a/2", "a/1", "b/1"):
        await store.create(key, b"12")
    assert [one.key async for one in store.list("a")] == ["a/1", "a/2"]
    assert [one.size async for one in store.list("")] == [2, 2, 2]
    assert [one.key async for one in store.list("c")] == []


async def test_a_missing_object_is_named(store: Store) -> None:
    with pytest.raises(ObjectMissing, match="a/b"):
        await store.read("a/b")
    with pytest.raises(ObjectMissing, match="a/b"):
        await store.read("a/b", 0, 1)


async def test_deleting_twice_is_no_error(store: Store) -> None:
    await store.create("a/b", b"1")
    await store.delete(["a/b"])
    await store.delete(["a/b"])
    assert [one.key async for one in store.list("")] == []


async def test_a_store_that_overwrites_fails_its_probe(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.probe()
    await store.probe()

    async def create(*_: object) -> bool:
        return True

    monkeypatch.setattr(Store, "create", create)
    with pytest.raises(StoreUnconditional):
        await store.probe()


async def test_a_store_without_a_server_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.tier.store.RETRIES_MAX", 0)
    settings = StoreSettings(
        "s3", "", None, "bucket", "http://127.0.0.1:1", access_key="key", secret_key="secret"
    )
    store = Store(settings)
    with pytest.raises(StoreUnavailable, match="s3://bucket"):
        await store.create("a", b"1")
    assert "secret" not in repr(settings)


def test_a_directory_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable):
        Store(StoreSettings("file", "", tmp_path / "file" / "inside"))


def test_settings_name_a_directory_or_a_bucket(tmp_path: Path) -> None:
    def read(**values: object) -> StoreSettings:
        return read_store_settings(Section("backup.yaml", values, KEYS, base=tmp_path))

    assert read(directory="d", prefix="/p/").directory == tmp_path / "d"
    s3 = read(kind="s3", bucket="b", access_key="k", password="s", endpoint="http://x")
    assert (s3.bucket, s3.secret_key, s3.region) == ("b", "s", "us-east-1")
    for wrong in ({}, {"kind": "tape"}, {"kind": "s3"}):
        with pytest.raises(SettingInvalid):
            read(**wrong)


async def test_an_object_and_the_directories_above_it_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also an object that an earlier attempt has left, which may have died before it was."""
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()).removeprefix(f"{tmp_path}/"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    settings = StoreSettings("file", "east", tmp_path / "new" / "store")
    store = Store(settings)
    assert {str(tmp_path), "new"} <= set(synced), "the directories of the store itself"
    synced.clear()
    await store.create("a/b/1", b"one")
    below = {f"new/store/{path}" for path in ("east/a/b/1", "east/a/b", "east/a", "east")} | {"new/store"}
    assert set(synced) == below
    synced.clear()
    await store.create("a/b/2", b"two")
    assert set(synced) == {"new/store/east/a/b/2", "new/store/east/a/b"}, "what is new only"
    synced.clear()
    assert not await Store(settings).create("a/b/1", b"one")
    assert set(synced) == below
