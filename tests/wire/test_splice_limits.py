"""Malformed and oversized frames are refused with a typed error that blames the sender."""

from __future__ import annotations

import tracemalloc
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from penstock.model.errors import Fault, PenstockError
from penstock.model.errors.plans import (
    RequestElementsTooMany,
    RequestFrameMalformed,
    RequestFrameTooLarge,
    ResponseFrameMalformed,
    ResponseFrameTooLarge,
)
from penstock.wire.definitions import load
from penstock.wire.frames import Request, Response, encode_request, encode_response
from penstock.wire.plans import Direction, Plan, surface
from penstock.wire.splice import HOLD, TAKE, Limits, Requests, Responses, program, spliced, taking
from tests.harness.splice_reference import ALL_KINDS, Inward, Outward, Recorder, random_frame
from tests.harness.splice_reference import spliced as fed

if TYPE_CHECKING:
    from collections.abc import Callable

PLANS = list(surface(load()))
METADATA = program(3, 12, Direction.REQUEST, ALL_KINDS)
METADATA_RESPONSE = program(3, 12, Direction.RESPONSE, ALL_KINDS)
OLD_METADATA = program(3, 8, Direction.REQUEST, ALL_KINDS)
HEARTBEAT = program(12, 3, Direction.REQUEST, ALL_KINDS)
FRAME_GROWTH_MAX = 20  # times its size; every byte could be an empty name that gets a prefix
SIXTEEN_MEBIBYTES = 16 * 1024 * 1024


def metadata(*topics: str, version: int = 12) -> bytes:
    body = {"Topics": [{"Name": name} for name in topics], "AllowAutoTopicCreation": False}
    return encode_request(Request("Metadata", version, 1, "client", body))


def heartbeat(group: str) -> bytes:
    return encode_request(Request("Heartbeat", 3, 1, None, {"GroupId": group, "MemberId": "m"}))


def resized(frame: bytes) -> bytes:
    return (len(frame) - 4).to_bytes(4, "big") + frame[4:]


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 9])
def test_a_request_too_short_for_its_header_is_the_callers_fault(size: int) -> None:
    with pytest.raises(RequestFrameMalformed) as refused:
        fed(METADATA, Outward(), [size.to_bytes(4, "big", signed=True) + bytes(20)])

    assert refused.value.fault is Fault.CALLER


@pytest.mark.parametrize("size", [-1, 3])
def test_a_response_too_short_for_its_header_is_the_upstreams_fault(size: int) -> None:
    with pytest.raises(ResponseFrameMalformed) as refused:
        fed(METADATA_RESPONSE, Inward(), [size.to_bytes(4, "big", signed=True) + bytes(20)])

    assert refused.value.fault is Fault.UPSTREAM


def test_a_request_beyond_the_frame_limit_is_refused_by_its_size_alone() -> None:
    with pytest.raises(RequestFrameTooLarge) as refused:
        fed(METADATA, Outward(), [(2**31 - 1).to_bytes(4, "big") + bytes(10)])

    assert refused.value.facts == {"size": 2**31 - 1, "limit": Limits().frame_bytes_max}


def test_a_response_beyond_the_frame_limit_is_refused_by_its_size_alone() -> None:
    with pytest.raises(ResponseFrameTooLarge):
        fed(METADATA_RESPONSE, Inward(), [(2**31 - 1).to_bytes(4, "big") + bytes(10)])


def test_a_frame_too_large_to_buffer_is_refused_before_it_is_buffered() -> None:
    with pytest.raises(RequestFrameTooLarge) as refused:
        fed(METADATA, Outward(), [metadata("t" * 2000)[:100]], Limits(held_bytes_max=1000))

    assert refused.value.facts["limit"] == 1000


def test_a_topic_list_that_claims_two_billion_names_is_refused() -> None:
    frame = bytearray(metadata("orders", version=8))
    at = frame.index(b"\0\0\0\1\0\6orders")
    frame[at : at + 4] = (2**31 - 1).to_bytes(4, "big")

    with pytest.raises(RequestFrameMalformed, match="claims 2147483647 elements"):
        fed(OLD_METADATA, Outward(), [bytes(frame)])


@pytest.mark.parametrize("version", [8, 12])
def test_elements_are_counted_before_they_are_read(version: int) -> None:
    limited = program(3, version, Direction.REQUEST, ALL_KINDS, elements_max=3)
    two, three = (metadata(*"abc"[:count], version=version) for count in (2, 3))

    assert spliced(limited, Outward(), two)  # the array counts as one
    with pytest.raises(RequestElementsTooMany) as refused:
        spliced(limited, Outward(), three)
    assert refused.value.facts == {"path": "MetadataRequest.Topics", "limit": 3}


