"""Frames too large to buffer are rewritten while they arrive, and may be cut at any byte."""

from __future__ import annotations

import tracemalloc
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import Fault
from penstock.model.errors.plans import (
    GrowthBroken,
    RequestFrameMalformed,
    RequestRefusedInStream,
    ResponseFrameMalformed,
    ResponseRefusedInStream,
)
from penstock.wire.definitions import load
from penstock.wire.frames import (
    Request,
    Response,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from penstock.wire.plans import Direction, Plan, surface
from penstock.wire.splice import Limits, Program, Requests, Responses, program
from penstock.wire.splice_runtime import BLANK_TAG, PROLOGUE_BYTES_MAX, hidden_tail
from tests.harness.splice_reference import ALL_KINDS, PREFIX, Inward, Outward, Recorder, random_frame, spliced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.wire.field_rules import Kind
    from penstock.wire.names import Names

STREAM = Limits(whole_bytes_max=0)
BUFFER_ALL = Limits(whole_bytes_max=2**30)
STREAMING = [plan for plan in surface(load()) if plan.streams]
MEBIBYTE = 1024 * 1024
seeds = st.integers(min_value=0, max_value=2**63)


def plan_id(plan: Plan) -> str:
    return f"{plan.message}-{plan.version}"


def program_of(plan: Plan, kinds: frozenset[Kind] = ALL_KINDS, *, observed: bool = False) -> Program:
    return program(plan.api_key, plan.version, plan.direction, kinds, observed=observed)


def names_for(plan: Plan) -> Names:
    return Outward() if plan.direction is Direction.REQUEST else Inward()


def own_frame(random: Random, plan: Plan) -> bytes:
    """A random frame without a name that is refused."""
    sent = random_frame(random, plan)
    if plan.direction is Direction.REQUEST:
        return sent
    return spliced(program_of(plan), Outward(), [sent], BUFFER_ALL)[0]


def decoded(plan: Plan, data: bytes) -> Mapping[str, Any]:
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    if plan.direction is Direction.REQUEST:
        return decode_request(data[4:]).body
    return decode_response(plan.api, plan.version, data[4:]).body


def without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: without(inner, names) for key, inner in value.items() if key not in names}
    return [without(inner, names) for inner in value] if isinstance(value, list) else value


def produce(version: int, records: bytes, *, topic: str = "orders", partitions: int = 1) -> bytes:
    partition = [{"Index": index, "Records": records} for index in range(partitions)]
    plan_id = {"TopicId": UUID(int=7)} if version >= 13 else {"Name": topic}
    body = {"Acks": -1, "TimeoutMs": 1, "TopicData": [{**plan_id, "PartitionData": partition}]}
    return encode_request(Request("Produce", version, 1, "client", body))


def fetched(version: int, records: bytes, **more: Any) -> bytes:
    partition = {"PartitionIndex": 3, "HighWatermark": 9, "Records": records, "AbortedTransactions": None}
    plan_id = {"TopicId": UUID(int=7)} if version >= 13 else {"Topic": (PREFIX + b"orders").decode()}
    body = {"SessionId": 77, "Responses": [{**plan_id, "Partitions": [partition]}], **more}
    return encode_response("Fetch", version, Response(1, body))


@pytest.mark.parametrize("plan", STREAMING, ids=plan_id)
@settings(max_examples=15)
@given(seed=seeds)
def test_a_streamed_frame_decodes_like_a_buffered_one(plan: Plan, seed: int) -> None:
    random = Random(seed)
    sent = own_frame(random, plan)
    buffered, _ = spliced(program_of(plan), names_for(plan), [sent], BUFFER_ALL)

    out, recorder = spliced(program_of(plan), names_for(plan), [sent], STREAM)

    # In a stream, texts are cut to their old size and addresses are blanked.
    differing = frozenset(("NodeEndpoints", "ErrorMessage", "AcknowledgeErrorMessage", "_tags"))
    assert recorder.ended == [None]
    assert without(decoded(plan, out), differing) == without(decoded(plan, buffered), differing)


@pytest.mark.parametrize("plan", STREAMING, ids=plan_id)
@settings(max_examples=15)
@given(seed=seeds)
def test_a_streamed_frame_gives_the_same_output_however_it_is_cut(plan: Plan, seed: int) -> None:
    random = Random(seed)
    sent = own_frame(random, plan)
    at_once, uncut = spliced(program_of(plan, observed=True), names_for(plan), [sent], STREAM)
    cuts = sorted(random.sample(range(1, len(sent)), min(len(sent) - 1, random.choice((1, 3, 40)))))
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)])]

    out, recorder = spliced(program_of(plan, observed=True), names_for(plan), pieces, STREAM)

    assert out == at_once
    assert recorder.ended == uncut.ended


