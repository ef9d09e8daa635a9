"""Kafka's parser and ours on the same mutated requests: what both accept means the same to both.

A request that Kafka reads differently from the gateway could carry another tenant's name past the renaming.
`KafkaParser.java` turns a request into the canonical form of what Kafka has read. Two properties follow, for
every request that both sides accept:

- a request decoded and encoded by the gateway has the canonical form of the request itself;
- a request rewritten by the gateway has the canonical form of the rewritten canonical request, whether it was
  rewritten whole, as a stream or by the fast path.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
from collections import Counter
from functools import cache
from itertools import product
from threading import Thread
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest

from penstock.gateway.connection.local_requests import decoded
from penstock.gateway.connection.routes import FETCH, PRODUCE, routes
from penstock.gateway.settings import Bounds
from penstock.gateway.tenancy.tenant_names import Outward, TenantContext
from penstock.model.errors import PenstockError
from penstock.wire.codec_runtime import uvarint
from penstock.wire.definitions import STRUCT, load
from penstock.wire.frames import Request, encode_request
from penstock.wire.splice import Limits, Program, Requests, spliced
from tests.gateway.slots import Chosen, body_of
from tests.gateway.wires import TENANT, quiet_gateway, serving_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.gateway.connection.connection import Connection
    from penstock.wire.definitions import Field
    from penstock.wire.splice import Action, Buffer, Observations

OWN_ID: Final = UUID(int=0x0123_4567_89AB_CDEF_0123_4567_89AB_CDEF)
FOREIGN_ID: Final = UUID(int=0xFEED_FACE_CAFE_BEEF_0123_4567_89AB_CDEF)
OWN: Final = Chosen("orders", "readers", "writers", OWN_ID, "ord.*")
UNWRITABLE: Final = b""  # read by Kafka, which cannot write it: text grows when invalid bytes are replaced
BATCH: Final = 2_000
FRAMES: Final = 6_000
FRAMES_SOAKED: Final = int(os.environ.get("SOAK_FRAMES", "1000000"))
MARKED: Final = {100: b"a mark"}
MARK: Final = b"\1\x64\6a mark"
NO_TAGS: Final = b"\0"
REPLICA_STATE: Final = b"\0\0\0\5" + b"\xff" * 8 + b"\0"
# Values of known tagged fields: null, a text, an id, an offset, a replica's state and a consumer's.
TAGGED: Final = (b"\0", b"\2x", FOREIGN_ID.bytes, b"\x7f" + b"\xff" * 7, REPLICA_STATE, b"\xff" * 12 + b"\0")
_size = struct.Struct(">i")


class KafkaParser:
    """Kafka's parser in a separate process."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            [*command, "KafkaParser"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def canonical(self, frames: list[bytes]) -> list[bytes | None]:
        """Each request as Kafka reads it, with its size; None for those that it cannot read."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None

        def send() -> None:
            stdin.write(b"".join([*frames, _size.pack(-1)]))
            stdin.flush()

        sender = Thread(target=send)
        sender.start()
        read: list[bytes | None] = []
        for _ in frames:
            (size,) = _size.unpack(stdout.read(4))
            framed = _size.pack(size) + stdout.read(size) if size > 0 else UNWRITABLE
            read.append(None if size == 0 else framed)
        sender.join()
        return read

    def close(self) -> None:
        self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def kafka_parser(java_command: list[str]) -> Iterator[KafkaParser]:
    parser = KafkaParser(java_command)
    yield parser
    parser.close()


# Requests


@cache
def valid_requests() -> list[bytes]:
    """One valid request of each API and version, the gateway's or not."""
    return [framed(frame.replace(MARK, NO_TAGS)) for frame in marked_requests(1)]


@cache
def marked_requests(elements: int) -> list[bytes]:
    """The same with so many structs in each array, and a mark in each section of tagged fields."""
    definitions = load()
    return [
        request_of(api, version, elements)
        for api in definitions.apis().values()
        for version in definitions.request(api).valid_versions
    ]


