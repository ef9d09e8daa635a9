"""The values that an observed program reports."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from penstock.wire.definitions import load
from penstock.wire.field_observer import OBSERVED_FIELDS, RECORD_BYTES, TOPIC
from penstock.wire.frames import Request, Response, encode_request, encode_response
from penstock.wire.plans import Direction
from penstock.wire.splice import Limits, program
from tests.harness.splice_reference import ALL_KINDS, PREFIX, Inward, Outward, spliced

WHOLE, STREAM = Limits(whole_bytes_max=2**30), Limits(whole_bytes_max=0)
PHYSICAL = (PREFIX + b"orders").decode()
IDENTITY = UUID(int=7)
BROKERS_ID = bytes(byte ^ 0x55 for byte in IDENTITY.bytes)  # what `Outward` makes of it


def batch(last_offset_delta: int, max_timestamp: int) -> bytes:
    return bytes(23) + last_offset_delta.to_bytes(4) + bytes(8) + max_timestamp.to_bytes(8) + bytes(18)


def observed_in(
    api: str, version: int, body: dict[str, Any], direction: Direction, limits: Limits
) -> list[Any]:
    observed = program(load().api_key(api), version, direction, ALL_KINDS, observed=True)
    if direction is Direction.REQUEST:
        _, recorder = spliced(
            observed, Outward(), [encode_request(Request(api, version, 1, "c", body))], limits
        )
    else:
        _, recorder = spliced(observed, Inward(), [encode_response(api, version, Response(1, body))], limits)
    (rows,) = recorder.ended
    return list(rows)


@pytest.mark.parametrize("limits", [WHOLE, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_produce_request_reports_acks_and_the_records_of_each_partition(
    version: int, limits: Limits
) -> None:
    partitions = [
        {"Index": 4, "Records": batch(9, 1_800_000_000_000)},
        {"Index": 5, "Records": b"short"},
        {"Index": 6, "Records": None},
    ]
    named = {"TopicId": IDENTITY} if version == 13 else {"Name": "orders"}
    body = {"Acks": 1, "TimeoutMs": 1, "TopicData": [{**named, "PartitionData": partitions}]}

    rows = observed_in("Produce", version, body, Direction.REQUEST, limits)

    topic = BROKERS_ID if version == 13 else PHYSICAL.encode()
    assert rows == [(1,), (topic, 4, 61, 9, 1_800_000_000_000), (topic, 5, 5, -1, -1), (topic, 6, 0, -1, -1)]


@pytest.mark.parametrize(("version", "log_start"), [(4, -1), (8, 2), (12, 2)])
def test_a_produce_response_reports_offsets_and_errors_as_the_broker_sent_them(
    version: int, log_start: int
) -> None:
    partition = {"Index": 4, "ErrorCode": 29, "BaseOffset": 100}
    body = {"Responses": [{"Name": PHYSICAL, "PartitionResponses": [partition]}]}
    if log_start >= 0:
        partition["LogStartOffset"] = log_start

    rows = observed_in("Produce", version, body, Direction.RESPONSE, WHOLE)

    assert rows == [(PHYSICAL.encode(), 4, 29, 100, -1, log_start)]


@pytest.mark.parametrize("limits", [WHOLE, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("version", [7, 12, 17])
def test_a_fetch_response_reports_its_session_and_the_bytes_of_each_partition(
    version: int, limits: Limits
) -> None:
    partition = {"PartitionIndex": 2, "ErrorCode": 3, "HighWatermark": 50, "Records": b"r" * 77}
    named = {"TopicId": IDENTITY} if version == 17 else {"Topic": PHYSICAL}
    body = {"ErrorCode": 0, "SessionId": 77, "Responses": [{**named, "Partitions": [partition]}]}

    rows = observed_in("Fetch", version, body, Direction.RESPONSE, limits)

    topic = IDENTITY.bytes if version == 17 else PHYSICAL.encode()
    assert rows == [(0, 77), (topic, 2, 3, 77, 50)]


def test_a_fetch_request_reports_its_session() -> None:
    body = {"MaxWaitMs": 1, "MinBytes": 1, "MaxBytes": 9, "SessionId": 5, "SessionEpoch": 2, "Topics": []}

    assert observed_in("Fetch", 16, body, Direction.REQUEST, WHOLE) == [(5 ^ 0x0F0F, 2, 9)]


@pytest.mark.parametrize(("version", "topic_id"), [(9, None), (12, IDENTITY.bytes)])
def test_metadata_reports_names_and_ids_of_the_topics_that_are_not_omitted(
    version: int, topic_id: bytes | None
) -> None:
    more = {} if topic_id is None else {"TopicId": IDENTITY}
    topics = [{"Name": name, "ErrorCode": 0, **more} for name in (PHYSICAL, "lkc-9xk4vt_theirs")]

    rows = observed_in("Metadata", version, {"Brokers": [], "Topics": topics}, Direction.RESPONSE, WHOLE)

    assert rows == [(PHYSICAL.encode(), topic_id, 0)]


def test_created_topics_report_their_ids() -> None:
    topics = [{"Name": PHYSICAL, "TopicId": IDENTITY, "ErrorCode": 0, "NumPartitions": 6}]

    rows = observed_in("CreateTopics", 7, {"Topics": topics}, Direction.RESPONSE, WHOLE)

    assert rows == [(PHYSICAL.encode(), IDENTITY.bytes, 0, 6)]


@pytest.mark.parametrize("message", OBSERVED_FIELDS)
def test_every_observed_field_exists(message: str) -> None:
    observed = OBSERVED_FIELDS[message]
    fields = load().message(message).fields
    assert set(observed.head) <= {field.name for field in fields}

    for step in observed.array.split(".") if observed.array else ():
        fields = next(field for field in fields if field.name == step).fields

    of_elements = {name for name in observed.row if name[0].isupper()}
    assert of_elements <= {field.name for field in fields}
    assert not observed.row or {TOPIC, RECORD_BYTES, "Name", "Index"} & set(observed.row)
