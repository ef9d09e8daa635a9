"""What is said here rather than passed on: login, versions, refusals, and requests built anew.

Beside the data path: whatever needs a whole request in hand, or time. While something takes time
the client is held, so that its later requests keep their place.
"""

from __future__ import annotations

import asyncio
import random
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from penstock.gateway import access, errands, rebuild, views
from penstock.gateway.access import Unfit
from penstock.gateway.admission import Denial
from penstock.gateway.apis import DENIALS, Treatment, treatment
from penstock.gateway.login import authenticate, handshake_answer, login_answer, login_refusal
from penstock.gateway.platform import ERRAND_SECONDS
from penstock.gateway.refusals import refusal
from penstock.gateway.routes import API_VERSIONS
from penstock.gateway.states import HELD, Event, State, advance
from penstock.gateway.topics import MISSES_MAX
from penstock.gateway.upstream import CLIENT_ID, dial, log_in
from penstock.kafka.configs import ResourceKind
from penstock.model.errors import PenstockError
from penstock.model.errors.gateway import BrokersUnknown, UpstreamUnreachable
from penstock.model.errors.wire import RequestMalformed
from penstock.wire.codec import decode_at
from penstock.wire.codes import Code
from penstock.wire.definitions import load
from penstock.wire.frames import (
    Request,
    Response,
    decode_response,
    encode_request,
    encode_response,
    request_header_version,
)
from penstock.wire.rules import Kind
from penstock.wire.splice import Program, spliced

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.gateway.config import Holder
    from penstock.gateway.routes import Route
    from penstock.gateway.session import Session
    from penstock.model.errors.plans import AnswerRefused, NameRefused

CORRELATION_ID: Final = 0  # of requests of our own
METADATA: Final = 3
LOOK_UP_VERSION: Final = 12  # of Metadata; the first that takes ids alone
REFUSED_SECONDS: Final = 0.2  # a wrong login waits this long before its connection is closed
# A right one that is one too many waits longer, and hears nothing: to clients a refusal is final, the end
# of a connection is not, and the slower they come back, and the less all at once, the less it costs.
TOO_MANY: Final = frozenset((Denial.TENANT_RATE, Denial.TENANT_FULL, Denial.BROKER_RATE, Denial.GATEWAY_FULL))
TOO_MANY_SECONDS: Final = (1.0, 3.0)
OPERATIONS_ASKED: Final = "IncludeClusterAuthorizedOperations"
OPERATIONS_TOLD: Final = "ClusterAuthorizedOperations"
REFUSED_TEXT: Final = "Not served here: see the table of APIs in the gateway's documentation."

_start = struct.Struct(">hhi")
_framed_start = struct.Struct(">ihhi")

# What a name that cannot be is told, by kind.
_CODES: Final = {
    Kind.TOPIC: Code.INVALID_TOPIC_EXCEPTION,
    Kind.GROUP: Code.INVALID_GROUP_ID,
    Kind.CONFIG_NAME: Code.INVALID_CONFIG,
    Kind.TOPIC_REGEX: Code.INVALID_REGULAR_EXPRESSION,
    Kind.TRANSACTIONAL_ID_REGEX: Code.INVALID_REGULAR_EXPRESSION,
    Kind.CONFIG_RESOURCE: Code.CLUSTER_AUTHORIZATION_FAILED,
}


