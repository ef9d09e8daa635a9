"""Requests the gateway handles itself: login, ApiVersions, refusals, and requests it rebuilds.

These need a whole request in memory, or time, so they stay off the data path. While one takes time its client
is paused, so that later requests keep their order.
"""

from __future__ import annotations

import asyncio
import random
import struct
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from penstock.gateway import cluster_view, platform_requests, request_rewriting, tenant_acls
from penstock.gateway.admission import Denial
from penstock.gateway.apis import DENIALS, Treatment, treatment
from penstock.gateway.connection_states import LOCAL_WORK, Event, State, advance
from penstock.gateway.error_responses import error_response
from penstock.gateway.login import authenticate, handshake_response, login_error, login_response
from penstock.gateway.platform_client import PLATFORM_REQUEST_SECONDS
from penstock.gateway.platform_requests import config_refused
from penstock.gateway.routes import API_VERSIONS
from penstock.gateway.tenant_acls import Rejection
from penstock.gateway.topic_ids import MISSES_MAX
from penstock.gateway.upstream import CLIENT_ID, dial, log_in
from penstock.kafka.admin.configs import ResourceKind
from penstock.model.errors import PenstockError
from penstock.model.errors.gateway import BrokersUnknown, UpstreamUnreachable
from penstock.model.errors.wire import RequestMalformed
from penstock.wire.codec import decode_at
from penstock.wire.definitions import load
from penstock.wire.error_codes import Code
from penstock.wire.field_rules import Kind
from penstock.wire.frames import (
    Request,
    Response,
    decode_response,
    encode_request,
    encode_response,
    request_header_version,
)
from penstock.wire.splice import Program, spliced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.gateway.config import Principal
    from penstock.gateway.routes import Route
    from penstock.gateway.session import Session
    from penstock.gateway.tenant_names import TenantContext
    from penstock.model.errors.plans import NameRefused, ResponseRefused

CORRELATION_ID: Final = 0  # of the gateway's requests
METADATA: Final = 3
LOOK_UP_VERSION: Final = 12  # of Metadata; the first that takes ids alone
REFUSED_SECONDS: Final = 0.2  # a failed login waits this long before its connection is closed
# A valid login beyond a limit waits longer and gets no response. To clients a refusal is final and a closed
# connection is not; the later and the more spread out they return, the less it costs.
TOO_MANY: Final = frozenset((Denial.TENANT_RATE, Denial.TENANT_FULL, Denial.BROKER_RATE, Denial.GATEWAY_FULL))
TOO_MANY_SECONDS: Final = (1.0, 3.0)
OPERATIONS_REQUESTED: Final = "IncludeClusterAuthorizedOperations"
OPERATIONS: Final = "ClusterAuthorizedOperations"
REFUSED_TEXT: Final = "The gateway does not serve this API: see docs/gateway-apis.md."

_start = struct.Struct(">hhi")
_framed_start = struct.Struct(">ihhi")

# The error for an invalid name, by kind.
_CODES: Final = {
    Kind.TOPIC: Code.INVALID_TOPIC_EXCEPTION,
    Kind.GROUP: Code.INVALID_GROUP_ID,
    Kind.CONFIG_NAME: Code.INVALID_CONFIG,
    Kind.TOPIC_REGEX: Code.INVALID_REGULAR_EXPRESSION,
    Kind.TRANSACTIONAL_ID_REGEX: Code.INVALID_REGULAR_EXPRESSION,
    Kind.CONFIG_RESOURCE: Code.CLUSTER_AUTHORIZATION_FAILED,
}


