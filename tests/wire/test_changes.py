"""The report of what changed between two Kafka versions."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

from penstock.wire import changes
from penstock.wire.changes import NamedField, report
from penstock.wire.definitions import Definitions, load, pack

if TYPE_CHECKING:
    from pathlib import Path

RAW: dict[str, Any] = {
    "PutRequest": {
        "name": "PutRequest",
        "type": "request",
        "apiKey": 7,
        "artifact": "kafka-clients",
        "validVersions": "0-1",
        "flexibleVersions": "0+",
        "fields": [{"name": "Size", "type": "int32", "versions": "0+"}],
    }
}


def altered() -> dict[str, Any]:
    raw = deepcopy(RAW)
    raw["PutRequest"]["validVersions"] = "0-2"
    raw["PutRequest"]["fields"].append(
        {
            "name": "Places",
            "type": "[]Place",
            "versions": "2+",
            "fields": [
                {"name": "Name", "type": "string", "versions": "2+", "entityType": "topicName"},
                {"name": "Host", "type": "string", "versions": "2+"},
                {"name": "HostCount", "type": "int32", "versions": "2+"},
            ],
        }
    )
    raw["GetRequest"] = {**RAW["PutRequest"], "name": "GetRequest", "apiKey": 8}
    raw["NewRecord"] = {**RAW["PutRequest"], "name": "NewRecord", "type": "metadata"}
    return raw


def test_new_apis_versions_and_name_like_fields_are_reported() -> None:
    found = changes.changes(Definitions("1.0", RAW), Definitions("2.0", altered()))

    assert found.apis_added == ("Get",)
    assert found.messages_added == ("NewRecord",)
    assert found.versions == ("PutRequest 0-1 → 0-2",)
    assert found.names_added == (
        NamedField("PutRequest", "Places.Host", None, "2+"),
        NamedField("PutRequest", "Places.Name", "topicName", "2+"),
    )
    assert "  PutRequest Places.Name 2+ (topicName)" in report(found)


def test_the_way_back_reports_the_same_as_gone() -> None:
    found = changes.changes(Definitions("2.0", altered()), Definitions("1.0", RAW))

    assert found.apis_removed == ("Get",)
    assert len(found.names_removed) == 2
    assert "APIs gone:\n  Get\n" in report(found)


def test_nothing_changed_is_said_so() -> None:
    found = changes.changes(load(), load())

    assert not found
    assert "no difference" in report(found)


def test_the_command_compares_packed_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.bin", tmp_path / "new.bin"
    old.write_bytes(pack("1.0", RAW))
    new.write_bytes(pack("2.0", altered()))

    status = changes.main([str(old), str(new)])

    assert status == 0
    assert "new APIs:\n  Get\n" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["nowhere"], 2), (["a", "b", "c"], 2)])
def test_the_command_says_what_is_wrong(
    arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = changes.main(arguments)

    assert found == status
    assert capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ("FindCoordinatorRequest", "CoordinatorKeys"),
        ("MetadataResponse", "Brokers.Host"),
        ("DescribeConfigsRequest", "Resources.ResourceName"),
        ("ConsumerGroupHeartbeatRequest", "SubscribedTopicRegex"),
        ("FetchRequest", "Topics.TopicId"),
        ("ListTransactionsRequest", "TransactionalIdPattern"),
        ("AlterClientQuotasRequest", "Entries.Entity.EntityName"),
    ],
)
def test_names_that_kafka_does_not_mark_are_noticed(message: str, path: str) -> None:
    assert path in {named.path for named in changes.name_like_fields(load().message(message))}
