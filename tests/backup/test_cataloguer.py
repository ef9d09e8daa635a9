"""What the catalogue records of a cluster that gives only a part of it, and when."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.backup import cataloguer as cataloguer_module
from penstock.backup.catalogue import Catalogue
from penstock.backup.cataloguer import Cataloguer
from penstock.kafka.admin import acls, configs, groups, topics
from penstock.kafka.broker_errors import broker_error
from penstock.model.errors.wire import KafkaBusy
from penstock.tier.format import id_of
from penstock.tier.store import Store, StoreSettings
from penstock.wire.error_codes import Code
from tests.tier.segments import CLUSTER, TOPIC_ID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.backup.archiver import Archiver
    from penstock.kafka.client import Client
    from penstock.model.errors import PenstockError

INTERVAL_MS = 60_000


class Cluster:
    """One topic, `orders`; its configs and its ACLs may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.configs_error: PenstockError | None = None
        self.acls_error: PenstockError | None = None
        monkeypatch.setattr(topics, "describe", self.topics)
        monkeypatch.setattr(configs, "describe", self.configs)
        monkeypatch.setattr(acls, "describe", self.acls)
        monkeypatch.setattr(groups, "list_all", self.groups)

    async def topics(self, *_: object) -> dict[str, Any]:
        return {"orders": SimpleNamespace(id=id_of(TOPIC_ID), partitions=())}

    async def configs(self, _: Client, resources: Sequence[Any]) -> dict[Any, Any]:
        return dict.fromkeys(resources, self.configs_error or {})

    async def acls(self, *_: object) -> list[Any]:
        if self.acls_error is not None:
            raise self.acls_error
        return []

    async def groups(self, *_: object) -> dict[str, Any]:
        return {}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def error(code: Code) -> PenstockError:
    return broker_error("Describe", code, None)


def cataloguer_of(tmp_path: Path) -> tuple[Cataloguer, Catalogue]:
    catalogue = Catalogue(Store(StoreSettings("file", "", tmp_path / "store")), CLUSTER)
    archiver = cast("Archiver", SimpleNamespace(progress=dict))
    return Cataloguer(cast("Client", None), catalogue, archiver, interval_ms=INTERVAL_MS), catalogue


async def test_a_topic_whose_configs_are_not_readable_now_does_not_count_as_deleted(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Its archive would expire although the topic exists."""
    cataloguer, catalogue = cataloguer_of(tmp_path)
    cluster.configs_error = error(Code.REQUEST_TIMED_OUT)
    with pytest.raises(KafkaBusy):
        await cataloguer.round()
    assert await catalogue.times() == []
    cluster.configs_error = None
    assert await cataloguer.round()
    assert list(await catalogue.topics()) == [TOPIC_ID]
    cluster.configs_error = error(Code.UNKNOWN_TOPIC_OR_PARTITION)
    assert await cataloguer.round(), "deleted meanwhile"
    assert catalogue.last is not None
    assert await catalogue.part(catalogue.last, "topics") == {}


async def test_acls_that_are_not_readable_now_are_not_recorded_as_none(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A topic would be restored without them."""
    cataloguer, catalogue = cataloguer_of(tmp_path)
    cluster.acls_error = error(Code.REQUEST_TIMED_OUT)
    with pytest.raises(KafkaBusy):
        await cataloguer.round()
    assert await catalogue.times() == []
    cluster.acls_error = error(Code.SECURITY_DISABLED)
    assert await cataloguer.round(), "a cluster without an authorizer has none"


async def test_a_clock_that_is_set_back_delays_no_entry(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cataloguer, catalogue = cataloguer_of(tmp_path)
    unix, monotonic = time.time(), 100.0
    clock = SimpleNamespace(time=lambda: unix, monotonic=lambda: monotonic)
    monkeypatch.setattr(cataloguer_module, "time", clock)
    written = []
    for moved, passed in ((0, 0), (-3600, 1), (0, 60), (0, 5), (3600, 60)):
        unix, monotonic = unix + moved + passed, monotonic + passed
        written.append(await cataloguer.round())
    assert written == [True, False, True, False, True]
    times = await catalogue.times()
    assert len(times) == len(set(times)) == 3
    again = Cataloguer(cast("Client", None), catalogue, cast("Archiver", SimpleNamespace(progress=dict)),
                       interval_ms=INTERVAL_MS)  # fmt: skip
    unix -= 7200
    assert await again.round(), "a new process does not wait for the time of the last entry"