class Dialogue:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.task: asyncio.Task[None] | None = None
        self.mechanism_agreed = False
        self.answers: list[asyncio.Future[bytes]] = []  # to requests of our own; no deque: most have none

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    # A whole request in hand

    def take(self, frame: bytes) -> None:
        session = self.session
        api_key, version, correlation_id = _start.unpack_from(frame)
        if api_key == API_VERSIONS:
            session.answer(session.server.versions_answer(session.broker, version, correlation_id))
            return
        request = decoded(frame)
        how = treatment(request.api, request.version)
        if how in (Treatment.REFUSED, Treatment.DENIED):
            session.server.denied(session, Denial.API_REFUSED, api=request.api)
            code = DENIALS.get(request.api, Code.UNSUPPORTED_VERSION)
            self.say_no(request, code, REFUSED_TEXT, or_nothing=how is Treatment.DENIED)
        elif request.api == "SaslHandshake":
            answer, self.mechanism_agreed = handshake_answer(request)
            session.answer(answer)
        elif request.api == "SaslAuthenticate":
            self.log_in(request)
        elif how is Treatment.HERE:
            self.say(request, self.told_here(request))
        elif how is Treatment.ERRAND:
            self.busy(self.run_errand(request), seconds=ERRAND_SECONDS)
        else:
            route = session.asking.route
            assert route is not None, "only a login comes without a route"
            self.build_anew(request, route)

    def told_here(self, request: Request) -> dict[str, Any]:
        """What needs no broker."""
        server, holder = self.session.server, self.session.life.holder
        assert holder is not None
        match request.api:
            case "GetTelemetrySubscriptions":
                return server.telemetry.subscription(request.body)
            case "PushTelemetry":
                return server.telemetry.pushed(holder.tenant, request.body, server.now())
            case _:
                return views.scram_users(request.body["Users"])

    def refuse(self, frame: bytes, error: NameRefused | AnswerRefused) -> None:
        """A name in a request cannot be passed on."""
        request = decoded(frame)
        self.session.server.denied(self.session, Denial.NAME_REFUSED, api=request.api, error=error)
        kind = error.facts.get("kind")
        code = _CODES.get(kind, Code.INVALID_REQUEST) if isinstance(kind, Kind) else Code.INVALID_REQUEST
        if request.api == "Produce" and request.body["Acks"] == 0:
            self.session.close("a request without an answer was refused")
            return
        self.say_no(request, code, "This name cannot be used here.")

    def say_no(self, request: Request, code: int, text: str, *, or_nothing: bool = False) -> None:
        frame = refusal(request, code, text, or_nothing=or_nothing)
        if frame is None:
            self.session.close(f"{request.api} has no place for an error")
            return
        self.session.answer(frame)

    def say(self, request: Request, body: dict[str, Any]) -> None:
        answer = Response(request.correlation_id, body)
        self.session.answer(encode_response(request.api, request.version, answer))

    # Login

    def log_in(self, request: Request) -> None:
        session = self.session
        server = session.server
        address = session.life.address
        if not self.mechanism_agreed:
            raise RequestMalformed(
                message=request.api, version=request.version, reason="no handshake came before"
            )
        self.mechanism_agreed = False
        holder = authenticate(request.body["AuthBytes"], server.config, address)
        if holder is None:
            server.doorkeeper.failed(address, server.now())
            self.turn_away(request, Denial.BAD_CREDENTIALS)
        elif session.tenant_wanted and session.tenant_wanted != holder.tenant:
            server.doorkeeper.failed(address, server.now())
            self.turn_away(request, Denial.WRONG_HOST)
        elif session.life.serves:
            self.log_in_again(request, holder)
        elif session.life.state is not State.HANDSHAKE:
            raise RequestMalformed(
                message=request.api, version=request.version, reason="a login is under way"
            )
        else:
            denial = server.entered(session, holder)
            if denial is not None:
                self.turn_away(request, denial)
                return
            session.life = advance(session.life, Event.LOGGED_IN, holder=holder)
            self.busy(self.link(request, holder))

    def turn_away(self, request: Request, reason: Denial) -> None:
        """Refuse a login, and close a little later: guessing shall take its time."""
        session = self.session
        session.server.denied(session, reason)
        if reason not in TOO_MANY:
            session.answer(login_refusal(request))
        session.pause(HELD)
        patient = reason in TOO_MANY and not session.server.doorkeeper.crowded
        seconds = random.uniform(*TOO_MANY_SECONDS) if patient else REFUSED_SECONDS
        asyncio.get_running_loop().call_later(seconds, session.close, reason)

    def log_in_again(self, request: Request, holder: Holder) -> None:
        """Re-authentication (KIP-368): the same account, or out. Keys do not run out by themselves."""
        self.session.life = advance(self.session.life, Event.LOGGED_IN_AGAIN, holder=holder)
        self.session.answer(login_answer(request))

    def renew(self) -> None:
        """The login at the broker is about to end: log in there again, in line with everything else.

        Clients are not told: many of them never log in again, and the broker would cut them off.
        """
        session = self.session
        if self.task is None and session.life.state is State.SERVING and session.requests.between_frames:
            # Behind what the client has asked for, which may be a long poll or a group's rebalance.
            self.busy(self._renew(), seconds=session.server.settings.bounds.idle_seconds)

    async def _renew(self) -> None:
        session = self.session
        assert session.upstream is not None
        assert session.life.holder is not None
        user, password = session.server.login_of(session.life.holder)
        lifetime = await log_in(self.exchange, session.upstream.broker, user, password)
        session.upstream.logged_in(lifetime, session.server.now())

    async def exchange(self, frames: bytes) -> bytes:
        """Send frames of our own among the client's requests, if any, and wait for the next answer."""
        session = self.session
        session.to_broker = []
        while frames:
            size, api_key, version, correlation_id = _framed_start.unpack_from(frames)
            answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            route = session.asking.routes[api_key, version]
            session.forward(frames[: 4 + size], correlation_id, route, partial(_settle, answered))
            self.answers.append(answered)
            frames = frames[4 + size :]
        session.send(session.to_broker)
        return await self.answers.pop(0)

    async def link(self, request: Request, holder: Holder) -> None:
        session, server = self.session, self.session.server
        if session.broker is None:
            session.broker = server.nearest()
        user, password = server.login_of(holder)
        async with server.dials:
            upstream, lifetime = await dial(session.broker, user, password, server.upstream_tls)
        if session.life.state is not State.LINKING:
            upstream.close()
            return
        upstream.logged_in(lifetime, server.now())
        session.link(upstream, server.realm_of(holder.tenant))
        session.answer(login_answer(request))

    def busy(self, work: Any, *, seconds: float | None = None) -> None:
        """Work that takes time, with the client held meanwhile."""
        self.session.pause(HELD)
        limit = seconds or self.session.server.settings.bounds.handshake_seconds
        self.task = asyncio.get_running_loop().create_task(self._work(work, limit))

    async def _work(self, work: Any, seconds: float) -> None:
        session = self.session
        try:
            async with asyncio.timeout(seconds):
                await work
        except PenstockError as failure:
            session.fail(failure)
        except TimeoutError:
            broker = session.broker
            where = f"{broker.host}:{broker.port}" if broker else "?"
            late = UpstreamUnreachable(
                broker=broker.id if broker else "?", address=where, reason="it did not answer in time"
            )
            session.fail(late)
        else:
            self.task = None
            session.unpause(HELD)

    # What the platform does for a tenant

    def caller(self) -> errands.Caller:
        session = self.session
        assert session.realm is not None
        assert session.life.holder is not None
        assert session.upstream is not None
        platform = session.server.platform
        assert platform is not None, "there are no sessions before the start"
        return errands.Caller(
            session.realm.tenant,
            session.life.holder.account,
            platform,
            session.upstream.broker.id,
            session.realm.visible & session.realm.addresses.keys(),
            self.own_partitions,
        )

    async def own_partitions(self) -> dict[str, list[int]]:
        """Of every topic that this account may see, by the broker's names."""
        assert self.session.realm is not None
        prefix = self.session.realm.prefix.decode()
        answer = await self.ask_metadata(None, LOOK_UP_VERSION)
        return {
            topic["Name"]: [partition["PartitionIndex"] for partition in topic["Partitions"]]
            for topic in answer["Topics"]
            if topic["ErrorCode"] == Code.NONE and topic["Name"].startswith(prefix)
        }

    async def run_errand(self, request: Request) -> None:
        session = self.session
        try:
            done = await errands.run(request, self.caller())
        except PenstockError as failure:  # the platform's trouble, which the client may try again
            session.server.denied(session, Denial.UPSTREAM, api=request.api, error=failure)
            done = errands.TROUBLE
        if isinstance(done, Unfit):
            self.say_no(request, done.code, done.text, or_nothing=True)
        else:
            self.say(request, done)

    # Requests built anew

    def build_anew(self, request: Request, route: Route) -> None:
        session = self.session
        assert session.realm is not None
        match request.api:
            case "Metadata" | "DescribeCluster" if request.body.get(OPERATIONS_ASKED):
                self.busy(self.with_operations(request, route), seconds=ERRAND_SECONDS)
            case "Metadata":
                unknown = rebuild.unknown_ids(request, session.realm.topics)
                if unknown:
                    self.busy(self.after_look_up(self.metadata, request, route, unknown))
                else:
                    self.metadata(request, route)
            case "DescribeCluster":
                session.forward(encode_request(request), request.correlation_id, route)
            case "DescribeConfigs":
                self.describe_configs(request, route)
            case "ShareFetch" | "ShareAcknowledge":
                unknown = rebuild.unknown_ids(request, session.realm.topics)[:MISSES_MAX]
                if unknown:
                    self.busy(self.after_look_up(self.share, request, route, unknown))
                else:
                    self.share(request, route)
            case "CreateTopics":
                server, tenant = session.server, session.realm.tenant
                brokers = server.config.brokers_for(tenant)
                made = rebuild.create_topics(request, tenant, brokers, server.place)
                self.forward_rebuilt(request, made.request, made.entries, route, "Topics")
            case _:
                self.busy(self.create_partitions(request, route))

    def metadata(self, request: Request, route: Route) -> None:
        session = self.session
        assert session.realm is not None
        changed = rebuild.metadata(request, session.realm.prefix.decode(), session.realm.topics)
        session.forward(encode_request(changed), request.correlation_id, route)

    async def with_operations(self, request: Request, route: Route) -> None:
        """What the account may do to its cluster: the broker speaks of the physical one."""
        session, version = self.session, request.version
        assert session.realm is not None
        try:
            owner = await self.caller().owns()
        except PenstockError:  # then no more is claimed than the broker says
            owner = False
        asked = request
        if request.api == "Metadata":  # of versions that ask by name
            asked = rebuild.metadata(request, session.realm.prefix.decode(), session.realm.topics)

        def then(frame: bytes) -> bytes:
            assert isinstance(route.response, Program)
            session.teaching.lists_brokers = True
            session.teaching.needs_brokers = route.teaches
            inward = spliced(route.response, session.teaching, len(frame).to_bytes(4) + frame)
            body = decode_response(request.api, version, inward[4:]).body
            told = access.cluster_operations(body[OPERATIONS_TOLD], owner=owner)
            answer = Response(request.correlation_id, {**body, OPERATIONS_TOLD: told})
            return encode_response(request.api, version, answer)

        session.to_broker = []
        session.forward(encode_request(asked), request.correlation_id, route, then)
        session.send(session.to_broker)

    def describe_configs(self, request: Request, route: Route) -> None:
        session = self.session
        assert session.realm is not None
        asked, others = rebuild.describe_configs(request, session.realm.prefix.decode())
        if others:
            self.busy(self.describe_others(request, route, asked, others), seconds=ERRAND_SECONDS)
        else:
            self.forward_rebuilt(request, asked, [], route, "Results")

    async def describe_others(
        self, request: Request, route: Route, asked: Request | None, others: list[Any]
    ) -> None:
        """Settings of brokers, and of what a tenant has none of."""
        session = self.session
        brokers = [one for one in others if one["ResourceType"] == ResourceKind.BROKER]
        strange = [one for one in others if one["ResourceType"] != ResourceKind.BROKER]
        here = [errands.config_refused(one, errands.NOT_YOURS) for one in strange]
        try:
            here += await errands.broker_configs(brokers, self.caller(), request.version)
        except PenstockError as failure:
            session.server.denied(session, Denial.UPSTREAM, api=request.api, error=failure)
            here += [errands.config_refused(one, errands.TROUBLE) for one in brokers]
        session.to_broker = []
        self.forward_rebuilt(request, asked, here, route, "Results")
        session.send(session.to_broker)

    def share(self, request: Request, route: Route) -> None:
        session = self.session
        assert session.realm is not None
        changed = rebuild.share(request, session.realm.prefix.decode(), session.realm.topics)
        session.forward(encode_request(changed), request.correlation_id, route)

    async def after_look_up(
        self, forward: Callable[[Request, Route], None], request: Request, route: Route, ids: list[UUID]
    ) -> None:
        topics = [{"TopicId": topic_id, "Name": None} for topic_id in ids]
        self.learn(await self.ask_metadata(topics, LOOK_UP_VERSION))
        session = self.session
        session.to_broker = []
        forward(request, route)
        session.send(session.to_broker)

    async def create_partitions(self, request: Request, route: Route) -> None:
        session, server = self.session, self.session.server
        assert session.realm is not None
        tenant = session.realm.tenant
        prefix = tenant.prefix.decode()
        topics = [{"Name": prefix + topic["Name"]} for topic in request.body["Topics"]]
        present = rebuild.partitions_present(await self.ask_metadata(topics, LOOK_UP_VERSION), prefix)
        brokers = server.config.brokers_for(tenant)
        made = rebuild.create_partitions(request, tenant, brokers, server.place, present)
        session.to_broker = []
        self.forward_rebuilt(request, made.request, made.entries, route, "Results")
        session.send(session.to_broker)

    def forward_rebuilt(
        self, request: Request, asked: Request | None, here: list[Any], route: Route, key: str
    ) -> None:
        """To the broker what is left of it; what was answered here joins the broker's answer."""
        session = self.session
        version = request.version
        if asked is None:
            self.say(request, rebuild.merged(None, key, here))
            return

        def then(frame: bytes) -> bytes:
            if request.api == "CreateTopics":
                self.learn(decode_response(request.api, version, frame).body)
            response = route.response
            assert isinstance(response, Program)
            inward = spliced(response, session.inward, len(frame).to_bytes(4) + frame)
            if not here:
                return inward
            answer = decode_response(request.api, version, inward[4:])
            body = rebuild.merged(answer.body, key, here)
            return encode_response(request.api, version, Response(request.correlation_id, body))

        session.forward(encode_request(asked), request.correlation_id, route, then)

    # Topic ids

    def look_up(self) -> None:
        """Ask for ids that requests have named and nobody knows; those that are ours are then known."""
        session = self.session
        misses = session.outward.misses
        topics = [{"TopicId": UUID(bytes=topic_id), "Name": None} for topic_id in misses.take()]

        def then(frame: bytes) -> None:
            self.learn(decode_response("Metadata", LOOK_UP_VERSION, frame).body)
            misses.settle()

        session.to_broker = []
        frame = encode_request(_metadata_request(topics))
        session.forward(frame, CORRELATION_ID, session.asking.routes[METADATA, LOOK_UP_VERSION], then)
        session.send(session.to_broker)

    async def ask_metadata(self, topics: list[dict[str, Any]] | None, version: int) -> dict[str, Any]:
        frame = await self.exchange(encode_request(_metadata_request(topics)))
        answer = decode_response("Metadata", version, frame).body
        if not answer["Brokers"]:
            raise BrokersUnknown
        return answer

    def learn(self, answer: dict[str, Any]) -> None:
        """Remember the ids of own topics from an answer that lists topics."""
        realm = self.session.realm
        assert realm is not None
        prefix = realm.prefix.decode()
        for topic in answer["Topics"]:
            name, topic_id = topic["Name"], topic.get("TopicId")
            own = name is not None and name.startswith(prefix)
            if own and topic["ErrorCode"] == Code.NONE and topic_id not in (None, rebuild.NO_ID):
                realm.topics.learn(name.encode(), topic_id.bytes)


