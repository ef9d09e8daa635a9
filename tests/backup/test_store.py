"""A backup in a store of files: reading, verifying, holds, the catalogue, and damage."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.backup import archive as archive_module
from penstock.backup import planning
from penstock.backup.archive import Archive
from penstock.backup.catalogue import Catalogue, Entry, is_due
from penstock.backup.drill import DrillResult, drilled_topic, last_drill
from penstock.backup.holds import hold, holds, release
from penstock.backup.layout import Gap, canonical, drill_key, parse_gap
from penstock.backup.planning import Selection, resolve
from penstock.backup.proof import expected_log
from penstock.backup.settings import read_backup_settings
from penstock.backup.verification import verify
from penstock.kafka.admin import acls, brokers, log_dirs, reassignments, topics
from penstock.kafka.broker_errors import broker_error
from penstock.link.store import LinkStore
from penstock.model.errors.backup import (
    BackupAmbiguous,
    BackupMissing,
    CatalogueInvalid,
    ObjectExists,
    SegmentDamaged,
    ShadowSettingsMissing,
)
from penstock.model.errors.settings import SettingInvalid
from penstock.model.shadow_ids import SHADOW_IDS
from penstock.tier.format import LOG, MANIFEST, chunk_crcs, encode_manifest
from penstock.tier.store import Store, StoreSettings
from penstock.wire.digest import BatchDigest, spans
from penstock.wire.error_codes import Code
from tests.tier.segments import CLUSTER, NOW_MS, TOPIC_ID, log_of, manifest_of

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.kafka.client import Client
    from penstock.tier.format import Manifest

SEGMENTS = ("SegmentSegmentSegmentA", "SegmentSegmentSegmentQ", "SegmentSegmentSegmentg")
TOPICS = {"topics": {TOPIC_ID: {"name": "orders", "partitions": [[3, 0, [1]]], "configs": {}}}}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(StoreSettings("file", "east", tmp_path / "store"))


async def put(store: Store, log: bytes, number: int, base: int | None = None) -> Manifest:
    manifest = manifest_of(log, segment_id=SEGMENTS[number], base=base)
    await store.create(manifest.key.path(LOG), log)
    await store.create(manifest.key.path(MANIFEST), encode_manifest(manifest))
    return manifest


async def archived(store: Store) -> Archive:
    await put(store, log_of(0, 2, 4), 0)
    await put(store, log_of(6, 8), 1)
    await Catalogue(store, CLUSTER).write(TOPICS, NOW_MS)
    archive = Archive(CLUSTER, [store])
    await archive.load()
    return archive


def file_of(tmp_path: Path, manifest: Manifest, suffix: str) -> Path:
    return tmp_path / "store" / manifest.key.path(suffix, "east")


async def test_a_log_is_read_across_segments_from_any_offset(store: Store) -> None:
    archive = await archived(store)
    chain = await archive.chain(TOPIC_ID, 3)
    for offset in range(0, 10, 2):
        read = [b.base_offset async for part in archive.batches(chain, offset) for b in part]
        assert read == list(range(offset, 10, 2))
    expected = await expected_log(archive, chain)
    assert expected[:2] == (0, 10)
    assert expected.digest == BatchDigest(spans(log_of(0, 2, 4, 6, 8))).hexdigest()


async def test_batches_may_cross_chunks(store: Store) -> None:
    log = log_of(*range(0, 40, 2))
    small = replace(manifest_of(log), chunk_bytes=64, chunk_crc32c=chunk_crcs(log, 64))
    await store.create(small.key.path(LOG), log)
    await store.create(small.key.path(MANIFEST), encode_manifest(small))
    archive = Archive(CLUSTER, [store])
    await archive.load()
    chain = await archive.chain(TOPIC_ID, 3)
    for offset in (0, 20, 38, 6):
        read = [b.base_offset async for part in archive.batches(chain, offset) for b in part]
        assert read == list(range(offset, 40, 2))
    await archive.check(small)


async def test_segments_of_the_tier_and_the_archive_are_one_log(store: Store, tmp_path: Path) -> None:
    tier = Store(StoreSettings("file", "", tmp_path / "tier"))
    await put(tier, log_of(0, 2, 4, 6), 2)
    await put(store, log_of(6, 8), 1)
    archive = Archive(CLUSTER, [store, tier])
    await archive.load()
    chain = await archive.chain(TOPIC_ID, 3)
    assert (chain.start, chain.end, chain.holes) == (0, 10, ())
    assert (await expected_log(archive, chain)).digest == BatchDigest(
        spans(log_of(0, 2, 4, 6, 8))
    ).hexdigest()


async def test_a_whole_backup_verifies(store: Store) -> None:
    result = await verify(await archived(store), Catalogue(store, CLUSTER), sample=1, seed=1)
    assert (result.segments, result.read, result.partitions, result.problems) == (2, 2, 1, [])


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "manifest", "segment"])
async def test_every_damage_is_a_problem(store: Store, tmp_path: Path, damage: str) -> None:
    archive = await archived(store)
    await put(store, log_of(10), 2)
    await archive.load()
    manifest = await archive.manifest(sorted(archive.segments)[1])
    log, described = file_of(tmp_path, manifest, LOG), file_of(tmp_path, manifest, MANIFEST)
    if damage == "cut":
        log.write_bytes(log.read_bytes()[:-1])
    elif damage == "flip":
        log.write_bytes(log.read_bytes()[:-1] + b"!")
    elif damage == "gone":
        log.unlink()
    elif damage == "manifest":
        described.write_text("{}")
    else:
        log.unlink()
        described.unlink()
    fresh = Archive(CLUSTER, [store])
    result = await verify(fresh, Catalogue(store, CLUSTER), sample=1, seed=1)
    assert len(result.problems) == 1, result.problems


async def test_an_upload_without_a_manifest_does_not_exist(store: Store) -> None:
    archive = await archived(store)
    manifest = manifest_of(log_of(10), segment_id=SEGMENTS[2])
    await store.create(manifest.key.path(LOG), log_of(10))
    await archive.load()
    assert (await archive.chain(TOPIC_ID, 3)).end == 10
    assert drilled_topic(archive, 1) == TOPIC_ID


async def test_an_encrypted_segment_is_not_read_as_plain(store: Store) -> None:
    log = log_of(0)
    sealed = replace(manifest_of(log), encryption={"algorithm": "AES-256-GCM", "key": "1", "nonce": "00"})
    await store.create(sealed.key.path(LOG), log)
    await store.create(sealed.key.path(MANIFEST), encode_manifest(sealed))
    archive = Archive(CLUSTER, [store])
    await archive.load()
    with pytest.raises(SegmentDamaged, match="encrypted"):
        await archive.check(await archive.manifest(sealed.key))


async def test_chunks_in_memory_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "CHUNKS_MAX", 1)
    archive = await archived(store)
    chain = await archive.chain(TOPIC_ID, 3)
    assert [b.base_offset async for part in archive.batches(chain, 0) for b in part] == [0, 2, 4, 6, 8]
    assert len(archive._chunks) == 1


async def test_gaps_are_read_from_their_keys(store: Store) -> None:
    gap = Gap(TOPIC_ID, 3, 10, 19)
    await store.create(gap.key(CLUSTER), canonical({}))
    archive = await archived(store)
    assert archive.gaps == {gap}
    assert parse_gap("x") is None


async def test_a_topic_is_meant_by_its_name_or_its_id(store: Store) -> None:
    archive, catalogue = await archived(store), Catalogue(store, CLUSTER)
    assert await resolve(catalogue, archive, Selection("orders")) == (TOPIC_ID, "orders")
    assert await resolve(catalogue, archive, Selection(topic_id=TOPIC_ID)) == (TOPIC_ID, "orders")
    with pytest.raises(BackupMissing, match="orders"):
        await resolve(catalogue, archive, Selection("others"))
    with pytest.raises(BackupMissing):
        await resolve(catalogue, archive, Selection(topic_id=CLUSTER))
    another = {"topics": {CLUSTER: TOPICS["topics"][TOPIC_ID]}}
    await catalogue.write(another, NOW_MS + 1)
    with pytest.raises(BackupAmbiguous):
        await resolve(catalogue, archive, Selection("orders"))
    assert await resolve(catalogue, archive, Selection("orders", until_ms=NOW_MS)) == (TOPIC_ID, "orders")
    known = await catalogue.topic(TOPIC_ID)
    assert known is not None
    assert known[1].at_ms == NOW_MS
    assert await catalogue.topic("unknown") is None


async def test_an_unchanged_part_is_stored_once(store: Store) -> None:
    catalogue = Catalogue(store, CLUSTER)
    await catalogue.write(TOPICS, NOW_MS)
    await catalogue.write(TOPICS, NOW_MS + 1)
    resumed = Catalogue(store, CLUSTER)
    await resumed.resume()
    assert resumed.last == catalogue.last
    assert await resumed.times() == [NOW_MS, NOW_MS + 1]
    entry = await resumed.entry_at(NOW_MS)
    assert entry is not None
    assert await resumed.part(entry, "topics") == TOPICS["topics"]
    assert await resumed.part(entry, "groups") is None
    assert await resumed.entry_at(NOW_MS - 1) is None


async def test_a_damaged_catalogue_is_reported(store: Store, tmp_path: Path) -> None:
    archive = await archived(store)
    catalogue = Catalogue(store, CLUSTER)
    for path in (tmp_path / "store" / "east" / CLUSTER / "catalogue" / "parts").iterdir():
        path.write_text("{}")
    with pytest.raises(CatalogueInvalid, match="SHA-256"):
        await catalogue.part(await catalogue.entry(NOW_MS), "topics")
    result = await verify(archive, catalogue, sample=0, seed=1)
    assert [one.where for one in result.problems] == ["catalogue"]
    empty = await verify(archive, Catalogue(store, "another"), sample=0, seed=1)
    assert [one.what for one in empty.problems] == ["it has no entry"]


async def test_objects_that_others_have_put_into_a_backup_are_passed_over(store: Store) -> None:
    archive, catalogue = await archived(store), Catalogue(store, CLUSTER)
    for name in ("catalogue/entries/README.json", "catalogue/entries/99.json", "drills/notes.txt"):
        await store.create(f"{CLUSTER}/{name}", b"?")
    assert await catalogue.times() == [NOW_MS]
    assert await catalogue.clock_skew_seconds() == pytest.approx(time.time() - NOW_MS / 1000, abs=600)
    assert await last_drill(store, CLUSTER) is None
    result = DrillResult("orders", TOPIC_ID, 1, 10, 2, 0.5, NOW_MS)
    await store.create(drill_key(CLUSTER, NOW_MS), canonical(asdict(result)))
    await store.create(drill_key(CLUSTER, NOW_MS + 1), b"")
    assert await last_drill(store, CLUSTER) == result
    assert archive.topic_ids() == [TOPIC_ID]


@pytest.mark.parametrize(
    ("state", "excluded"), [("mirroring", True), ("active", False), (None, False)], ids=str
)
async def test_a_link_excludes_a_restore_also_while_its_process_is_away(
    monkeypatch: pytest.MonkeyPatch, state: str | None, *, excluded: bool
) -> None:
    """The restore would take its broker id, and unregister it in the end."""

    async def describe_brokers(*_: object, **__: bool) -> Any:
        return SimpleNamespace(brokers={1: None, 2: None})

    async def nothing(*_: object) -> dict[Any, Any]:
        return {}

    async def describe_topics(_: object, names: list[str]) -> dict[str, Any]:
        missing = broker_error("Metadata", Code.UNKNOWN_TOPIC_OR_PARTITION, None)
        return {name: missing if name == "orders" else None for name in names}

    async def refresh(links: LinkStore) -> None:
        links.documents["definition/east"] = {"shadow_id": SHADOW_IDS[0]}
        if state is not None:
            links.documents["status/east"] = {"state": state}

    monkeypatch.setattr(brokers, "describe", describe_brokers)
    monkeypatch.setattr(topics, "describe", describe_topics)
    monkeypatch.setattr(LinkStore, "refresh", refresh)
    for module, name in (
        (reassignments, "under_way"), (log_dirs, "describe"), (acls, "describe"),
        (brokers, "features"), (planning, "running_restore"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, nothing)
    facts = await planning.cluster_facts(cast("Client", None), "orders")
    shown = (f"a link or restore of shadow {SHADOW_IDS[0]}",) if excluded else ()
    assert (facts.brokers, facts.interventions) == (2, shown)


@pytest.mark.parametrize("damage", ["entry", "part", "no part"])
async def test_a_damaged_entry_prevents_no_restore_from_the_others(
    store: Store, tmp_path: Path, damage: str
) -> None:
    archive, catalogue = await archived(store), Catalogue(store, CLUSTER)
    directory = tmp_path / "store" / "east" / CLUSTER / "catalogue"
    parts = set((directory / "parts").iterdir())
    changed = {TOPIC_ID: TOPICS["topics"][TOPIC_ID] | {"configs": {"retention.ms": "1"}}}
    await catalogue.write({"topics": changed}, NOW_MS + 1)
    (added,) = set((directory / "parts").iterdir()) - parts
    if damage == "no part":
        added.unlink()
    else:
        (added if damage == "part" else max((directory / "entries").iterdir())).write_bytes(b"")

    assert await resolve(Catalogue(store, CLUSTER), archive, Selection("orders")) == (TOPIC_ID, "orders")

    known = await Catalogue(store, CLUSTER).topic(TOPIC_ID)
    assert known is not None
    assert (known[0], known[1].at_ms) == (TOPICS["topics"][TOPIC_ID], NOW_MS)
    resumed = Catalogue(store, CLUSTER)
    await resumed.resume()
    assert resumed.last is not None


def test_an_entry_is_due_on_change_and_after_the_interval() -> None:
    before = Entry(1000, {"topics": "a", "groups": "b"})
    assert is_due(None, {}, 0, 60_000)
    assert not is_due(before, {"topics": "a"}, 59_999, 60_000)
    assert is_due(before, {"topics": "a"}, 60_000, 60_000)
    assert is_due(before, {"topics": "a"}, -1, 60_000), "a clock was set back"
    assert is_due(before, {"topics": "c"}, 1, 60_000)


async def test_an_entry_follows_the_last_one_also_if_the_clock_was_set_back(store: Store) -> None:
    catalogue = Catalogue(store, CLUSTER)
    await catalogue.write(TOPICS, NOW_MS)
    await catalogue.write({"topics": {}}, NOW_MS - 3_600_000)
    entry = await catalogue.entry_at()
    assert entry is not None
    assert (entry.at_ms, await catalogue.part(entry, "topics")) == (NOW_MS + 1, {})


async def test_holds_are_kept_until_they_are_released(store: Store) -> None:
    await hold(store, CLUSTER, "audit", TOPIC_ID, NOW_MS)
    await hold(store, CLUSTER, "all", None, NOW_MS)
    assert [(one.name, one.topic_id) for one in await holds(store, CLUSTER)] == [
        ("all", None),
        ("audit", TOPIC_ID),
    ]
    with pytest.raises(ObjectExists):
        await hold(store, CLUSTER, "audit", None, NOW_MS)
    await release(store, CLUSTER, "audit", NOW_MS)
    await release(store, CLUSTER, "audit", NOW_MS + 1)
    assert [one.name for one in await holds(store, CLUSTER)] == ["all"]
    with pytest.raises(BackupMissing, match="all, audit"):
        await release(store, CLUSTER, "another", NOW_MS)


def test_settings_name_cluster_store_and_shadow(tmp_path: Path) -> None:
    path = tmp_path / "backup.yaml"
    path.write_text("cluster: {bootstrap: 'a:1'}\nstore: {directory: d}\narchive: {exclude: ['tmp-.*']}\n")
    settings = read_backup_settings(path)
    assert settings.selects("orders")
    assert settings.selects("__remote_log_metadata")
    assert not any(map(settings.selects, ("tmp-1", "__consumer_offsets", "_penstock.registry")))
    with pytest.raises(ShadowSettingsMissing, match="controllers"):
        settings.for_restore()
    path.write_text("cluster: {bootstrap: 'a:1', controllers: 'c:1'}\nstore: {directory: d}\n")
    with pytest.raises(ShadowSettingsMissing, match="shadow"):
        read_backup_settings(path).for_restore()
    path.write_text("cluster: {bootstrap: 'a:1'}\nstore: {directory: d}\narchive: {topics: '('}\n")
    with pytest.raises(SettingInvalid):
        read_backup_settings(path)
