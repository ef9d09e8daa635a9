"""The codec: defaults, refusals, tags, and malformed messages."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.model.errors import Fault, PenstockError
from penstock.model.errors.wire import RequestMalformed, ResponseMalformed, ValueUnfit, VersionUnknown
from penstock.wire.codec import decode, decode_at, encode
from penstock.wire.definitions import load
from tests.wire.peer import messages
from tests.wire.values import message_values

MISSING_IN_KIO = sorted(set(load().names()) - set(messages()))
TOPIC = {"Name": "orders", "NumPartitions": 3, "ReplicationFactor": 2, "Assignments": [], "Configs": []}


@pytest.mark.parametrize("name", [name for name in MISSING_IN_KIO if load().message(name).valid_versions])
def test_messages_that_kio_lacks_round_trip(name: str) -> None:
    versions = load().message(name).valid_versions

    @settings(max_examples=3, database=None, phases=[Phase.generate, Phase.shrink])
    @given(st.fixed_dictionaries({version: message_values(name, version) for version in versions}))
    def round_trip(values_by_version: dict[int, dict[str, Any]]) -> None:
        for version, values in values_by_version.items():
            assert decode(name, version, encode(name, version, values)) == values

    round_trip()


def test_an_omitted_field_takes_kafkas_default() -> None:
    data = encode("FetchRequest", 17, {"Topics": [{"Partitions": [{"Partition": 4}]}]})

    values = decode("FetchRequest", 17, data)

    assert (values["MaxBytes"], values["SessionEpoch"], values["ClusterId"]) == (0x7FFFFFFF, -1, None)
    assert values["ReplicaState"] == {"ReplicaId": -1, "ReplicaEpoch": -1}
    assert values["Topics"][0]["TopicId"] == UUID(int=0)
    assert values["Topics"][0]["Partitions"][0]["LogStartOffset"] == -1


@pytest.mark.parametrize(
    ("name", "version", "values", "reason"),
    [
        ("CreateTopicsRequest", 7, {"Topics": [{**TOPIC, "Nme": 1}]}, "Topics[0].Nme is not a field here"),
        ("CreateTopicsRequest", 7, {"Topics": [{**TOPIC, "Name": None}]}, "Topics[0].Name is null"),
        ("CreateTopicsRequest", 7, {"Topics": [{**TOPIC, "Name": b"x"}]}, "is b'x', not a string"),
        ("CreateTopicsRequest", 7, {"Topics": [{**TOPIC, "NumPartitions": 2**31}]}, "not of type int32"),
        ("CreateTopicsRequest", 7, {"Topics": [{**TOPIC, "Assignments": 5}]}, "Assignments is 5, not a list"),
        ("CreateTopicsRequest", 7, {"Topics": [7]}, "Topics[0] is 7, not a mapping"),
        ("CreateTopicsRequest", 4, {"Topics": [{**TOPIC, "Name": "x" * 40000}]}, "longer than 32767 bytes"),
        ("MetadataRequest", 12, {"Topics": [{"TopicId": "x"}]}, "is 'x', not a uuid.UUID"),
        ("SaslAuthenticateRequest", 2, {"AuthBytes": "x"}, "AuthBytes is 'x', not bytes"),
        (
            "DescribeClusterRequest",
            0,
            {"EndpointType": 2},
            "EndpointType is 2, which version 0 cannot carry",
        ),
        ("CreateTopicsRequest", 4, {"_tags": {9: b""}}, "_tags has tags, which version 4"),
        ("CreateTopicsRequest", 7, {"Topics": [{**TOPIC, "Name": "\ud800"}]}, "cannot be encoded"),
        ("OffsetFetchRequest", 9, {"Groups": [{"Topics": [{"Name": "a"}], "GroupId": 5}]}, "GroupId is 5"),
    ],
)
def test_a_value_that_does_not_fit_is_named(
    name: str, version: int, values: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueUnfit) as unfit:
        encode(name, version, values)

    assert reason in unfit.value.message


def test_a_field_the_version_lacks_is_dropped_if_that_is_harmless() -> None:
    ignorable = encode("FetchRequest", 4, {"RackId": "a"})
    default = encode("DescribeClusterRequest", 0, {"EndpointType": 1})

    assert decode("FetchRequest", 4, ignorable)["Topics"] == []
    assert decode("DescribeClusterRequest", 0, default) == {"IncludeClusterAuthorizedOperations": False}


def test_unknown_tags_are_kept_in_order_beside_known_ones() -> None:
    partition = {"Partition": 1, "HighWatermark": 7, "_tags": {200: b"later", 9: b""}}
    values = {
        "ClusterId": "c",
        "Topics": [{"Partitions": [partition], "_tags": {0: b"x"}}],
        "_tags": {5: b"y"},
    }

    data = encode("FetchRequest", 18, values)
    read = decode("FetchRequest", 18, data)

    assert read["_tags"] == {5: b"y"}
    assert read["ClusterId"] == "c"
    assert read["Topics"][0]["_tags"] == {0: b"x"}
    assert read["Topics"][0]["Partitions"][0]["_tags"] == {9: b"", 200: b"later"}
    assert encode("FetchRequest", 18, read) == data


@pytest.mark.parametrize("version", [-1, 3, 99])
def test_a_version_kafka_does_not_define_is_refused(version: int) -> None:
    with pytest.raises(VersionUnknown, match="4-18"):
        decode("FetchRequest", version, b"")


@pytest.mark.parametrize(
    ("name", "error", "fault"),
    [
        ("MetadataRequest", RequestMalformed, Fault.CALLER),
        ("MetadataResponse", ResponseMalformed, Fault.UPSTREAM),
        ("TopicRecord", ResponseMalformed, Fault.UPSTREAM),
    ],
)
def test_the_sender_of_malformed_bytes_is_at_fault(
    name: str, error: type[PenstockError], fault: Fault
) -> None:
    with pytest.raises(error) as malformed:
        decode(name, 0, b"\xff")

    assert malformed.value.fault is fault


@pytest.mark.parametrize(
    ("name", "version", "data", "reason"),
    [
        ("MetadataRequest", 12, b"", "truncated"),
        ("MetadataRequest", 12, b"\x00\x01\x00\x00\x00", "1 bytes follow"),
        ("MetadataRequest", 0, b"\x7f\xff\xff\xff\x00\x00", "claims 2147483647 elements in 2 bytes"),
        ("MetadataRequest", 12, b"\xff\xff\xff\xff\x07\x01", "claims 2147483646 elements"),
        ("MetadataRequest", 12, b"\xff\xff\xff\xff\xff\x01", "a varint is longer than 5 bytes"),
        ("MetadataRequest", 12, b"\xff\xff\xff\xff\x7f\x01", "does not fit 31 bits"),
        ("MetadataRequest", 1, b"\xff\xff\xff\xfe", "length -2"),
        ("MetadataRequest", 0, b"\xff\xff\xff\xff", "Topics is null, which this version does not allow"),
        ("MetadataRequest", 0, b"\x00\x00\x00\x01\x00\x05abc", "truncated"),
        ("MetadataRequest", 0, b"\x00\x00\x00\x01\x00\x01\xff", "not UTF-8"),
        ("MetadataRequest", 12, b"\x01\x01\x00\x02\x05\x01x\x05\x01y", "tag 5 follows tag 5"),
        ("MetadataRequest", 12, b"\x01\x01\x00\x01\x05\x09x", "truncated"),
        (
            "FetchRequest",
            12,
            bytes(25) + b"\x01\x01\x01\x01\x00\x03\x02ab",
            "ClusterId does not have the 3 bytes",
        ),
    ],
)
def test_a_malformed_message_is_refused_with_the_reason(
    name: str, version: int, data: bytes, reason: str
) -> None:
    with pytest.raises(RequestMalformed) as malformed:
        decode(name, version, data)

    assert reason in malformed.value.message


def test_varints_longer_than_necessary_are_read_as_by_kafka() -> None:
    """Frames that the gateway streams contain such lengths (see `codegen.stream`)."""
    padded = b"\x82\x80\x00" + bytes(16) + b"\x87\x80\x00orders\x00" + b"\x00\x00\x80\x00"

    assert decode("MetadataRequest", 12, padded)["Topics"][0]["Name"] == "orders"


def test_a_message_is_decoded_from_the_middle_of_a_buffer() -> None:
    data = encode("TopicRecord", 0, {"Name": "orders", "TopicId": UUID(int=7)})

    values, end = decode_at("TopicRecord", 0, b"##" + data + b"##", 2)

    assert (values["Name"], end) == ("orders", 2 + len(data))


def test_record_bytes_are_a_view_into_the_input() -> None:
    partition = {"Index": 0, "Records": b"r" * 100}
    data = encode("ProduceRequest", 9, {"TopicData": [{"Name": "a", "PartitionData": [partition]}]})

    read = decode("ProduceRequest", 9, data)["TopicData"][0]["PartitionData"][0]["Records"]

    assert isinstance(read, memoryview)
    assert read.obj is data
    assert read == b"r" * 100