class LocalRequests:
    """The gateway's own work for one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.task: asyncio.Task[None] | None = None
        self.mechanism_agreed = False
        self.responses: list[asyncio.Future[bytes]] = []  # to the gateway's own requests; mostly empty

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    @property
    def context(self) -> TenantContext:
        assert self.session.context is not None, "only requests before login come without a tenant"
        return self.session.context

    # Handling

    def handle(self, frame: bytes) -> None:
        session = self.session
        api_key, version, correlation_id = _start.unpack_from(frame)
        if api_key == API_VERSIONS:
            session.respond(session.server.api_versions_response(session.broker, version, correlation_id))
            return
        request = decoded(frame)
        treated = treatment(request.api, request.version)
        if treated in (Treatment.REFUSED, Treatment.DENIED):
            session.server.denied(session, Denial.API_REFUSED, api=request.api)
            code = DENIALS.get(request.api, Code.UNSUPPORTED_VERSION)
            self.respond_error(request, code, REFUSED_TEXT, or_empty=treated is Treatment.DENIED)
        elif request.api == "SaslHandshake":
            response, self.mechanism_agreed = handshake_response(request)
            session.respond(response)
        elif request.api == "SaslAuthenticate":
            self.log_in(request)
        elif treated is Treatment.LOCAL:
            self.respond(request, self.local_response(request))
        elif treated is Treatment.PLATFORM:
            self.run_while_paused(self.run_platform_request(request), seconds=PLATFORM_REQUEST_SECONDS)
        else:
            route = session.request_handler.route
            assert route is not None, "only a login comes without a route"
            self.rebuild(request, route)

    def local_response(self, request: Request) -> dict[str, Any]:
        """The body of a response that needs no broker."""
        server, principal = self.session.server, self.session.life.principal
        assert principal is not None
        match request.api:
            case "GetTelemetrySubscriptions":
                return server.telemetry.subscription(request.body)
            case "PushTelemetry":
                return server.telemetry.push(principal.tenant, request.body, server.now())
            case _:
                return cluster_view.scram_users(request.body["Users"])

    def refuse(self, frame: bytes, error: NameRefused | ResponseRefused) -> None:
        """Refuse a request with a name that cannot be passed on."""
        request = decoded(frame)
        self.session.server.denied(self.session, Denial.NAME_REFUSED, api=request.api, error=error)
        kind = error.facts.get("kind")
        code = _CODES.get(kind, Code.INVALID_REQUEST) if isinstance(kind, Kind) else Code.INVALID_REQUEST
        if request.api == "Produce" and request.body["Acks"] == 0:
            self.session.close("a Produce request with acks=0 was refused")
            return
        self.respond_error(request, code, "This name is not allowed.")

    def respond_error(self, request: Request, code: int, text: str, *, or_empty: bool = False) -> None:
        frame = error_response(request, code, text, or_empty=or_empty)
        if frame is None:
            self.session.close(f"{request.api} has no error code")
            return
        self.session.respond(frame)

    def respond(self, request: Request, body: dict[str, Any]) -> None:
        response = Response(request.correlation_id, body)
        self.session.respond(encode_response(request.api, request.version, response))

    # Login

    def log_in(self, request: Request) -> None:
        session = self.session
        server = session.server
        address = session.life.address
        if not self.mechanism_agreed:
            raise RequestMalformed(
                message=request.api, version=request.version, reason="SaslHandshake must come first"
            )
        self.mechanism_agreed = False
        principal = authenticate(request.body["AuthBytes"], server.config, address)
        if principal is None:
            server.admission.failed(address, server.now())
            self.reject_login(request, Denial.BAD_CREDENTIALS)
        elif session.sni_tenant and session.sni_tenant != principal.tenant:
            server.admission.failed(address, server.now())
            self.reject_login(request, Denial.WRONG_HOST)
        elif session.life.serves:
            self.reauthenticate(request, principal)
        elif session.life.state is not State.HANDSHAKE:
            raise RequestMalformed(
                message=request.api, version=request.version, reason="a login is in progress"
            )
        else:
            denial = server.admit_login(session, principal)
            if denial is not None:
                self.reject_login(request, denial)
                return
            session.life = advance(session.life, Event.LOGGED_IN, principal=principal)
            self.run_while_paused(self.link(request, principal))

    def reject_login(self, request: Request, reason: Denial) -> None:
        """Refuse a login and close a little later, so that guessing takes time."""
        session = self.session
        session.server.denied(session, reason)
        if reason not in TOO_MANY:
            session.respond(login_error(request))
        session.pause(LOCAL_WORK)
        patient = reason in TOO_MANY and not session.server.admission.half_open_crowded
        seconds = random.uniform(*TOO_MANY_SECONDS) if patient else REFUSED_SECONDS
        asyncio.get_running_loop().call_later(seconds, session.close, reason)

    def reauthenticate(self, request: Request, principal: Principal) -> None:
        """Re-authenticate (KIP-368) as the same account; another one closes the connection."""
        self.session.life = advance(self.session.life, Event.LOGGED_IN_AGAIN, principal=principal)
        self.session.respond(login_response(request))

    def renew(self) -> None:
        """Log in to the broker again before its login expires, in order with the client's requests.

        Clients are not involved: many never re-authenticate, and the broker would close their connections.
        """
        session = self.session
        if self.task is None and session.life.state is State.SERVING and session.requests.between_frames:
            # Queued after the client's requests, which may be a long poll or a group rebalance.
            self.run_while_paused(self._renew(), seconds=session.server.settings.bounds.idle_seconds)

    async def _renew(self) -> None:
        session = self.session
        assert session.upstream is not None
        assert session.life.principal is not None
        user, password = session.server.login_of(session.life.principal)
        lifetime = await log_in(self.exchange, session.upstream.broker, user, password)
        session.upstream.logged_in(lifetime, session.server.now())

    async def exchange(self, frames: bytes) -> bytes:
        """Send the gateway's frames among the client's requests, and wait for the next response."""
        session = self.session
        with self.sending():
            while frames:
                size, api_key, version, correlation_id = _framed_start.unpack_from(frames)
                response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
                route = session.request_handler.routes[api_key, version]
                session.forward(frames[: 4 + size], correlation_id, route, partial(_complete, response))
                self.responses.append(response)
                frames = frames[4 + size :]
        return await self.responses.pop(0)

    async def link(self, request: Request, principal: Principal) -> None:
        session, server = self.session, self.session.server
        if session.broker is None:
            session.broker = server.next_broker()
        user, password = server.login_of(principal)
        async with server.dials:
            upstream, lifetime = await dial(session.broker, user, password, server.upstream_tls)
        if session.life.state is not State.LINKING:
            upstream.close()
            return
        upstream.logged_in(lifetime, server.now())
        session.link(upstream, server.context_of(principal.tenant))
        session.respond(login_response(request))

    def run_while_paused(self, work: Any, *, seconds: float | None = None) -> None:
        """Run work that takes time, with the client paused meanwhile."""
        self.session.pause(LOCAL_WORK)
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
            number, address = (session.broker.id, session.broker.address) if session.broker else ("?", "?")
            reason = "it did not respond in time"
            session.fail(UpstreamUnreachable(broker=number, address=address, reason=reason))
        else:
            self.task = None
            session.unpause(LOCAL_WORK)

    # Platform requests

    def caller(self) -> platform_requests.Caller:
        session, context, platform = self.session, self.context, self.session.server.platform
        assert session.life.principal is not None
        assert session.upstream is not None
        assert platform is not None, "sessions exist only after `start`"
        account, broker = session.life.principal.account, session.upstream.broker.id
        visible = context.visible & context.addresses.keys()
        return platform_requests.Caller(
            context.tenant, account, platform, broker, visible, self.own_partitions
        )

    async def own_partitions(self) -> dict[str, list[int]]:
        """Partitions of every topic this account may see, by Kafka's topic names."""
        prefix = self.context.prefix.decode()
        metadata = await self.request_metadata(None)
        return {
            topic["Name"]: [partition["PartitionIndex"] for partition in topic["Partitions"]]
            for topic in metadata["Topics"]
            if topic["ErrorCode"] == Code.NONE and topic["Name"].startswith(prefix)
        }

    async def run_platform_request(self, request: Request) -> None:
        session = self.session
        try:
            result = await platform_requests.run(request, self.caller())
        except PenstockError as failure:  # upstream: the client may retry
            session.server.denied(session, Denial.UPSTREAM, api=request.api, error=failure)
            result = platform_requests.UNAVAILABLE
        if isinstance(result, Rejection):
            self.respond_error(request, result.code, result.text, or_empty=True)
        else:
            self.respond(request, result)

    # Rebuilding

    def rebuild(self, request: Request, route: Route) -> None:
        session, context = self.session, self.context
        match request.api:
            case "Metadata" | "DescribeCluster" if request.body.get(OPERATIONS_REQUESTED):
                self.run_while_paused(self.with_operations(request, route), seconds=PLATFORM_REQUEST_SECONDS)
            case "Metadata" | "ShareFetch" | "ShareAcknowledge":
                unknown = request_rewriting.unknown_ids(request, context.topics)
                if request.api != "Metadata":
                    unknown = unknown[:MISSES_MAX]
                if unknown:
                    self.run_while_paused(self.forward_after_look_up(request, route, unknown))
                else:
                    self.forward_with_ids(request, route)
            case "DescribeCluster":
                session.forward(encode_request(request), request.correlation_id, route)
            case "DescribeConfigs":
                self.describe_configs(request, route)
            case "CreateTopics":
                server, tenant = session.server, context.tenant
                brokers = server.config.brokers_for(tenant)
                rebuilt = request_rewriting.create_topics(request, tenant, brokers, server.place)
                self.forward_rebuilt(request, rebuilt.request, rebuilt.entries, route, "Topics")
            case _:
                self.run_while_paused(self.create_partitions(request, route))

    def forward_with_ids(self, request: Request, route: Route) -> None:
        rewrite = request_rewriting.metadata if request.api == "Metadata" else request_rewriting.share
        changed = rewrite(request, self.context.prefix.decode(), self.context.topics)
        self.session.forward(encode_request(changed), request.correlation_id, route)

    async def forward_after_look_up(self, request: Request, route: Route, ids: list[UUID]) -> None:
        topics = [{"TopicId": topic_id, "Name": None} for topic_id in ids]
        self.learn(await self.request_metadata(topics))
        with self.sending():
            self.forward_with_ids(request, route)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send what is forwarded inside, outside of a feed."""
        self.session.to_broker = []
        yield
        self.session.send(self.session.to_broker)

    async def with_operations(self, request: Request, route: Route) -> None:
        """Add what the account may do to its cluster; the broker's response is about the physical one."""
        session, version = self.session, request.version
        try:
            owner = await self.caller().is_owner()
        except PenstockError:  # then only what the broker reports is claimed
            owner = False
        rebuilt = request
        if request.api == "Metadata":  # these versions name topics
            rebuilt = request_rewriting.metadata(request, self.context.prefix.decode(), self.context.topics)

        def then(frame: bytes) -> bytes:
            assert isinstance(route.response, Program)
            session.learning_inward.lists_brokers = True
            session.learning_inward.needs_brokers = route.has_topic_ids
            inward = spliced(route.response, session.learning_inward, len(frame).to_bytes(4) + frame)
            body = decode_response(request.api, version, inward[4:]).body
            operations = tenant_acls.cluster_operations(body[OPERATIONS], owner=owner)
            response = Response(request.correlation_id, {**body, OPERATIONS: operations})
            return encode_response(request.api, version, response)

        with self.sending():
            session.forward(encode_request(rebuilt), request.correlation_id, route, then)

    def describe_configs(self, request: Request, route: Route) -> None:
        rebuilt, others = request_rewriting.describe_configs(request, self.context.prefix.decode())
        if others:
            self.run_while_paused(
                self.describe_others(request, route, rebuilt, others), seconds=PLATFORM_REQUEST_SECONDS
            )
        else:
            self.forward_rebuilt(request, rebuilt, [], route, "Results")

    async def describe_others(
        self, request: Request, route: Route, rebuilt: Request | None, others: list[Any]
    ) -> None:
        """Describe settings of brokers, and refuse resources that tenants do not have."""
        session = self.session
        brokers = [resource for resource in others if resource["ResourceType"] == ResourceKind.BROKER]
        refused = [resource for resource in others if resource["ResourceType"] != ResourceKind.BROKER]
        entries = [config_refused(resource, platform_requests.NOT_YOURS) for resource in refused]
        try:
            entries += await platform_requests.broker_configs(brokers, self.caller(), request.version)
        except PenstockError as failure:
            session.server.denied(session, Denial.UPSTREAM, api=request.api, error=failure)
            entries += [config_refused(resource, platform_requests.UNAVAILABLE) for resource in brokers]
        with self.sending():
            self.forward_rebuilt(request, rebuilt, entries, route, "Results")

    async def create_partitions(self, request: Request, route: Route) -> None:
        server, tenant = self.session.server, self.context.tenant
        prefix = tenant.prefix.decode()
        topics = [{"Name": prefix + topic["Name"]} for topic in request.body["Topics"]]
        present = request_rewriting.partitions_present(await self.request_metadata(topics), prefix)
        brokers = server.config.brokers_for(tenant)
        rebuilt = request_rewriting.create_partitions(request, tenant, brokers, server.place, present)
        with self.sending():
            self.forward_rebuilt(request, rebuilt.request, rebuilt.entries, route, "Results")

    def forward_rebuilt(
        self, request: Request, rebuilt: Request | None, entries: list[Any], route: Route, key: str
    ) -> None:
        """Forward what is left of a request; local entries join the broker's response."""
        session = self.session
        version = request.version
        if rebuilt is None:
            self.respond(request, request_rewriting.merged(None, key, entries))
            return

        def then(frame: bytes) -> bytes:
            if request.api == "CreateTopics":
                self.learn(decode_response(request.api, version, frame).body)
            response = route.response
            assert isinstance(response, Program)
            inward = spliced(response, session.inward, len(frame).to_bytes(4) + frame)
            if not entries:
                return inward
            decoded_response = decode_response(request.api, version, inward[4:])
            body = request_rewriting.merged(decoded_response.body, key, entries)
            return encode_response(request.api, version, Response(request.correlation_id, body))

        session.forward(encode_request(rebuilt), request.correlation_id, route, then)

    # Topic ids

    def look_up_topic_ids(self) -> None:
        """Look up unknown ids that requests have named; the tenant's become known."""
        session = self.session
        unknown_ids = session.outward.unknown_ids
        topics = [{"TopicId": UUID(bytes=topic_id), "Name": None} for topic_id in unknown_ids.take()]

        def then(frame: bytes) -> None:
            self.learn(decode_response("Metadata", LOOK_UP_VERSION, frame).body)
            unknown_ids.settle()

        frame, route = _metadata_request(topics), session.request_handler.routes[METADATA, LOOK_UP_VERSION]
        with self.sending():
            session.forward(frame, CORRELATION_ID, route, then)

    async def request_metadata(self, topics: list[dict[str, Any]] | None) -> dict[str, Any]:
        frame = await self.exchange(_metadata_request(topics))
        metadata = decode_response("Metadata", LOOK_UP_VERSION, frame).body
        if not metadata["Brokers"]:
            raise BrokersUnknown
        return metadata

    def learn(self, response: dict[str, Any]) -> None:
        """Learn the ids of the tenant's topics from a response that lists topics."""
        context = self.context
        prefix = context.prefix.decode()
        for topic in response["Topics"]:
            name, topic_id = topic["Name"], topic.get("TopicId")
            own = name is not None and name.startswith(prefix)
            if own and topic["ErrorCode"] == Code.NONE and topic_id not in (None, request_rewriting.NO_ID):
                context.topics.learn(name.encode(), topic_id.bytes)