def request_of(api: str, version: int, elements: int = 1) -> bytes:
    body = body_of(api, version, OWN)
    if api == "Fetch":
        body |= {"SessionEpoch": -1, "ForgottenTopicsData": []}  # so that the fast path passes it
    if "ReplicaId" in body:
        body["ReplicaId"] = -1
    flexible = load().request(api).is_flexible(version)
    if flexible:
        body = without_tags(load().request(api).fields, version, body, elements)
    return encode_request(Request(api, version, 7, "c", body, MARKED if flexible else None))


def without_tags(
    fields: tuple[Field, ...], version: int, body: dict[str, Any], elements: int
) -> dict[str, Any]:
    """A struct without its tagged fields, marked instead, and all structs inside it."""
    plain: dict[str, Any] = {"_tags": MARKED}
    for field in fields:
        if version in field.versions and version not in field.tagged:
            value = body[field.name]
            if field.kind == STRUCT:
                structs = value * elements if field.array else [value]
                inner = [without_tags(field.fields, version, one, elements) for one in structs]
                value = inner if field.array else inner[0]
            plain[field.name] = value
    return plain


def mutated(luck: random.Random, frame: bytes) -> bytes:
    """A request with one or a few changes that parsers are known to treat differently."""
    data = bytearray(frame[4:])
    for _ in range(luck.choice((1, 1, 1, 2, 4))):
        mutate(luck, data, luck.randrange(8, len(data)))  # API, version and correlation id stay
    return framed(frame[:4] + data)