@pytest.mark.parametrize("plan", STREAMING, ids=plan_id)
def test_a_small_stream_split_at_any_position_gives_the_same_output(plan: Plan) -> None:
    random = Random(plan_id(plan))
    sent = min((own_frame(random, plan) for _ in range(30)), key=lambda one: abs(len(one) - 200))
    at_once, _ = spliced(program_of(plan), names_for(plan), [sent], STREAM)

    for position in range(1, len(sent)):
        split, _ = spliced(program_of(plan), names_for(plan), [sent[:position], sent[position:]], STREAM)
        assert split == at_once
    trickled, _ = spliced(
        program_of(plan), names_for(plan), [sent[i : i + 1] for i in range(len(sent))], STREAM
    )
    assert trickled == at_once


@pytest.mark.parametrize("version", range(3, 9))
def test_old_versions_of_produce_need_no_padding(version: int) -> None:
    plan = next(plan for plan in STREAMING if (plan.message, plan.version) == ("ProduceRequest", version))
    sent = produce(version, b"r" * 100)

    out, _ = spliced(program_of(plan), Outward(), [sent], STREAM)

    assert out == spliced(program_of(plan), Outward(), [sent], BUFFER_ALL)[0]


@pytest.mark.parametrize("length", [1, 115, 116, 117, 126, 127, 128, 200])
def test_towards_a_broker_a_length_grows_by_one_byte(length: int) -> None:
    plan = next(plan for plan in STREAMING if (plan.message, plan.version) == ("ProduceRequest", 12))
    sent = produce(12, b"r" * 100, topic="t" * length)

    out, _ = spliced(program_of(plan), Outward(), [sent], STREAM)

    assert len(out) == len(sent) + len(PREFIX) + 1
    assert decoded(plan, out)["TopicData"][0]["Name"] == PREFIX.decode() + "t" * length


def test_addresses_after_a_streamed_fetch_are_blanked_in_place() -> None:
    plan = next(plan for plan in STREAMING if (plan.message, plan.version) == ("FetchResponse", 16))
    endpoints = [{"NodeId": 1, "Host": "broker.internal", "Port": 9092, "Rack": None}]
    sent = fetched(16, b"r" * 100, NodeEndpoints=endpoints)

    out, _ = spliced(program_of(plan), Inward(), [sent], STREAM)

    assert len(out) == len(sent)
    assert b"internal" not in out
    assert decoded(plan, out)["NodeEndpoints"] == []
    assert set(decoded(plan, out)["_tags"]) == {BLANK_TAG}


@pytest.mark.parametrize("brokers", range(1, 12))
def test_addresses_after_a_streamed_share_fetch_are_removed_without_changing_its_size(brokers: int) -> None:
    plan = next(plan for plan in STREAMING if (plan.message, plan.version) == ("ShareFetchResponse", 2))
    endpoints = [{"NodeId": i, "Host": "broker.internal", "Port": 9092, "Rack": None} for i in range(brokers)]
    partition = {"PartitionIndex": 0, "Records": b"r" * 50, "AcquiredRecords": [], "CurrentLeader": {}}
    body = {"Responses": [{"TopicId": UUID(int=1), "Partitions": [partition]}], "NodeEndpoints": endpoints}
    sent = encode_response("ShareFetch", 2, Response(1, body))

    out, _ = spliced(program_of(plan), Inward(), [sent], STREAM)

    assert len(out) == len(sent)
    assert b"internal" not in out
    assert decoded(plan, out)["NodeEndpoints"] == []
    assert bytes(decoded(plan, out)["Responses"][0]["Partitions"][0]["Records"]) == b"r" * 50


@pytest.mark.parametrize("size", [*range(13, 20), *range(125, 140), 16_380, 16_390, 20_000])
def test_a_hidden_tail_keeps_its_size(size: int) -> None:
    assert len(hidden_tail(b"\x02" + bytes(size - 1))) == size


