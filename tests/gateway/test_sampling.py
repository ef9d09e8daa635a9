"""A sample of requests and connections in the log: which, what is said of them, and what it costs if off."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from prometheus_client.core import CounterMetricFamily
from structlog.testing import capture_logs

from penstock.gateway.metrics import Figures
from penstock.gateway.sampling import LINES_PER_SECOND_MAX, Sampled
from penstock.gateway.session import Session
from penstock.gateway.settings import Bounds
from penstock.gateway.states import Event, advance
from penstock.gateway.tenancy import Realm
from penstock.gateway.upstream import Upstream
from penstock.wire.codes import Code
from tests.gateway.test_repeats import answer, batch, produce, topic
from tests.gateway.test_session import beat, heartbeat, request, versions_request
from tests.gateway.wires import BROKER, TENANT, Wire, quiet_gateway

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("orders", "lkc-7hq2mz_", "client", "xxxx")


@pytest.fixture(autouse=True)
def _every_line() -> None:
    """A command that another test ran in this process has left it with warnings alone."""
    structlog.reset_defaults()


def serving(rate: float | None, *, gateways: float = 0.0) -> tuple[Session, Wire, Wire]:
    """A session of a tenant with such a rate, on a gateway with another."""
    gateway = quiet_gateway(Bounds())
    gateway.samples.rate = gateways
    assert gateway.doorkeeper.knock("127.0.0.1", gateway.now()) is None
    session, client, broker = Session(gateway, 1, "127.0.0.1", BROKER), Wire(), Wire()
    session.connection_made(client)
    gateway.sessions[session.number] = session
    session.life = advance(session.life, Event.LOGGED_IN)
    upstream = Upstream(BROKER)
    upstream.connection_made(broker)
    session.link(upstream, Realm(replace(TENANT, log_sample=rate), {1: (b"gateway", 9001)}))
    return session, client, broker


def told(work: Callable[[], object], event: str = "request") -> list[dict[str, Any]]:
    with capture_logs() as lines:
        work()
    return [line for line in lines if line["event"] == event]


async def test_every_third_request_is_told_of_and_the_first_with_them() -> None:
    session, client, _ = serving(0.33)

    def ask() -> None:
        for number in range(7):
            session.data_received(heartbeat(number))
            session.from_broker(beat(number))

    lines = told(ask)

    assert len(lines) == 3
    assert len(client.frames()) == 7
    assert {line["api"] for line in lines} == {"Heartbeat"}
    assert lines[0]["tenant"] == TENANT.id
    assert lines[0]["connection"] == session.number
    assert (lines[0]["bytes_in"], lines[0]["bytes_out"]) == (len(heartbeat(0)), len(beat(0)))
    assert lines[0]["broker_ms"] >= 0


async def test_what_is_known_by_heart_is_told_of_like_what_is_walked() -> None:
    session, client, broker = serving(1.0)
    frames = [produce(9, n, [topic(9, "orders", (0, batch(1, 90)))]) for n in range(4)]
    answers: list[bytes] = []

    def ask() -> None:
        for frame in frames:
            session.data_received(frame)
            (sent,) = broker.frames()
            answers.append(answer(sent) or b"")
            session.from_broker(answers[-1])

    lines = told(ask)

    assert session.repeats.known is not None  # the later ones went by heart
    assert [line["bytes_in"] for line in lines] == [len(frame) for frame in frames]
    assert [line["bytes_out"] for line in lines] == [len(frame) for frame in answers]
    assert len(client.frames()) == 4
    assert not any(name in str(lines) for name in NAMES if name != "client")


@pytest.mark.parametrize("acks", [0, 1])
async def test_a_request_without_an_answer_is_told_of_at_once(acks: int) -> None:
    session, _, _ = serving(1.0)
    frames = [produce(9, n, [topic(9, "orders", (0, batch(1, 90)))], Acks=acks) for n in range(3)]

    lines = told(lambda: [session.data_received(frame) for frame in frames])

    assert len(lines) == (0 if acks else 3)
    assert all(line["bytes_out"] == 0 for line in lines)


async def test_what_is_answered_here_or_refused_is_told_of_without_a_brokers_time() -> None:
    session, client, _ = serving(1.0)
    created = request(
        "DeleteTopics", 1, 5, TopicNames=["x" * 300], TimeoutMs=9
    )  # longer than a name may be below the prefix

    lines = told(lambda: [session.data_received(versions_request(4)), session.data_received(created)])

    assert [line["api"] for line in lines] == ["ApiVersions", "DeleteTopics"]
    assert all("broker_ms" not in line for line in lines)
    assert [line["bytes_out"] for line in lines] == [4 + len(frame) for frame in client.frames()]
    assert "xxxx" not in str(lines)


async def test_an_error_of_the_broker_has_its_name() -> None:
    session, _, broker = serving(1.0)

    def ask() -> None:
        session.data_received(produce(9, 1, [topic(9, "orders", (0, batch(1, 90)))]))
        session.from_broker(answer(broker.frames()[0], error=Code.NOT_LEADER_OR_FOLLOWER) or b"")

    (line,) = told(ask)

    assert line["error"] == "NOT_LEADER_OR_FOLLOWER"


async def test_a_connection_is_told_of_when_it_logs_in_and_when_it_ends() -> None:
    with capture_logs() as lines:
        session, _, _ = serving(None, gateways=1.0)
        session.data_received(heartbeat(1))
        session.from_broker(beat(1))
        session.close("drained")
        session.connection_lost(None)

    first, _, last = (line for line in lines if "connection" in line)  # other gateways may say something
    assert (first["event"], last["event"]) == ("connection opened", "connection closed")
    assert first["address"] == "127.0.0.1"
    assert (last["why"], last["requests"]) == ("drained", 1)
    assert (last["bytes_in"], last["bytes_out"]) == (len(heartbeat(1)), len(beat(1)))


@pytest.mark.parametrize(("tenants", "gateways"), [(None, 0.0), (0.0, 1.0)])
async def test_whoever_has_no_rate_is_served_by_the_sessions_own_handlers(
    tenants: float | None, gateways: float
) -> None:
    session, _, _ = serving(tenants, gateways=gateways)

    assert session.requests.handler is session.asking
    assert session.requests.by_heart == session.repeats.asked
    assert session.witness is None
    assert not session.server.samples.tenants


async def test_lines_beyond_those_a_second_may_have_are_counted() -> None:
    gateway = quiet_gateway()
    sampled = gateway.samples.tenants[TENANT.id] = Sampled(TENANT.id, 1.0)

    def say(now: float, count: int) -> None:
        for _ in range(count):
            sampled.say("request", now, {})

    first, second = told(lambda: say(7.5, LINES_PER_SECOND_MAX + 5)), told(lambda: say(8.0, 1))

    assert (len(first), len(second), sampled.dropped) == (LINES_PER_SECOND_MAX, 1, 5)
    families = {family.name: family for family in Figures(gateway).collect()}
    family = families["penstock_gateway_log_lines_dropped"]
    assert isinstance(family, CounterMetricFamily)
    assert [sample.value for sample in family.samples] == [5.0]


async def test_a_new_rate_holds_for_the_next_connection_and_a_tenant_that_is_gone_is_forgotten() -> None:
    session, _, _ = serving(1.0)
    samples = session.server.samples
    samples.tenants[TENANT.id].dropped = 3

    samples.attach(session, replace(TENANT, log_sample=0.5))

    assert (samples.tenants[TENANT.id].every, samples.tenants[TENANT.id].dropped) == (2, 3)
    samples.forget(())
    assert not samples.tenants