def _settle(answered: asyncio.Future[bytes], frame: bytes) -> None:
    if not answered.done():
        answered.set_result(frame)


def decoded(frame: bytes) -> Request:
    """A request, as a broker reads it: bytes behind its last field are passed over.

    librdkafka leaves three of them in a Metadata request for all topics. What is built anew has none.
    """
    api_key, version, correlation_id = _start.unpack_from(frame)
    api = load().api_name(api_key)
    header, position = decode_at("RequestHeader", request_header_version(api, version), frame, 0)
    body, _ = decode_at(api + "Request", version, frame, position)
    return Request(api, version, correlation_id, header["ClientId"], body, header.get("_tags"))


def _metadata_request(topics: list[dict[str, Any]] | None) -> Request:
    body = {"Topics": topics, "AllowAutoTopicCreation": False}
    return Request("Metadata", LOOK_UP_VERSION, CORRELATION_ID, CLIENT_ID, body)


def versions_answer(
    version: int, correlation_id: int, offered: dict[str, Any], features: dict[str, Any]
) -> bytes:
    """The answer to ApiVersions. In a version nobody knows it is the oldest, with an error (KIP-511)."""
    known = load().request("ApiVersions").valid_versions
    definitions = load()
    keys = [
        {"ApiKey": definitions.api_key(api), "MinVersion": v.first, "MaxVersion": v.last}
        for api, v in offered.items()
    ]
    if version not in known:
        body = {"ErrorCode": Code.UNSUPPORTED_VERSION, "ApiKeys": keys}
        return encode_response("ApiVersions", 0, Response(correlation_id, body))
    body = {"ErrorCode": Code.NONE, "ApiKeys": sorted(keys, key=lambda k: k["ApiKey"]), **features}
    return encode_response("ApiVersions", version, Response(correlation_id, body))