@pytest.mark.parametrize(
    ("version", "direction"), [(8, "out"), (12, "out"), (13, "out"), (11, "in"), (16, "in")]
)
def test_a_frame_of_100_megabytes_takes_less_than_one_megabyte_of_memory(
    version: int, direction: str
) -> None:
    size = 100 * MEBIBYTE
    small = produce(version, b"") if direction == "out" else fetched(version, b"")
    plan = next(
        plan
        for plan in STREAMING
        if plan.version == version
        and plan.message == ("ProduceRequest" if direction == "out" else "FetchResponse")
    )
    head, tail = records_of(plan, small, size)
    recorder = Recorder(program_of(plan, observed=True))
    splicer = (Requests if direction == "out" else Responses)(
        recorder, names_for(plan), Limits(frame_bytes_max=size * 2)
    )
    # Generate the program before measuring.
    spliced(program_of(plan, observed=True), names_for(plan), [small], STREAM)
    chunk = bytes(64 * 1024)
    passed = 0
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]

    for piece in (head, *[chunk] * (size // len(chunk)), tail):
        out: list[Any] = []
        splicer.feed(piece, out)
        passed += sum(map(len, out))

    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert passed >= size
    assert len(recorder.ended) == 1
    assert splicer.held_bytes == 0
    assert peak < MEBIBYTE


def records_of(plan: Plan, small: bytes, size: int) -> tuple[bytes, bytes]:
    """Head and tail of a frame around `size` bytes of records, built from a frame with empty ones."""
    filled = bytearray(small)
    empty = b"\x01" if plan.flexible else bytes(4)
    tail_size = 3 if plan.flexible else 0  # the tag sections of partition, topic and frame
    at = len(small) - tail_size - len(empty)
    assert filled[at : at + len(empty)] == empty
    length = bytearray()
    value = size + 1
    while plan.flexible and value > 127:
        length.append(value & 127 | 128)
        value >>= 7
    length = length + bytes((value,)) if plan.flexible else bytearray(size.to_bytes(4, "big"))
    head = filled[:at] + length
    head[:4] = (len(head) - 4 + size + tail_size).to_bytes(4, "big")
    return bytes(head), bytes(filled[len(filled) - tail_size :])


class Uneven(Outward):
    def topic(self, name: bytes) -> bytes:
        return PREFIX + name + name


def test_a_topic_that_grows_by_more_than_announced_stops_the_stream() -> None:
    plan = next(plan for plan in STREAMING if (plan.message, plan.version) == ("ProduceRequest", 12))

    with pytest.raises(GrowthBroken) as broken:
        spliced(program_of(plan), Uneven(), [produce(12, b"r")], STREAM)

    assert broken.value.fault is Fault.OURS


def test_a_response_refused_within_a_stream_is_the_upstreams_fault() -> None:
    plan = next(plan for plan in STREAMING if (plan.message, plan.version) == ("FetchResponse", 12))
    foreign = fetched(12, b"r" * 100).replace(PREFIX, b"lkc-9xk4vt_")

    with pytest.raises(ResponseRefusedInStream) as refused:
        spliced(program_of(plan), Inward(), [foreign], STREAM)

    assert refused.value.fault is Fault.UPSTREAM


class Refusing(Outward):
    def topic(self, name: bytes) -> None:
        return None


def test_a_request_refused_within_a_stream_is_the_callers_fault() -> None:
    plan = next(plan for plan in STREAMING if (plan.message, plan.version) == ("ProduceRequest", 12))

    with pytest.raises(RequestRefusedInStream) as refused:
        spliced(program_of(plan), Refusing(), [produce(12, b"r")], STREAM)

    assert refused.value.fault is Fault.CALLER


def test_an_endless_header_is_not_buffered() -> None:
    plan = next(plan for plan in STREAMING if (plan.message, plan.version) == ("ProduceRequest", 12))
    size = 50 * MEBIBYTE
    endless = size.to_bytes(4, "big") + b"\0\0\0\x0c\0\0\0\1\xff\xff" + b"\x01\x05\xff\xff\xff\x17"

    with pytest.raises(RequestFrameMalformed, match="longer than"):
        spliced(program_of(plan), Outward(), [endless, *[bytes(65536)] * (3 * PROLOGUE_BYTES_MAX // 65536)])


def test_the_number_of_observed_partitions_is_bounded() -> None:
    plan = next(plan for plan in STREAMING if (plan.message, plan.version) == ("ProduceRequest", 12))
    size = 50 * MEBIBYTE
    head = size.to_bytes(4, "big") + b"\0\0\0\x0c\0\0\0\1\xff\xff\0" + b"\0\0\1\0\0\0\1" + b"\x02\x02t"
    partitions = b"\x80\x80\x80\x02" + b"\0\0\0\1\0\0" * 20_000

    with pytest.raises(RequestFrameMalformed, match="list of partitions"):
        spliced(
            program_of(plan, observed=True), Outward(), [head + partitions, *[b"\0\0\0\1\0\0" * 20_000] * 20]
        )


def test_a_length_that_leaves_no_room_for_padding_is_refused() -> None:
    plan = next(plan for plan in STREAMING if (plan.message, plan.version) == ("ProduceRequest", 12))
    sent = bytearray(produce(12, b"r" * 10))
    at = sent.index(b"\x07orders")
    sent[at : at + 1] = b"\x87\x80\x80\x80\x00"
    sent[:4] = (len(sent) - 4).to_bytes(4, "big")

    with pytest.raises(RequestFrameMalformed, match="no room"):
        spliced(program_of(plan), Outward(), [bytes(sent)], STREAM)


def test_records_that_claim_more_than_the_frame_has_are_refused() -> None:
    plan = next(plan for plan in STREAMING if (plan.message, plan.version) == ("FetchResponse", 11))
    sent = bytearray(fetched(11, b"r" * 100))
    at = len(sent) - 104
    sent[at : at + 4] = (2**31 - 1).to_bytes(4, "big")

    with pytest.raises(ResponseFrameMalformed) as refused:
        spliced(program_of(plan), Inward(), [bytes(sent)], STREAM)

    assert refused.value.fault is Fault.UPSTREAM
