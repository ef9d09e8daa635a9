"""Definitions: read from jars, packed, loaded; and missing or corrupt files."""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from penstock.model.errors.plans import RuleMissing
from penstock.model.errors.wire import DefinitionsMissing, DefinitionsUnreadable, DefinitionUnknown
from penstock.wire import definitions
from penstock.wire.definitions import NONE, STRUCT, VERSION_MAX, Versions, load, unpack

if TYPE_CHECKING:
    from pathlib import Path

FETCH: dict[str, Any] = {
    "apiKey": 1,
    "type": "request",
    "listeners": ["broker"],
    "name": "FetchRequest",
    "validVersions": "4-7",
    "flexibleVersions": "6+",
    "fields": [
        {"name": "MaxBytes", "type": "int32", "versions": "3+", "default": "0x7f", "ignorable": True},
        {"name": "Rack", "type": "string", "versions": "5+", "nullableVersions": "6+", "default": "null"},
        {"name": "First", "type": "[]Place", "versions": "0+"},
        {"name": "tagged", "type": "Place", "taggedVersions": "6+", "tag": 0},
    ],
    "commonStructs": [
        {
            "name": "Place",
            "versions": "0+",
            "fields": [
                {
                    "name": "Topic",
                    "type": "string",
                    "versions": "0+",
                    "entityType": "topicName",
                }
            ],
        }
    ],
}


def jars(folder: Path, message: dict[str, Any] = FETCH) -> Path:
    for artifact in definitions.ARTIFACTS:
        with zipfile.ZipFile(folder / f"{artifact}-9.9.0.jar", "w") as jar:
            if artifact == "kafka-clients":
                jar.writestr("kafka/kafka-version.properties", "commitId=abc\nversion=9.9.0\n")
                text = "// A comment before\n" + json.dumps(message, indent=1).replace(
                    '"fields"', '// one between\n "fields"', 1
                )
                jar.writestr(f"common/message/{message['name']}.json", text)
    return folder


def test_definitions_are_compiled_from_jars(tmp_path: Path) -> None:
    packed = definitions.compile_jars(jars(tmp_path))

    loaded = unpack(packed)

    fetch = loaded.request("Fetch")
    assert loaded.kafka_version == "9.9.0"
    assert (fetch.api_key, fetch.artifact, fetch.listeners) == (1, "kafka-clients", ("broker",))
    assert (fetch.valid_versions, fetch.flexible_versions) == (Versions(4, 7), Versions(6, VERSION_MAX))
    assert (fetch.is_flexible(5), fetch.is_flexible(6)) == (False, True)
    most, rack, first, tagged = fetch.fields
    assert (most.default, most.ignorable, most.kind) == (127, True, "int32")
    assert (rack.default, rack.default_null, rack.nullable) == (None, True, Versions(6, VERSION_MAX))
    assert (first.kind, first.array, first.struct) == (STRUCT, True, "Place")
    assert [(f.name, f.entity_type) for f in first.fields] == [("Topic", "topicName")]
    assert (tagged.name, tagged.tag, tagged.versions) == ("Tagged", 0, Versions(6, VERSION_MAX))
    assert tagged.fields == first.fields


def test_a_folder_without_kafkas_jars_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionsUnreadable, match=r"expected one kafka-clients-<version>\.jar, found 0"):
        definitions.compile_jars(tmp_path)


def test_two_versions_in_one_folder_are_refused(tmp_path: Path) -> None:
    (jars(tmp_path) / "kafka-clients-9.8.0.jar").write_bytes(b"")

    with pytest.raises(DefinitionsUnreadable, match="found 2"):
        definitions.compile_jars(tmp_path)


def test_the_data_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "definitions.bin"
    path.write_bytes(b"an older one")

    size = definitions.write(jars(tmp_path), path)

    assert path.stat().st_size == size
    assert definitions.read(path).names() == ["FetchRequest"]
    assert not path.with_suffix(".draft").exists()


def test_a_field_that_could_carry_a_name_and_has_no_rule_fails_the_build(tmp_path: Path) -> None:
    secret = {"name": "SecretTopicName", "type": "string", "versions": "0+"}
    message = FETCH | {"fields": [*FETCH["fields"], secret]}
    path = tmp_path / "definitions.bin"

    with pytest.raises(RuleMissing, match="SecretTopicName"):
        definitions.write(jars(tmp_path, message), path)

    assert not path.exists()


def test_a_missing_data_file_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DefinitionsMissing) as missing:
        definitions.read(tmp_path / "definitions.bin")

    assert "make setup" in missing.value.advice


@pytest.mark.parametrize("content", [b"", b"garbage", definitions.MAGIC + b"garbage"])
def test_a_corrupt_data_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "definitions.bin"
    path.write_bytes(content)

    with pytest.raises(DefinitionsUnreadable):
        definitions.read(path)


def test_the_command_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    status = definitions.main([])

    assert status == 2
    assert "usage:" in capsys.readouterr().err


def test_an_unknown_message_or_api_is_refused() -> None:
    with pytest.raises(DefinitionUnknown, match="message 'NoSuchRequest'"):
        load().request("NoSuch")
    with pytest.raises(DefinitionUnknown, match="API with key 9999"):
        load().api_name(9999)


@pytest.mark.parametrize(
    ("versions", "text"),
    [(NONE, "none"), (Versions(3, 3), "3"), (Versions(0, 4), "0-4"), (Versions(2, VERSION_MAX), "2+")],
)
def test_versions_print_as_kafka_writes_them(versions: Versions, text: str) -> None:
    assert str(versions) == text


def test_all_of_kafkas_messages_can_be_built() -> None:
    built = [load().message(name) for name in load().names()]

    assert len(built) > 250
    assert {m.type for m in built} == {
        "request", "response", "header", "data", "metadata", "coordinator-key", "coordinator-value",
    }  # fmt: skip
    assert load().apis()[3] == "Metadata"
    assert 4 not in load().apis()  # LeaderAndIsr, dropped with ZooKeeper
    assert load().records("kafka-metadata", "metadata")[2] == "TopicRecord"
    assert load().records("kafka-storage", "metadata")[0] == "RemoteLogSegmentMetadataRecord"