def mutate(luck: random.Random, data: bytearray, at: int) -> None:
    match luck.randrange(12):
        case 0:  # any byte
            data[at] = luck.randrange(256)
        case 1:  # null, empty, one, the largest of a byte
            data[at] = luck.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        case 2:  # a varint longer than necessary
            width = luck.randrange(1, 6)
            data[at : at + 1] = bytes([data[at] & 0x7F | 0x80, *[0x80] * (width - 1), 0])
        case 3:  # a huge varint, or one beyond 31, 32 and 35 bits
            data[at : at + 1] = luck.choice(
                (
                    b"\xff\xff\xff\xff\x07",
                    b"\xff\xff\xff\xff\x0f",
                    b"\x80\x80\x80\x80\x10",
                    b"\xff" * 5 + b"\0",
                )
            )
        case 4:  # counts and lengths of fixed size: negative, huge, null
            data[at : at + 4] = luck.choice(
                (b"\xff\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x7f\xff\xff\xff", b"\x80\0\0\0", bytes(4))
            )
        case 5:
            data[at : at + 2] = luck.choice((b"\xff\xff", b"\xff\xfe", b"\x7f\xff", b"\x80\0", bytes(2)))
        case 6:
            del data[at : at + luck.choice((1, 2, 4, 16))]
            data.extend(bytes(max(0, 9 - len(data))))
        case 7:  # an element twice
            length = luck.choice((1, 4, 16, 17, 33))
            data[at:at] = data[at : at + length]
        case 8:  # text that is not UTF-8: a lone byte, an overlong form, a surrogate
            invalid = luck.choice((b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"))
            data[at : at + len(invalid)] = invalid
        case 9:  # bytes after the last field
            data += luck.randbytes(luck.randrange(1, 20))
        case _:  # tagged fields in place of none
            places = [place for place in range(8, len(data)) if not data[place]]
            place = luck.choice(places) if places else at
            data[place : place + 1] = tags(luck)


def smuggled(marked: bytes) -> Iterator[bytes]:
    """This request with a tagged field that claims more than its value, in each section of tagged fields.

    A parser that ignores the size of a known field reads what follows the value: the rest of the request with
    other names, or another tagged field. One that skips by the size reads what follows that.
    """
    parts = marked.split(MARK)
    for section in range(1, len(parts)):
        start, rest = NO_TAGS.join(parts[:section]), NO_TAGS.join(parts[section:])
        renamed = rest.replace(OWN_ID.bytes, FOREIGN_ID.bytes).replace(b"orders", b"others")
        for tag, value in product((b"\0", b"\1"), TAGGED):
            yield framed(start + b"\1" + tag + sized(value, renamed) + rest)
            for hidden in (b"\1" + sized(REPLICA_STATE), b"\0" + sized(b"\2x")):
                yield framed(start + b"\2" + tag + sized(value, hidden) + b"\x64\0" + rest)


def sized(value: bytes, hidden: bytes = b"") -> bytes:
    return uvarint(len(value) + len(hidden)) + value + hidden


def framed(frame: bytes) -> bytes:
    """With the right size in its first bytes."""
    return _size.pack(len(frame) - 4) + frame[4:]


def tags(luck: random.Random) -> bytes:
    """A section of tagged fields: known and unknown, repeated, out of order, with a wrong size."""
    fields = []
    for _ in range(luck.choice((1, 1, 2, 3))):
        value = luck.choice((b"", *TAGGED))
        size = len(value) + luck.choice((0, 0, 0, -1, 1, 17, len(value)))
        fields.append(uvarint(luck.choice((0, 0, 1, 1, 2, 100))) + uvarint(max(size, 0)) + value)
    count = len(fields) + luck.choice((0, 0, 0, 1, -1))
    return uvarint(max(count, 0)) + b"".join(fields)


# What the gateway makes of them


class Forward:
    """Lets every frame of one program pass."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def begin(self, api_key: int, version: int, correlation_id: int, size: int) -> Program | Action:
        return self.program

    def end(self, seen: Observations | None) -> None:
        pass

    def taken(self, frame: bytes) -> None:
        raise AssertionError("a program was chosen")

    def refused(self, frame: bytes, error: Exception) -> None:
        raise error


class Gateway:
    """Everything that turns a client's request into one for the broker, for one tenant."""

    def __init__(self, connection: Connection) -> None:
        assert connection.context is not None
        self.context: TenantContext = connection.context
        self.context.topics.learn(TENANT.prefix + b"orders", OWN_ID.bytes)
        self.connection = connection
        self.names = Outward(self.context, {})

    def program(self, frame: bytes) -> Program | None:
        route = routes(restricted=False).get(struct.unpack_from(">hh", frame, 4))
        return route.request if route is not None and isinstance(route.request, Program) else None

    def whole(self, frame: bytes) -> bytes | None:
        program = self.program(frame)
        try:
            return spliced(program, self.names, frame) if program is not None else None
        except PenstockError:
            return None

    def stream(self, frame: bytes, luck: random.Random) -> bytes | None:
        program = self.program(frame)
        if program is None or not program.streams:
            return None
        out: list[Buffer] = []
        requests = Requests(Forward(program), self.names, Limits(whole_bytes_max=0))
        cut = luck.randint(0, len(frame))
        try:
            requests.feed(frame[:cut], out)
            requests.feed(frame[cut:], out)
        except PenstockError:
            return None
        return b"".join(out) if requests.between_frames and not requests.held_bytes else None

    def fast(self, frame: bytes) -> bytes | None:
        if frame[4:6] not in (PRODUCE.to_bytes(2), FETCH.to_bytes(2)):
            return None
        out: list[Buffer] = []
        passed = self.connection.fast_path.pass_request(frame, 0, len(frame), out)
        self.connection.in_flight.clear()
        return b"".join(out) if passed else None

    def decoded(self, frame: bytes) -> bytes | None:
        try:
            return encode_request(decoded(frame[4:]))
        except PenstockError:
            return None

    def learn(self) -> None:
        """Fill the fast path's cache with one request of each version of Produce."""
        for frame in valid_requests():
            if frame[4:6] == PRODUCE.to_bytes(2):
                self.connection.from_client(frame, 0.0)
        self.connection.in_flight.clear()
        self.connection.to_broker.clear()


def differences(
    parser: KafkaParser, gateway: Gateway, luck: random.Random, frames: list[bytes]
) -> Counter[str]:
    """Compare what both accept; returns how many requests were compared in which way."""
    compared: Counter[str] = Counter()
    kafkas = parser.canonical(frames)
    compared["read by Kafka"] = sum(one is not None for one in kafkas)
    made: list[tuple[str, bytes, bytes, bytes]] = []  # how, the frame, what must be equal
    for frame, canonical in zip(frames, kafkas, strict=True):
        if not canonical:
            continue
        again = gateway.decoded(frame)
        if again is not None:
            made.append(("decoded", frame, again, canonical))
        ways = {
            "whole": gateway.whole(frame),
            "stream": gateway.stream(frame, luck),
            "fast": gateway.fast(frame),
        }
        expected = gateway.whole(canonical)
        for way, sent in ways.items():
            if sent is not None:
                assert expected is not None, (
                    f"{way} {frame.hex()}: refused in canonical form {canonical.hex()}"
                )
                made.append((way, frame, sent, expected))
    sent_forms = parser.canonical([sent for _, _, sent, _ in made])
    expected_forms = parser.canonical([expected for *_, expected in made])
    for (way, frame, sent, expected), got, must in zip(made, sent_forms, expected_forms, strict=True):
        assert got == must, f"{way} {frame.hex()}\nsent {sent.hex()}\nexpected {expected.hex()}"
        compared[way] += 1
    return compared


def fuzz(parser: KafkaParser, gateway: Gateway, luck: random.Random, count: int) -> Counter[str]:
    compared: Counter[str] = Counter()
    whole = valid_requests()
    hot = [frame for frame in whole if frame[4:6] in (PRODUCE.to_bytes(2), FETCH.to_bytes(2))]
    while compared["frames"] < count:
        chosen = luck.choices(whole, k=BATCH * 3 // 4) + luck.choices(hot, k=BATCH // 4)
        compared += differences(parser, gateway, luck, [mutated(luck, frame) for frame in chosen])
        compared["frames"] += BATCH
    return compared


async def new_gateway() -> Gateway:
    session, _, _ = serving_session(quiet_gateway(Bounds()))
    gateway = Gateway(session.connection)
    gateway.learn()
    return gateway


@pytest.mark.kafka
async def test_kafka_reads_every_valid_request_as_the_gateway_does(kafka_parser: KafkaParser) -> None:
    frames = valid_requests()

    compared = differences(kafka_parser, await new_gateway(), random.Random(1), frames)

    assert compared["read by Kafka"] == compared["decoded"] == len(frames)


@pytest.mark.kafka
async def test_no_tagged_field_hides_anything_from_the_gateway(kafka_parser: KafkaParser) -> None:
    """A Fetch once took a foreign topic's id and a replica's state to the broker in this way."""
    gateway, luck, compared = await new_gateway(), random.Random(1), Counter[str]()
    for marked in marked_requests(2):
        compared += differences(kafka_parser, gateway, luck, list(smuggled(marked)))

    assert compared["read by Kafka"] > 1000


@pytest.mark.kafka
async def test_what_kafka_and_the_gateway_accept_means_the_same_to_both(kafka_parser: KafkaParser) -> None:
    compared = fuzz(kafka_parser, await new_gateway(), random.Random(2), FRAMES)

    for way in ("decoded", "whole", "stream", "fast"):
        assert compared[way] > FRAMES // 200, compared


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_a_million_requests_mean_the_same_to_kafka_and_the_gateway(kafka_parser: KafkaParser) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")

    print(fuzz(kafka_parser, await new_gateway(), random.Random(seed), FRAMES_SOAKED))
