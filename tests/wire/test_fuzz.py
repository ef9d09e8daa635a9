"""Malformed frames: no hang, no unbounded memory, and a typed error that blames the sender."""

from __future__ import annotations

import resource
import tracemalloc
from random import Random
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors import Fault
from penstock.model.errors.wire import (
    BatchCorrupt,
    BatchTooLarge,
    BatchTooOld,
    DefinitionUnknown,
    RequestMalformed,
    ResponseMalformed,
    VersionUnknown,
)
from penstock.wire.compression import Compression
from penstock.wire.definitions import load
from penstock.wire.frames import (
    Request,
    Response,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from penstock.wire.records import Record, batches, records, write
from tests.wire.values import random_values

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAMES_IN_SUITE = 12_000
FRAMES_IN_SOAK = 1_000_000
RESIDENT_GROWTH_MAX_KB = 300_000
FALSE_LENGTHS = (
    b"\xff\xff\xff\xff\x07",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff" * 9,
    b"\x00" * 8,
    b"\xff\x7f",
)


def mutated(frame: bytes, rng: Random) -> bytes:
    out = bytearray(frame)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(6)
        if kind == 0 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del out[at:]
        elif kind == 2:
            out[at:at] = rng.randbytes(rng.randrange(1, 6))
        elif kind == 3:
            del out[at : at + rng.randrange(1, 6)]
        elif kind == 4:
            length = rng.choice(FALSE_LENGTHS)
            out[at : at + len(length)] = length
        elif out:
            out[at % len(out)] = rng.randrange(256)
    return bytes(out)


def corpus(rng: Random) -> Iterator[tuple[str, int, bytes, bytes]]:
    """Every API and version: a request and a response of random values, without their sizes."""
    while True:
        for api in load().apis().values():
            request, response = load().request(api), load().response(api)
            for version in request.valid_versions:
                sent = Request(api, version, 7, "fuzz", random_values(request.fields, version, rng))
                received = Response(7, random_values(response.fields, version, rng))
                yield api, version, encode_request(sent)[4:], encode_response(api, version, received)[4:]


def fuzz(frames: int, seed: int) -> dict[str, int]:
    rng = Random(seed)
    seen = {"read": 0, "refused": 0}
    done = 0
    for api, version, request, response in corpus(rng):
        for _ in range(8):
            try:
                decode_request(mutated(request, rng))
                seen["read"] += 1
            except (RequestMalformed, DefinitionUnknown, VersionUnknown) as refused:
                assert refused.fault is not Fault.UPSTREAM  # noqa: PT017  (the loop continues)
                seen["refused"] += 1
            try:
                decode_response(api, version, mutated(response, rng))
                seen["read"] += 1
            except ResponseMalformed as refused:
                assert refused.fault is Fault.UPSTREAM  # noqa: PT017
                seen["refused"] += 1
            done += 2
        if done >= frames:
            return seen
    raise AssertionError("the corpus never ends")


def test_mutated_frames_are_read_or_refused_by_a_typed_error() -> None:
    seen = fuzz(FRAMES_IN_SUITE, seed=20_260)

    assert seen["read"] > 500
    assert seen["refused"] > 1000


@pytest.mark.soak
def test_a_million_mutated_frames_leak_no_memory() -> None:
    fuzz(10_000, seed=1)  # every codec is compiled once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    seen = fuzz(FRAMES_IN_SOAK, seed=2)

    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert seen["read"] + seen["refused"] >= FRAMES_IN_SOAK
    assert grown < RESIDENT_GROWTH_MAX_KB


def test_false_lengths_allocate_next_to_nothing() -> None:
    malformed = [bytes(28) + length * 10 for length in FALSE_LENGTHS] + [
        length * 20 for length in FALSE_LENGTHS
    ]
    names = [(api, load().response(api).valid_versions.last) for api in load().apis().values()]
    for api, version in names:  # compiled before measuring
        decode_response(api, version, encode_response(api, version, Response(1, {}))[4:])
    tracemalloc.start()
    try:
        for api, version in names:
            for frame in malformed:
                try:
                    decode_response(api, version, frame)
                except ResponseMalformed:
                    continue
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20


def test_mutated_batches_are_read_or_refused_by_a_typed_error() -> None:
    rng = Random(20_261)
    seen = {"read": 0, "refused": 0}
    for _ in range(600):
        compression = rng.choice(list(Compression))
        rows = [
            Record(i, i, rng.randbytes(3), rng.randbytes(rng.randrange(50)))
            for i in range(rng.randrange(1, 9))
        ]
        whole = write(rows, compression=compression)
        for _ in range(8):
            try:
                for batch in batches(mutated(whole, rng)):
                    records(batch, size_max=1 << 20)
                seen["read"] += 1
            except (BatchCorrupt, BatchTooOld, BatchTooLarge):
                seen["refused"] += 1

    assert seen["refused"] > 1000
    assert seen["read"] > 100  # cut at the end, or changed where the CRC does not reach