def test_tagged_fields_are_counted_as_elements() -> None:
    taken = taking(12, 4, 3)
    body = {"GroupId": "g", "MemberId": "m", "_tags": dict.fromkeys(range(50, 54), b"")}
    frame = encode_request(Request("Heartbeat", 4, 1, None, body))

    with pytest.raises(RequestElementsTooMany):
        spliced(taken, Outward(), frame)


def test_a_taken_frame_with_too_many_elements_is_refused_unseen() -> None:
    out, recorder = taken_by(Recorder(taking(3, 12, 3)), [metadata("a"), metadata("a", "b", "c")])

    assert out == b""
    assert [len(recorder.frames), len(recorder.refusals)] == [1, 1]


@pytest.mark.parametrize("length", [-2, -(2**15)])
def test_a_negative_length_other_than_null_is_refused(length: int) -> None:
    frame = heartbeat("g").replace(b"\0\1g", length.to_bytes(2, "big", signed=True))

    with pytest.raises(RequestFrameMalformed, match="has length"):
        fed(HEARTBEAT, Outward(), [resized(frame)])


def test_a_null_name_where_none_is_allowed_is_refused() -> None:
    with pytest.raises(RequestFrameMalformed, match="is null"):
        fed(HEARTBEAT, Outward(), [resized(heartbeat("g").replace(b"\0\1g", b"\xff\xff"))])


def test_a_negative_count_is_refused() -> None:
    frame = metadata("orders", version=8).replace(b"\0\0\0\1\0\6orders", b"\xff\xff\xff\xfe")

    with pytest.raises(RequestFrameMalformed, match="has length -2"):
        fed(OLD_METADATA, Outward(), [resized(frame)])


def test_a_varint_without_end_is_refused() -> None:
    frame = metadata("orders").replace(b"\7orders", b"\xff" * 12)

    with pytest.raises(RequestFrameMalformed, match="longer than 5 bytes"):
        fed(METADATA, Outward(), [resized(frame)])


@pytest.mark.parametrize("whole", [0, 32 * 1024])
@pytest.mark.parametrize("extra", [b"\1\0\0", bytes(range(100))])
def test_bytes_after_the_last_field_of_a_request_are_forwarded_as_brokers_ignore_them(
    extra: bytes, whole: int
) -> None:
    """librdkafka sends three such bytes in a Metadata request for all topics."""
    produce = program(0, 9, Direction.REQUEST, ALL_KINDS)
    body = {"Acks": 1, "TimeoutMs": 1, "TopicData": []}
    for rewriting, frame in (
        (METADATA, metadata("a")),
        (produce, encode_request(Request("Produce", 9, 1, "c", body))),
    ):
        out, recorder = fed(
            rewriting, Outward(), [resized(frame + extra), frame], Limits(whole_bytes_max=whole)
        )

        plain, _ = fed(rewriting, Outward(), [frame], Limits(whole_bytes_max=whole))
        assert out == resized(plain + extra) + plain
        assert len(recorder.ended) == 2


def test_bytes_after_the_last_field_of_a_response_are_refused() -> None:
    frame = encode_response("Metadata", 12, Response(1, {"Brokers": [], "Topics": []}))

    with pytest.raises(ResponseFrameMalformed, match="4 bytes follow"):
        fed(METADATA_RESPONSE, Inward(), [resized(frame + bytes(4))])


def test_a_name_that_runs_into_the_next_frame_is_refused() -> None:
    frame = metadata("orders").replace(b"\7orders", b"\x7forders")

    with pytest.raises(RequestFrameMalformed, match="truncated"):
        fed(METADATA, Outward(), [frame + metadata("other") * 4])


def test_a_tagged_field_that_is_larger_than_it_claims_is_refused() -> None:
    endpoints = [{"NodeId": 1, "Host": "h", "Port": 9, "Rack": None}]
    frame = encode_response("Produce", 10, Response(1, {"Responses": [], "NodeEndpoints": endpoints}))
    at = frame.rindex(b"\x01\x00\x0d\x02")
    frame = frame[: at + 2] + b"\x0c" + frame[at + 3 :]

    with pytest.raises(ResponseFrameMalformed, match="does not have the size it claims"):
        fed(program(0, 10, Direction.RESPONSE, ALL_KINDS), Inward(), [frame])


def test_a_single_malformed_frame_is_refused_by_spliced() -> None:
    with pytest.raises(RequestFrameMalformed):
        spliced(METADATA, Outward(), resized(metadata("orders")[:-3]))
    with pytest.raises(ResponseFrameMalformed):
        spliced(METADATA_RESPONSE, Inward(), resized(bytes(9)))


