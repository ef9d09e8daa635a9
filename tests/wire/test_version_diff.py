"""The report of what changed between two Kafka versions."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

from penstock.wire import version_diff
from penstock.wire.definitions import Definitions, load, pack
from penstock.wire.version_diff import NamedField, report

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
    changes = version_diff.compare(Definitions("1.0", RAW), Definitions("2.0", altered()))

    assert changes.apis_added == ("Get",)
    assert changes.messages_added == ("NewRecord",)
    assert changes.versions == ("PutRequest 0-1 → 0-2",)
    assert changes.names_added == (
        NamedField("PutRequest", "Places.Host", None, "2+"),
        NamedField("PutRequest", "Places.Name", "topicName", "2+"),
    )
    assert "  PutRequest Places.Name 2+ (topicName)" in report(changes)


def test_the_reverse_comparison_reports_removals() -> None:
    changes = version_diff.compare(Definitions("2.0", altered()), Definitions("1.0", RAW))

    assert changes.apis_removed == ("Get",)
    assert len(changes.names_removed) == 2
    assert "removed APIs:\n  Get\n" in report(changes)


def test_equal_versions_are_reported_as_such() -> None:
    changes = version_diff.compare(load(), load())

    assert not changes
    assert "no difference" in report(changes)


def test_the_command_compares_packed_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.bin", tmp_path / "new.bin"
    old.write_bytes(pack("1.0", RAW))
    new.write_bytes(pack("2.0", altered()))

    status = version_diff.main([str(old), str(new)])

    assert status == 0
    assert "new APIs:\n  Get\n" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["nowhere"], 2), (["a", "b", "c"], 2)])
def test_the_command_reports_wrong_arguments(
    arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    actual = version_diff.main(arguments)

    assert actual == status
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
    assert path in {named.path for named in version_diff.name_like_fields(load().message(message))}
