"""The fast path gives the same bytes and the same counts as a full parse."""

from __future__ import annotations

import base64
import ipaddress
import random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.gateway.limits.metering import Source
from penstock.gateway.process.metrics import GatewayMetrics
from penstock.gateway.settings import Bounds
from penstock.model.events import Dimension
from penstock.model.ids import PhysicalClusterId
from penstock.wire.definitions import load
from penstock.wire.frames import Request, Response, decode_request, encode_request, encode_response
from penstock.wire.records import Record, write
from tests.gateway.wires import BROKER, TENANT, Wire, quiet_gateway, serving_session

if TYPE_CHECKING:
    from penstock.gateway.process.session import Session
    from penstock.model.events import AckRange

PREFIX = TENANT.prefix.decode()
TOPICS = {"t": UUID(int=7), "orders": UUID(int=8), "x" * 130: UUID(int=9)}
VERSIONS = [v for v in load().request("Produce").valid_versions if v >= 7]


def kafka_id(topic_id: UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def batch(count: int, size: int) -> bytes:
    return write([Record(n, 1, None, bytes(size)) for n in range(count)])


def produce(version: int, number: int, topics: list[dict[str, Any]], **more: Any) -> bytes:
    body = {"TransactionalId": None, "Acks": 1, "TimeoutMs": 9, "TopicData": topics, **more}
    return encode_request(Request("Produce", version, number, "client", body))


def topic(version: int, name: str, *partitions: tuple[int, bytes | None]) -> dict[str, Any]:
    data = [{"Index": index, "Records": records} for index, records in partitions]
    named: dict[str, Any] = {"TopicId": TOPICS[name]} if version >= 13 else {"Name": name}
    return {**named, "PartitionData": data}


def response(frame: bytes, *, error: int = 0, text: str | None = None, offset: int = 5) -> bytes | None:
    """A broker's response to a request as it arrived."""
    request = decode_request(frame)
    if not request.body["Acks"]:
        return None
    responses = []
    for sent_topic in request.body["TopicData"]:
        rows = [
            {
                "Index": one["Index"],
                "ErrorCode": error,
                "BaseOffset": offset,
                "LogAppendTimeMs": -1,
                "LogStartOffset": 0,
                "RecordErrors": [],
                "ErrorMessage": text,
            }
            for one in sent_topic["PartitionData"]
        ]
        responses.append(
            {k: v for k, v in sent_topic.items() if k in ("Name", "TopicId")} | {"PartitionResponses": rows}
        )
    body = {"Responses": responses, "ThrottleTimeMs": 0}
    return encode_response("Produce", request.version, Response(request.correlation_id, body))


def new(*, fast_path: bool) -> tuple[Session, Wire, Wire]:
    session, client, broker = serving_session(quiet_gateway(Bounds()))
    assert session.connection.context is not None
    for name, topic_id in TOPICS.items():
        session.connection.context.topics.learn((PREFIX + name).encode(), topic_id.bytes)
    if not fast_path:
        session.connection.requests.fast_path = session.connection.responses.fast_path = None
    return session, client, broker


def acknowledged(session: Session) -> list[AckRange]:
    """All acknowledged ranges so far."""
    gateway = session.server
    return [one for record in gateway.services.acks.last(gateway.report_source) for one in record]


requests = st.tuples(
    st.sampled_from(VERSIONS),
    st.lists(  # topics, each with its partitions
        st.tuples(
            st.sampled_from(sorted(TOPICS)),
            st.lists(
                st.tuples(
                    st.integers(0, 2), st.sampled_from([(1, 0), (1, 90), (3, 200), (1, 17_000), (1, 40_000)])
                ),
                min_size=1,
                max_size=2,
            ),
        ),
        min_size=1,
        max_size=2,
        unique_by=lambda one: one[0],
    ),
    st.sampled_from([1, -1, 0]),
    st.sampled_from([None, "tx"]),
)


@settings(max_examples=60)
@given(
    sent=st.lists(requests, min_size=1, max_size=4),
    order=st.lists(st.integers(0, 3), max_size=12),
    cuts=st.integers(),
)
async def test_the_fast_path_gives_the_same_result_as_a_full_parse(
    sent: list[Any], order: list[int], cuts: int
) -> None:
    frames = []
    for number, place in enumerate(order):
        version, topics, acks, transactional = sent[place % len(sent)]
        rows = [topic(version, name, *((i, batch(*size)) for i, size in parts)) for name, parts in topics]
        frames.append(produce(version, number, rows, Acks=acks, TransactionalId=transactional))

    def run(*, fast_path: bool) -> tuple[Any, ...]:
        session, client, broker = new(fast_path=fast_path)
        sent, got = [], []
        luck = random.Random(cuts)
        rest = b"".join(frames)
        while rest:
            cut = luck.choice([len(rest), luck.randrange(1, len(rest) + 1), min(len(rest), 9_000)])
            session.data_received(rest[:cut])
            rest = rest[cut:]
            for frame in _complete(broker):
                sent.append(frame)
                session.from_broker(response(frame, offset=luck.randrange(100)) or b"")
                got.append(client.written)
        usage = session.connection.usage
        counts = (usage.requests, usage.bytes_in, usage.bytes_out)
        return sent, got, client.written, counts, acknowledged(session)

    assert run(fast_path=True) == run(fast_path=False)


def _complete(wire: Wire) -> list[bytes]:
    collected = []
    while len(wire.written) >= 4 and len(wire.written) >= 4 + int.from_bytes(wire.written[:4]):
        size = int.from_bytes(wire.written[:4])
        collected.append(wire.written[4 : 4 + size])
        wire.written = wire.written[4 + size :]
    return collected


@pytest.mark.parametrize("version", [v for v in VERSIONS if v >= 9])
async def test_a_repeated_request_and_its_response_are_not_parsed_again(version: int) -> None:
    session, client, broker = new(fast_path=True)
    for number in range(2):  # the first one is learned
        frame = produce(version, number, [topic(version, "t", (0, batch(1, 50 + number)))])
        if number:
            session.connection.requests.names = session.connection.responses.names = None  # type: ignore[assignment]  # a full parse would fail
        session.data_received(frame)
        (sent,) = broker.frames()
        session.from_broker(response(sent, offset=number) or b"")

    assert session.connection.usage.requests == 2
    assert [int.from_bytes(one[:4]) for one in client.frames()] == [0, 1]
    (ack_range,) = acknowledged(session)
    assert (ack_range.topic_id, ack_range.partition, ack_range.acks) == (kafka_id(TOPICS["t"]), 0, 1)
    assert (ack_range.first, ack_range.last, ack_range.records) == (0, 1, 2)
    assert ack_range.bytes == len(batch(1, 50)) + len(batch(1, 51))
    assert ack_range.max_timestamp_ms == 1


async def test_a_cached_head_does_not_validate_the_rest_of_a_frame() -> None:
    """After the same head: tagged fields, a second topic, a wrong length."""
    known = produce(10, 0, [topic(10, "t", (0, batch(1, 50)))])
    foreign = b"\x02\x05" + b"evil" + b"\x02" + bytes(4) + b"\x00\x00\x00"
    for tail in (foreign, b"\x01\x63\x01\x00\x00\x00"):
        data = bytearray(known[:-3] + tail + bytes(3))
        data[:4] = (len(data) - 4).to_bytes(4)
        walked, _, walked_broker = new(fast_path=False)
        walked.data_received(bytes(data))
        session, _, broker = new(fast_path=True)
        session.data_received(known)
        broker.frames()

        session.data_received(bytes(data))

        assert broker.frames() == walked_broker.frames()


async def test_a_forgotten_id_is_masked_again() -> None:
    session, _, broker = new(fast_path=True)
    assert session.connection.context is not None
    frame = produce(13, 1, [topic(13, "t", (0, batch(1, 50)))])
    session.data_received(frame * 2)
    before = broker.frames()
    session.connection.context.topics.forget((PREFIX + "t").encode())

    session.data_received(frame)

    assert before == [frame[4:]] * 2
    masked = decode_request(broker.frames()[0]).body["TopicData"][0]["TopicId"]
    assert masked.bytes == session.connection.context.topics.masked(TOPICS["t"].bytes)


async def test_a_response_with_an_error_is_parsed_and_its_text_cleaned() -> None:
    session, client, broker = new(fast_path=True)
    frame = produce(10, 1, [topic(10, "t", (0, batch(1, 50)))])
    session.data_received(frame * 2)
    first, second = broker.frames()

    session.from_broker(response(first) or b"")
    session.from_broker(
        response(second, error=87, text=f"{PREFIX}t has none, lkc-9xk4vt_u has", offset=-1) or b""
    )

    assert b"lkc-" not in client.written
    assert [ack_range.records for ack_range in acknowledged(session)] == [1]


async def test_cached_requests_are_bounded() -> None:
    session, _, broker = new(fast_path=True)
    records = batch(1, 50)

    for partition in range(1_000):
        session.data_received(produce(10, partition, [topic(10, "t", (partition, records))], Acks=0))
    for length in range(100):
        rows = [{"Name": "n" * (length + 1), "PartitionData": [{"Index": 0, "Records": records}]}]
        session.data_received(produce(10, 0, rows, Acks=0))

    assert len(broker.frames()) == 1_100
    assert len(session.connection.fast_path.by_head) <= 64
    assert session.connection.requests.learn is None  # it has seen enough requests that are not repeated


def fetch(
    number: int, topic_id: UUID, *, session: int = 0, epoch: int = -1, version: int = 16, rack: str = ""
) -> bytes:
    partition = {"Partition": 0, "FetchOffset": number, "PartitionMaxBytes": 9}
    body = {
        "MaxWaitMs": 1,
        "MinBytes": 1,
        "SessionId": session,
        "SessionEpoch": epoch,
        "Topics": [{"TopicId": topic_id, "Partitions": [partition]}],
        "RackId": rack,
    }
    return encode_request(Request("Fetch", version, number, "client", body))


def fetched(frame: bytes, records: bytes, *, session: int = 0) -> bytes:
    """A broker's response to a fetch as it arrived."""
    request = decode_request(frame)
    row = {"PartitionIndex": 0, "ErrorCode": 0, "HighWatermark": 3, "Records": records}
    topics = [
        {"TopicId": one["TopicId"], "Partitions": [{**row, "AbortedTransactions": None}]}
        for one in request.body["Topics"]
    ]
    body = {"ThrottleTimeMs": 0, "ErrorCode": 0, "SessionId": session, "Responses": topics}
    return encode_response("Fetch", request.version, Response(request.correlation_id, body))


fetches = st.tuples(
    st.sampled_from([13, 15, 16, 18]),
    st.sampled_from([UUID(int=7), UUID(int=8), UUID(int=77)]),  # the last one is unknown
    st.sampled_from([(0, -1), (0, 0), (5, 1), (5, 2), (5, -1), (6, 3)]),  # session and epoch
    st.sampled_from([0, 5, 6]),  # the session in the response
    st.sampled_from([50, 700, 40_000]),
)


@settings(max_examples=60)
@given(fetched_topics=st.lists(fetches, min_size=1, max_size=6), cuts=st.integers())
async def test_a_fetch_on_the_fast_path_gives_the_same_result_as_a_full_parse(
    fetched_topics: list[Any], cuts: int
) -> None:
    def run(*, fast_path: bool) -> tuple[Any, ...]:
        session, client, broker = new(fast_path=fast_path)
        session.connection.outward.fetching.clock = session.connection.inward.fetching.clock = lambda: 1.0
        mask = bytes(15) + b"\x40"
        session.connection.outward.topics._mask = int.from_bytes(mask)
        dice, sent = random.Random(cuts), []
        for number, (version, topic_id, (fetch_session, epoch), response_session, size) in enumerate(
            fetched_topics
        ):
            frame = fetch(number, topic_id, session=fetch_session, epoch=epoch, version=version)
            at = dice.randrange(len(frame))
            for part in (frame[:at], frame[at:]):
                if part:
                    session.data_received(part)
            for one in _complete(broker):
                sent.append(one)
                looks_up = one[:2] == b"\x00\x03"
                response = metadata(one) if looks_up else fetched(one, bytes(size), session=response_session)
                session.from_broker(response)
        usage = session.connection.usage
        counted = (usage.requests, usage.bytes_in, usage.bytes_out, len(session.connection.in_flight))
        return (
            sent,
            client.written,
            counted,
            dict(session.connection.outward.fetching.used),
            session.connection.outward.sessions,
        )

    assert run(fast_path=True) == run(fast_path=False)


def metadata(frame: bytes) -> bytes:
    """Metadata of topics that do not exist."""
    request = decode_request(frame)
    topics = [{"ErrorCode": 100, "Name": None, **one, "Partitions": []} for one in request.body["Topics"]]
    body = {"Brokers": [], "ClusterId": "c", "ControllerId": 1, "Topics": topics}
    return encode_response("Metadata", request.version, Response(request.correlation_id, body))


@pytest.mark.parametrize("version", [13, 16, 18])
async def test_a_fetch_of_known_ids_and_its_response_are_not_parsed(version: int) -> None:
    session, client, broker = new(fast_path=True)
    frame = fetch(3, TOPICS["t"], version=version)
    session.connection.requests.names = session.connection.responses.names = None  # type: ignore[assignment]  # a full parse would fail

    session.data_received(frame)
    (sent,) = broker.frames()
    session.from_broker(fetched(sent, b"records"))

    assert sent == frame[4:]
    assert client.frames() == [fetched(sent, b"records")[4:]]
    assert (session.connection.usage.requests, session.connection.usage.bytes_in) == (1, len(frame))
    assert not session.connection.in_flight


async def test_a_fetch_waits_like_any_request_while_too_many_are_in_flight() -> None:
    session, _, broker = serving_session(quiet_gateway())
    assert session.connection.context is not None
    session.connection.context.topics.learn((PREFIX + "t").encode(), TOPICS["t"].bytes)

    session.data_received(b"".join(fetch(number, TOPICS["t"]) for number in range(9)))

    assert len(broker.frames()) == len(session.connection.in_flight) == session.connection.in_flight_max


@pytest.mark.parametrize("cut", [12, 40])
async def test_a_response_that_arrives_in_two_pieces_is_charged_once(cut: int) -> None:
    session, client, broker = new(fast_path=True)
    assert session.connection.throttle is not None
    quota = session.connection.throttle.quota
    quota.retune({Dimension.EGRESS_BYTES: 1e6}, session.server.now())
    frame = produce(10, 1, [topic(10, "t", (0, batch(1, 50)))])
    session.data_received(frame * 2)
    first, second = (response(one) or b"" for one in broker.frames())
    session.from_broker(first)  # it is learned
    before = quota.egress_left

    session.from_broker(second[:cut])
    session.from_broker(second[cut:])

    assert len(client.frames()) == 2
    assert before - quota.egress_left == len(second)


def zones(session: Session) -> dict[tuple[str, str], tuple[int, int]]:
    return {
        pair: (each.bytes_in, each.bytes_out)
        for pair, each in session.connection.usage.zones.items()
        if each.bytes_in or each.bytes_out
    }


@pytest.mark.parametrize("version", [13, 16, 18])
async def test_bytes_are_counted_by_the_zones_of_broker_and_client(version: int) -> None:
    session, client, broker = new(fast_path=True)
    here, far, logged_in = str(BROKER.zone), "far", session.connection.usage.bytes_out
    written = produce(10, 1, [topic(10, "t", (0, batch(1, 50)))])
    session.data_received(written)
    responded = response(broker.frames()[0]) or b""  # with the broker's names: as brokers sent it
    session.from_broker(responded)
    first, later = (fetch(n, TOPICS["t"], version=version, rack=far) for n in (2, 3))

    for frame in (first, later):
        session.data_received(frame)
        session.from_broker(fetched(broker.frames()[0], b"records"))

    _, one, two = (4 + len(frame) for frame in client.frames())
    produced = len(responded)
    assert zones(session) == {
        (here, ""): (len(written), produced),
        (here, far): (len(first) + len(later), one + two),
    }
    usage = session.connection.usage
    assert usage.bytes_in == len(written) + len(first) + len(later)
    assert usage.bytes_out - logged_in == produced + one + two
    reported = usage.report(Source(PhysicalClusterId("pkc-000001"), "g", "i"), TENANT.id, 1, 1).used
    assert reported[f"cross_zone_egress_bytes/{here}/{far}"] == one + two
    assert reported[f"cross_zone_ingress_bytes/{here}/{far}"] == len(first) + len(later)


async def test_a_client_without_a_rack_is_in_the_zone_of_its_network() -> None:
    gateway = quiet_gateway(client_zones=((ipaddress.ip_network("127.0.0.0/8"), "near"),))
    session, _, broker = serving_session(gateway)
    frame = produce(10, 1, [topic(10, "t", (0, batch(1, 50)))], Acks=0)

    session.data_received(frame)

    assert broker.frames()
    assert zones(session) == {(str(BROKER.zone), "near"): (len(frame), 0)}
    metrics = {
        (sample.labels["zone"], sample.labels["client_zone"], sample.labels["way"]): sample.value
        for family in GatewayMetrics(gateway).collect()
        for sample in family.samples
        if sample.name == "penstock_gateway_zone_bytes_total"
    }
    assert metrics[str(BROKER.zone), "other", "in"] == len(frame)  # no broker is in that zone