def test_a_taken_frame_reaches_the_handler_whole_and_is_not_forwarded() -> None:
    frame = metadata("orders")

    out, recorder = taken_by(Recorder(TAKE), [frame[:20], frame[20:] + frame])

    assert recorder.frames == [frame[4:], frame[4:]]
    assert out == b""


def test_a_handlers_output_is_placed_between_the_frames_around_it() -> None:
    class Replacing(Recorder):
        def begin(self, *head: int) -> Any:
            self.program = TAKE if head[2] == 2 else METADATA
            return super().begin(*head)

        def taken(self, frame: bytes) -> None:
            out.append(b"INSTEAD")

    first, second, third = (
        encode_request(Request("Metadata", 12, number, None, {"Topics": None})) for number in (1, 2, 3)
    )
    out: list[Any] = []

    Requests(Replacing(METADATA), Outward()).feed(first + second + third, out)

    assert b"".join(map(bytes, out)) == first + b"INSTEAD" + third


def test_a_held_frame_waits_until_it_is_resumed() -> None:
    recorder = Recorder(HOLD)
    splicer = Requests(recorder, Outward())
    out: list[Any] = []
    splicer.feed(metadata("a"), out)
    splicer.feed(metadata("b"), out)
    assert out == []

    recorder.program = METADATA
    splicer.resume(out)

    expected, _ = fed(METADATA, Outward(), [metadata("a") + metadata("b")])
    assert b"".join(map(bytes, out)) == expected
    assert splicer.held_bytes == 0


def taken_by(recorder: Recorder, pieces: list[bytes]) -> tuple[bytes, Recorder]:
    out: list[Any] = []
    splicer = Requests(recorder, Outward())
    for piece in pieces:
        splicer.feed(piece, out)
    return b"".join(map(bytes, out)), recorder


# Fuzzing with valid frames that are then corrupted.


def corrupted(random: Random, frame: bytes) -> bytes:
    corrupt = bytearray(frame)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(4, len(corrupt))
        match random.randrange(6):
            case 0:
                corrupt[at] = random.randrange(256)
            case 1:
                corrupt[at] ^= 1 << random.randrange(8)
            case 2:
                corrupt[at : at + 4] = random.choice(
                    (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0")
                )
            case 3:
                corrupt[at:at] = random.randbytes(random.randrange(1, 9))
            case 4:
                del corrupt[at : at + random.randrange(1, 9)]
            case _:
                corrupt[at:at] = b"\xff\xff\xff\xff\x07"
        if len(corrupt) < 15:
            break
    if random.random() < 0.9:
        corrupt[:4] = (len(corrupt) - 4).to_bytes(4, "big")
    return bytes(corrupt)


def fuzz(random: Random, plan: Plan) -> bool:
    """Feed one corrupt frame in two pieces; returns whether it was refused."""
    names = random.choice((Outward, Inward))()
    limits = Limits(whole_bytes_max=random.choice((0, 32 * 1024)))
    rewriting = program(plan.api_key, plan.version, plan.direction, ALL_KINDS, observed=True)
    frame = corrupted(random, random_frame(random, plan))
    splicer: Any = (Requests if plan.direction is Direction.REQUEST else Responses)(
        Recorder(rewriting), names, limits
    )
    out: list[Any] = []
    cut = random.randrange(1, len(frame))
    fault = None
    try:
        splicer.feed(frame[:cut], out)
        splicer.feed(frame[cut:], out)
    except PenstockError as refused:
        fault = refused.fault
    assert fault in (None, Fault.CALLER if plan.direction is Direction.REQUEST else Fault.UPSTREAM)
    assert sum(map(len, out)) <= FRAME_GROWTH_MAX * len(frame)
    return fault is not None


def fuzzed(seed: int, count: int) -> int:
    random = Random(seed)
    return sum(fuzz(random, random.choice(PLANS)) for _ in range(count))


def test_corrupt_frames_are_forwarded_or_refused_with_a_typed_error() -> None:
    refused = fuzzed(seed=20261116, count=6_000)

    assert 1_000 < refused < 6_000


def test_false_lengths_allocate_nothing_large(peak_of: Callable[[Callable[[], Any]], int]) -> None:
    peak = peak_of(lambda: fuzzed(seed=7, count=300))

    assert peak < SIXTEEN_MEBIBYTES


@pytest.fixture
def peak_of() -> Callable[[Callable[[], Any]], int]:
    def measure(run: Callable[[], Any]) -> int:
        tracemalloc.start()
        run()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    return measure


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_a_million_corrupt_frames(seed: int) -> None:
    refused = fuzzed(seed=seed, count=100_000)

    assert refused > 10_000