def _complete(response_future: asyncio.Future[bytes], frame: bytes) -> None:
    if not response_future.done():
        response_future.set_result(frame)


def decoded(frame: bytes) -> Request:
    """Decode a request as a broker does: bytes after the last field are ignored.

    librdkafka leaves three of them in a Metadata request for all topics. Rebuilt requests have none.
    """
    api_key, version, correlation_id = _start.unpack_from(frame)
    api = load().api_name(api_key)
    header, position = decode_at("RequestHeader", request_header_version(api, version), frame, 0)
    body, _ = decode_at(api + "Request", version, frame, position)
    return Request(api, version, correlation_id, header["ClientId"], body, header.get("_tags"))


def _metadata_request(topics: list[dict[str, Any]] | None) -> bytes:
    body = {"Topics": topics, "AllowAutoTopicCreation": False}
    return encode_request(Request("Metadata", LOOK_UP_VERSION, CORRELATION_ID, CLIENT_ID, body))


def api_versions_response(
    version: int, correlation_id: int, offered: dict[str, Any], features: dict[str, Any]
) -> bytes:
    """The response to ApiVersions; an unknown version gets version 0 with an error (KIP-511)."""
    definitions = load()
    keys = [
        {"ApiKey": definitions.api_key(api), "MinVersion": v.first, "MaxVersion": v.last}
        for api, v in offered.items()
    ]
    if version not in definitions.request("ApiVersions").valid_versions:
        body = {"ErrorCode": Code.UNSUPPORTED_VERSION, "ApiKeys": keys}
        return encode_response("ApiVersions", 0, Response(correlation_id, body))
    body = {"ErrorCode": Code.NONE, "ApiKeys": sorted(keys, key=lambda k: k["ApiKey"]), **features}
    return encode_response("ApiVersions", version, Response(correlation_id, body))
