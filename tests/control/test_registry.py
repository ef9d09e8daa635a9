"""The registry as a fold of its topic: versions, forward compatibility, pages, export and import."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.registry import Change, Drop, Put, Registry, read_export
from penstock.model.entities import LogicalCluster, Operation, OperatorRole, OperatorToken, PhysicalCluster
from penstock.model.errors.control import EntityMissing, ImportRefused, VersionConflict
from penstock.model.errors.events import EventFieldInvalid, EventTooNew, EventUnreadable
from penstock.model.events import RegistryRecord
from penstock.model.ids import LogicalClusterId, PhysicalClusterId
from tests.control.in_memory_control import PHYSICAL, InMemoryControl


def cluster(number: int = 0, **more: Any) -> LogicalCluster:
    values: dict[str, Any] = {
        "name": f"c{number}",
        "cluster": PhysicalClusterId(PHYSICAL),
        "cell": "cell-1",
    } | more
    return LogicalCluster(id=LogicalClusterId(f"lkc-{number:06}"), version=1, **values)


def rebuilt(registry: Registry) -> Registry:
    other = Registry()
    for record in read_export(registry.export()):
        other.apply(record.key, record.to_bytes())
    return other


def test_an_entity_survives_a_round_trip_through_its_record() -> None:
    memory = InMemoryControl.with_cells(2)
    memory.cluster("shop", units=3, overrides={"requests": 50.0}, labels={"team": "web"})

    again = rebuilt(memory.registry)

    assert again.export() == memory.registry.export()
    assert again.cluster("shop") == memory.registry.cluster("shop")
    assert again.need(PhysicalCluster, PHYSICAL) == memory.registry.need(PhysicalCluster, PHYSICAL)


def test_two_editors_cannot_overwrite_each_other() -> None:
    registry = Registry()
    registry.accept([Put(cluster())])
    seen = registry.cluster("lkc-000000")
    registry.accept([Put(seen.changed(1, units=2))])

    with pytest.raises(VersionConflict):
        registry.accept([Put(seen.changed(1, units=9))])

    assert registry.cluster("lkc-000000").units == 2


def test_a_deletion_of_an_older_version_is_rejected() -> None:
    registry = Registry()
    registry.accept([Put(cluster())])
    seen = registry.cluster("lkc-000000")
    registry.accept([Put(seen.changed(1, units=2))])

    with pytest.raises(VersionConflict):
        registry.accept([Drop(seen)])


def test_a_deleted_entity_is_removed_from_every_index() -> None:
    registry = Registry()
    registry.accept([Put(cluster())])

    registry.apply(b"logical-cluster/lkc-000000", None)

    assert registry.cluster_named("c0") is None
    assert list(islice(registry.after(LogicalCluster, ""), 10)) == []
    with pytest.raises(EntityMissing):
        registry.cluster("c0")


def test_a_renamed_cluster_is_known_by_its_new_name_only() -> None:
    registry = Registry()
    registry.accept([Put(cluster())])

    registry.accept([Put(registry.cluster("c0").changed(1, name="other"))])

    assert registry.cluster_named("c0") is None
    assert registry.cluster("other").id == "lkc-000000"


def test_fields_of_a_newer_release_survive_a_change_by_an_older_one() -> None:
    record = cluster().to_record()
    newer = replace(record, body={**record.body, "colour": "blue"})
    registry = Registry()
    registry.apply(newer.key, newer.to_bytes())

    changed = registry.cluster("c0").changed(1, units=2)

    assert changed.to_record().body["colour"] == "blue"


def test_fields_missing_in_an_older_release_have_their_defaults() -> None:
    record = cluster().to_record()
    older = replace(record, body={k: v for k, v in record.body.items() if k not in ("labels", "zones")})

    assert LogicalCluster.from_record(older).labels == {}


def test_an_entity_of_a_newer_schema_is_rejected() -> None:
    record = replace(cluster().to_record(), body_schema=2)

    with pytest.raises(EventTooNew):
        Registry().apply(record.key, record.to_bytes())


@pytest.mark.parametrize(
    ("body", "error"),
    [({"name": "x"}, EventUnreadable), ({"name": 5, "cluster": "pkc-000000", "cell": ""}, EventFieldInvalid)],
)
def test_an_invalid_entity_is_rejected(body: dict[str, object], error: type[Exception]) -> None:
    record = RegistryRecord("logical-cluster", "lkc-000000", 1, 0, 1, body)

    with pytest.raises(error):
        Registry().apply(record.key, record.to_bytes())


def test_kinds_of_a_newer_release_are_kept_and_exported() -> None:
    registry = Registry()
    foreign = RegistryRecord("link", "lnk-1", 1, 0, 1, {"to": "elsewhere"})

    registry.apply(foreign.key, foreign.to_bytes())

    assert foreign in read_export(registry.export())
    registry.apply(foreign.key, None)
    assert read_export(registry.export()) == []


def test_paging_continues_after_a_deleted_entity() -> None:
    registry = Registry()
    registry.accept([Put(cluster(n)) for n in range(5)])
    first = list(islice(registry.after(LogicalCluster, ""), 2))
    registry.accept([Drop(first[-1])])

    second = list(islice(registry.after(LogicalCluster, first[-1].id), 2))

    assert [c.id for c in second] == ["lkc-000002", "lkc-000003"]


@given(st.permutations(range(20)), st.integers(1, 7))
def test_pages_show_each_entity_once_in_any_insertion_order(order: list[int], limit: int) -> None:
    registry = Registry()
    registry.accept([Put(cluster(n)) for n in order])
    seen: list[str] = []
    while page := list(islice(registry.after(LogicalCluster, seen[-1] if seen else ""), limit)):
        seen += [c.id for c in page]

    assert seen == [f"lkc-{n:06}" for n in range(20)]


def test_a_truncated_export_is_rejected() -> None:
    memory = InMemoryControl.with_cells()
    memory.cluster()
    text = memory.registry.export()

    for broken in (text[: len(text) // 2], "", "{}", '{"format": "x", "records": 0}\n'):
        with pytest.raises(ImportRefused):
            read_export(broken)


def test_no_secret_is_exported_or_shown() -> None:
    token = OperatorToken(id="ci", version=1, name="ci", role=OperatorRole.VIEWER, secret_sha256="ab" * 32)

    assert "ab" * 32 not in repr(token)


def test_a_copy_is_independent() -> None:
    registry = Registry()
    registry.accept([Put(cluster())])
    ahead = registry.copy()

    ahead.accept([Put(ahead.cluster("c0").changed(1, units=5))])

    assert (registry.cluster("c0").units, ahead.cluster("c0").units) == (1, 5)


def test_the_records_of_changes_rebuild_the_same_registry() -> None:
    memory = InMemoryControl.with_cells()
    memory.cluster("one")
    changes: list[Change] = [Put(cluster(9)), Drop(memory.registry.cluster("one"))]
    other = memory.registry.copy()

    memory.registry.accept(changes)
    for key, value in [(change.key, change.value) for change in changes]:
        other.apply(key, value)

    assert other.export() == memory.registry.export()


def test_an_operation_is_running_until_it_ends() -> None:
    memory = InMemoryControl.with_cells()
    memory.cluster()

    (operation,) = memory.registry.all(Operation)

    assert operation.ended
    assert memory.registry.running() == []
