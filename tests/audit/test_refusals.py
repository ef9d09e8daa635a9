"""What the audit refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.audit.finding_reader import FindingReader
from penstock.audit.service import Auditor
from penstock.cli.operator import durability
from penstock.kafka import partition_log
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.model.errors.audit import FindingUnknown, SourceRecreated, SubjectUnknown

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def unused() -> Client:
    return Client("127.0.0.1:1")


def returning(value: Any) -> Callable[..., Any]:
    async def call(*_: Any, **__: Any) -> Any:
        return value

    return call


async def test_a_finding_that_does_not_exist_is_named(
    unused: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unused, "leaders", returning({}))  # no audit has run yet

    with pytest.raises(FindingUnknown, match="3f9a"):
        await FindingReader(unused).finding("3f9a")


def test_a_partition_is_given_with_its_topic() -> None:
    with pytest.raises(SubjectUnknown, match="orders"):
        durability.explain("orders")


async def test_a_topic_that_was_created_again_under_the_audit_is_refused(
    unused: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_log, "bounds", returning((0, 5)))
    auditor = Auditor("c", unused, returning(unused))

    with pytest.raises(SourceRecreated, match="position 9"):
        await auditor._restart_at(TopicPartition("_penstock.durability", 0), 9)
    assert await auditor._restart_at(TopicPartition("_penstock.durability", 0), 3) == 0
