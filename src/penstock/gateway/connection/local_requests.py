"""Requests the gateway handles itself: login, ApiVersions, refusals, and requests it rebuilds.

These need a whole request in memory, or time, so they stay off the data path. One that takes time is a
generator, `Work`: it yields frames to send to the broker and gets the next response, or it yields a `Call`
and gets its result. Its client is paused meanwhile, so that later requests keep their order.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from penstock.gateway.connection import auto_creation
from penstock.gateway.connection.effects import Call
from penstock.gateway.connection.error_responses import error_response
from penstock.gateway.connection.login import handshake_response
from penstock.gateway.connection.muting import charge_partitions, charge_refusal
from penstock.gateway.connection.routes import API_VERSIONS
from penstock.gateway.connection.scram_login import CLIENT_ID, scram_login
from penstock.gateway.connection.share_session import ShareSession
from penstock.gateway.limits.admission import Denial
from penstock.gateway.limits.partition_limits import CREATE_TOPICS, STRICT_FIRST, decide_partitions
from penstock.gateway.limits.throttle_queue import WAIT_SECONDS_MAX
from penstock.gateway.tenancy import cluster_view, platform_requests, request_rewriting, tenant_acls
from penstock.gateway.tenancy.apis import DENIALS, Treatment, treatment
from penstock.gateway.tenancy.platform_client import PLATFORM_REQUEST_SECONDS
from penstock.gateway.tenancy.platform_requests import config_refused
from penstock.gateway.tenancy.tenant_acls import Rejection
from penstock.gateway.tenancy.topic_ids import MISSES_MAX
from penstock.kafka.admin.configs import ResourceKind
from penstock.model.errors import PenstockError
from penstock.model.errors.gateway import BrokersUnknown
from penstock.model.errors.plans import RequestElementsTooMany
from penstock.model.errors.wire import LoginRefused, RequestMalformed
from penstock.quota.token_bucket import throttle_ms
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
from penstock.wire.names import Names
from penstock.wire.splice import Program, spliced, taking

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from penstock.gateway.connection.connection import Connection
    from penstock.gateway.connection.routes import Route
    from penstock.gateway.connection.throttle import Throttle
    from penstock.gateway.limits.partition_limits import PartitionDecision
    from penstock.gateway.tenancy.tenant_names import TenantContext
    from penstock.wire.splice import Refusal

    # Yields frames to send (none, to wait for another response) or a call; gets the response or result.
    Work = Generator[bytes | Call, Any, None]

CORRELATION_ID: Final = 0  # of the gateway's requests
METADATA: Final = 3
THROTTLE_FIELD: Final = "ThrottleTimeMs"
LOOK_UP_VERSION: Final = 12  # of Metadata; the first that takes ids alone
DESCRIBE_CONFIGS_VERSION: Final = 4
INCREMENTAL_VERSION: Final = 1  # of IncrementalAlterConfigs
ALL_TOPICS: Final = None  # in a Metadata request; the broker's authorizer leaves the tenant's
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
    Kind.REPLICA_ID: Code.CLUSTER_AUTHORIZATION_FAILED,
    Kind.FOLLOWER: Code.CLUSTER_AUTHORIZATION_FAILED,
}


class LocalRequests:
    """The gateway's own work for one connection."""

    __slots__ = ("connection", "mechanism_agreed", "share_session")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.mechanism_agreed = False
        self.share_session = ShareSession(connection)

    @property
    def context(self) -> TenantContext:
        assert self.connection.context is not None, "only requests before login come without a tenant"
        return self.connection.context

    @property
    def throttle(self) -> Throttle:
        assert self.connection.throttle is not None, "only requests before login come without a quota"
        return self.connection.throttle

    # Handling

    def handle(self, frame: bytes, route: Route | None) -> None:
        connection = self.connection
        api_key, version, correlation_id = _start.unpack_from(frame)
        if api_key == API_VERSIONS:
            services = connection.services
            connection.respond(services.api_versions(connection.broker, version, correlation_id))
            return
        request = decoded(frame)
        treated = treatment(request.api, request.version)
        if treated in (Treatment.REFUSED, Treatment.DENIED):
            connection.deny(Denial.API_REFUSED, api=request.api)
            code = DENIALS.get(request.api, Code.UNSUPPORTED_VERSION)
            self.respond_error(request, code, REFUSED_TEXT, or_empty=treated is Treatment.DENIED)
        elif request.api == "SaslHandshake":
            response, self.mechanism_agreed = handshake_response(request)
            connection.respond(response)
        elif request.api == "SaslAuthenticate":
            self.log_in(request)
        elif treated is Treatment.LOCAL:
            self.respond(request, self.local_response(request))
        elif treated is Treatment.PLATFORM:
            connection.work.start(self.platform_request(request), PLATFORM_REQUEST_SECONDS)
        else:
            assert route is not None, "only a login comes without a route"
            self.rebuild(request, route)

    def log_in(self, request: Request) -> None:
        if not self.mechanism_agreed:
            raise RequestMalformed(
                message=request.api, version=request.version, reason="SaslHandshake must come first"
            )
        self.mechanism_agreed = False
        self.connection.log_in(request)

    def local_response(self, request: Request) -> dict[str, Any]:
        """The body of a response that needs no broker."""
        telemetry = self.connection.services.telemetry
        match request.api:
            case "GetTelemetrySubscriptions":
                return telemetry.subscription(request.body)
            case "PushTelemetry":
                response = telemetry.push(self.context.tenant.id, request.body, self.connection.now)
                if response["ErrorCode"] != Code.NONE:
                    charge_refusal(self.connection)
                return response
            case _:
                return cluster_view.scram_users(request.body["Users"])

    def refuse(self, frame: bytes, error: Refusal) -> None:
        """Refuse a request with a name that cannot be passed on, or with too many elements to look at."""
        if isinstance(error, RequestElementsTooMany):
            self.refuse_unread(frame, error)
            return
        try:
            self.count_elements(frame)  # the walk ended at the name
        except RequestElementsTooMany as too_many:
            self.refuse_unread(frame, too_many)
            return
        request = decoded(frame)
        self.connection.deny(Denial.NAME_REFUSED, api=request.api, error=error)
        kind = error.facts.get("kind")
        code = _CODES.get(kind, Code.INVALID_REQUEST) if isinstance(kind, Kind) else Code.INVALID_REQUEST
        if request.api == "Produce" and request.body["Acks"] == 0:
            self.connection.close("a Produce request with acks=0 was refused")
            return
        self.respond_error(request, code, "This name is not allowed.")

    def count_elements(self, frame: bytes) -> None:
        api_key, version, _ = _start.unpack_from(frame)
        limit = self.connection.routes[api_key, version].request.elements_max
        spliced(taking(api_key, version, limit), Names(), len(frame).to_bytes(4, "big") + frame)

    def refuse_unread(self, frame: bytes, error: RequestElementsTooMany) -> None:
        """Respond with an error where the API has one for the whole request, else close."""
        api_key, version, correlation_id = _start.unpack_from(frame)
        api = load().api_name(api_key)
        self.connection.deny(Denial.TOO_MANY_ELEMENTS, api=api, error=error)
        unread = Request(api, version, correlation_id, None, {})
        response = error_response(unread, Code.INVALID_REQUEST, str(error))
        if response is None:
            self.connection.close(str(error))
        else:
            self.connection.respond(response)
            charge_refusal(self.connection)

    def respond_error(self, request: Request, code: int, text: str, *, or_empty: bool = False) -> None:
        frame = error_response(request, code, text, or_empty=or_empty)
        if frame is None:
            self.connection.close(f"{request.api} has no error code")
            return
        self.connection.respond(frame)
        charge_refusal(self.connection)

    def respond(self, request: Request, body: dict[str, Any], wait_ms: int = 0) -> None:
        body = _with_wait(body, request, wait_ms)
        frame = encode_response(request.api, request.version, Response(request.correlation_id, body))
        self.connection.respond(frame)

    # The gateway's own requests to the broker, in order with the client's

    def own_frames(self, frames: bytes) -> Iterator[tuple[bytes, int, Route]]:
        """Each of these frames, with its correlation id and route."""
        start = 0
        while start < len(frames):
            size, api_key, version, correlation_id = _framed_start.unpack_from(frames, start)
            end = start + 4 + size
            yield frames[start:end], correlation_id, self.connection.routes[api_key, version]
            start = end

    def renew(self, user: str, password: str) -> Work:
        broker = self.connection.broker
        assert broker is not None
        lifetime_ms = yield from scram_login(broker, user, password)
        self.connection.broker_login_renewed(lifetime_ms)

    def request_metadata(
        self, topics: list[dict[str, Any]] | None
    ) -> Generator[bytes | Call, Any, dict[str, Any]]:
        frame = yield _metadata_request(topics)
        metadata = decode_response("Metadata", LOOK_UP_VERSION, frame).body
        if not metadata["Brokers"]:
            raise BrokersUnknown
        return metadata

    def own_partitions(self) -> Generator[bytes | Call, Any, dict[str, list[int]]]:
        """Partitions of every topic this account may see, by Kafka's topic names."""
        prefix = self.context.prefix.decode()
        metadata = yield from self.request_metadata(ALL_TOPICS)
        return {
            topic["Name"]: [partition["PartitionIndex"] for partition in topic["Partitions"]]
            for topic in metadata["Topics"]
            if topic["ErrorCode"] == Code.NONE and topic["Name"].startswith(prefix)
        }

    # Platform requests

    def caller(self) -> platform_requests.Caller:
        connection, context = self.connection, self.context
        principal, broker, platform = (
            connection.life.principal,
            connection.broker,
            connection.services.platform,
        )
        assert principal is not None
        assert broker is not None
        assert platform is not None, "connections exist only after the gateway's start"
        visible = context.visible & context.addresses.keys()
        return platform_requests.Caller(context.tenant, principal.account, platform, int(broker.id), visible)

    def platform_request(self, request: Request) -> Work:
        caller = self.caller()
        try:
            if not (yield Call(caller.is_owner())):
                result: Any = platform_requests.NOT_OWNER
            else:
                needs_topics = platform_requests.needs_topics(request)
                topics = (yield from self.own_partitions()) if needs_topics else {}
                result = yield Call(platform_requests.run(request, caller, topics))
        except PenstockError as failure:  # upstream: the client may retry
            self.connection.deny(Denial.UPSTREAM, api=request.api, error=failure)
            result = platform_requests.UNAVAILABLE
        if isinstance(result, Rejection):
            self.respond_error(request, result.code, result.text, or_empty=True)
        else:
            self.respond(request, result)

    # Rebuilding

    def rebuild(self, request: Request, route: Route) -> None:
        connection, context = self.connection, self.context
        seconds = connection.services.bounds.handshake_seconds
        match request.api:
            case "Metadata" | "DescribeCluster" if request.body.get(OPERATIONS_REQUESTED):
                connection.work.start(self.with_operations(request, route), PLATFORM_REQUEST_SECONDS)
            case "ShareFetch" | "ShareAcknowledge" if not self.share_session.admits(request):
                connection.deny(Denial.SHARE_SESSIONS, api=request.api)
                text = self.share_session.refusal()
                self.respond_error(request, Code.SHARE_SESSION_LIMIT_REACHED, text)
            case "Metadata" | "ShareFetch" | "ShareAcknowledge":
                unknown = request_rewriting.unknown_ids(request, context.topics)
                if request.api != "Metadata":
                    unknown = unknown[:MISSES_MAX]
                if unknown:
                    connection.work.start(self.forward_after_look_up(request, route, unknown), seconds)
                else:
                    self.forward_with_ids(request, route)
            case "DescribeCluster":
                connection.forward(encode_request(request), request.correlation_id, route)
            case "DescribeConfigs":
                self.describe_configs(request, route)
            case "AlterConfigs" | "IncrementalAlterConfigs":
                self.alter_configs(request, route)
            case "CreateTopics" | "CreatePartitions" if self.partitions_limited():
                connection.work.start(self.change_partitions(request, route), seconds)
            case "CreateTopics":
                self.forward_rebuilt(request, *self.place_topics(request), route, "Topics")
            case _:
                connection.work.start(self.create_partitions(request, route), seconds)

    def forward_with_ids(self, request: Request, route: Route) -> None:
        if request.api == "Metadata":
            rewrite = request_rewriting.metadata
            then = auto_creation.then(self, request, route) if auto_creation.applies(self, request) else None
        else:
            rewrite, then = request_rewriting.share, self.share_session.on_response(request, route)
        changed = rewrite(request, self.context.prefix.decode(), self.context.topics)
        self.connection.forward(encode_request(changed), request.correlation_id, route, then)

    def forward_after_look_up(self, request: Request, route: Route, ids: list[UUID]) -> Work:
        topics = [{"TopicId": topic_id, "Name": None} for topic_id in ids]
        self.learn((yield from self.request_metadata(topics)))
        self.forward_with_ids(request, route)

    def with_operations(self, request: Request, route: Route) -> Work:
        """Add what the account may do to its cluster; the broker's response is about the physical one."""
        connection, version = self.connection, request.version
        try:
            owner = yield Call(self.caller().is_owner())
        except PenstockError:  # then only what the broker reports is claimed
            owner = False
        rebuilt = request
        if request.api == "Metadata":  # these versions name topics
            rebuilt = request_rewriting.metadata(request, self.context.prefix.decode(), self.context.topics)

        def then(frame: bytes) -> bytes:
            assert isinstance(route.response, Program)
            names = connection.learning_inward
            names.lists_brokers = True
            names.needs_brokers = route.has_topic_ids
            inward = spliced(route.response, names, len(frame).to_bytes(4, "big") + frame)
            body = decode_response(request.api, version, inward[4:]).body
            operations = tenant_acls.cluster_operations(body[OPERATIONS], owner=owner)
            response = Response(request.correlation_id, {**body, OPERATIONS: operations})
            return encode_response(request.api, version, response)

        connection.forward(encode_request(rebuilt), request.correlation_id, route, then)

    def describe_configs(self, request: Request, route: Route) -> None:
        rebuilt, others = request_rewriting.describe_configs(request, self.context.prefix.decode())
        if others:
            work = self.describe_others(request, route, rebuilt, others)
            self.connection.work.start(work, PLATFORM_REQUEST_SECONDS)
        else:
            self.forward_rebuilt(request, rebuilt, [], route, "Results")

    def describe_others(
        self, request: Request, route: Route, rebuilt: Request | None, others: list[Any]
    ) -> Work:
        """Describe settings of brokers, and refuse resources that tenants do not have."""
        brokers = [resource for resource in others if resource["ResourceType"] == ResourceKind.BROKER]
        refused = [resource for resource in others if resource["ResourceType"] != ResourceKind.BROKER]
        entries = [config_refused(resource, platform_requests.NOT_YOURS) for resource in refused]
        try:
            entries += yield Call(platform_requests.broker_configs(brokers, self.caller(), request.version))
        except PenstockError as failure:
            self.connection.deny(Denial.UPSTREAM, api=request.api, error=failure)
            entries += [config_refused(resource, platform_requests.UNAVAILABLE) for resource in brokers]
        self.forward_rebuilt(request, rebuilt, entries, route, "Results")

    def alter_configs(self, request: Request, route: Route) -> None:
        accepted, entries = request_rewriting.alter_configs(request, self.context.tenant)
        if accepted and request_rewriting.needs_current(request.api, accepted):
            seconds = self.connection.services.bounds.handshake_seconds
            self.connection.work.start(self.change_configs(request, route, accepted, entries), seconds)
        else:
            self.forward_configs(request, route, accepted, entries)

    def change_configs(
        self, request: Request, route: Route, resources: list[Any], entries: list[Any]
    ) -> Work:
        """Changes that depend on the settings a resource has."""
        prefix = self.context.prefix.decode()
        names = [
            {
                "ResourceType": one["ResourceType"],
                "ResourceName": one["ResourceName"],
                "ConfigurationKeys": None,
            }
            for one in resources
        ]
        body = {"Resources": names, "IncludeSynonyms": False, "IncludeDocumentation": False}
        described = Request("DescribeConfigs", DESCRIBE_CONFIGS_VERSION, CORRELATION_ID, CLIENT_ID, body)
        frame = yield encode_request(described)
        results = decode_response("DescribeConfigs", DESCRIBE_CONFIGS_VERSION, frame).body["Results"]
        current = {(one["ResourceType"], one["ResourceName"]): one for one in results}
        changed: list[Any] = []
        for resource in resources:
            now = current[resource["ResourceType"], resource["ResourceName"]]
            change = request_rewriting.changed_configs(request.api, resource, now, prefix)
            (entries if "ErrorCode" in change else changed).append(change)
        self.forward_configs(request, route, changed, entries)

    def forward_configs(
        self, request: Request, route: Route, resources: list[Any], entries: list[Any]
    ) -> None:
        if any(one["ErrorMessage"] is not None for one in entries):
            self.connection.deny(Denial.NAME_REFUSED, api=request.api, error=entries[0]["ErrorMessage"])
        self.connection.services.intents.configs_changed(self.connection.life.principal, resources)
        body = {**request.body, "Resources": resources}
        rebuilt = replace(
            request,
            api=request_rewriting.INCREMENTAL,
            version=INCREMENTAL_VERSION,
            body=body,
            header_tags=None,
        )
        self.forward_rebuilt(request, rebuilt if resources else None, entries, route, "Responses")

    def create_partitions(self, request: Request, route: Route) -> Work:
        services, tenant = self.connection.services, self.context.tenant
        prefix = tenant.prefix.decode()
        topics = [{"Name": prefix + topic["Name"]} for topic in request.body["Topics"]]
        present = request_rewriting.partitions_present((yield from self.request_metadata(topics)), prefix)
        brokers = services.brokers_for(tenant)
        rebuilt = request_rewriting.create_partitions(request, tenant, brokers, services.place, present)
        self.forward_rebuilt(request, rebuilt.request, rebuilt.entries, route, "Results")

    def place_topics(self, request: Request) -> tuple[Request | None, list[Any]]:
        """CreateTopics for the broker, and the entries of topics refused here."""
        services, tenant = self.connection.services, self.context.tenant
        brokers = services.brokers_for(tenant)
        rebuilt = request_rewriting.create_topics(request, tenant, brokers, services.place)
        return rebuilt.request, rebuilt.entries

    def partitions_limited(self) -> bool:
        return self.throttle.changes_limited() or self.context.tenant.limits.partitions_max is not None

    def change_partitions(self, request: Request, route: Route) -> Work:
        """CreateTopics and CreatePartitions of a tenant with limits on them."""
        rebuilt, entries, decision = yield from self.plan_partitions(request)
        wait_ms = throttle_ms(decision.throttle_seconds, at_most=WAIT_SECONDS_MAX)
        key = "Topics" if request.api == CREATE_TOPICS else "Results"
        self.forward_rebuilt(request, rebuilt, entries, route, key, wait_ms)
        charge_partitions(self.connection, decision.changes, decision.throttle_seconds)

    def plan_partitions(
        self, request: Request
    ) -> Generator[bytes | Call, Any, tuple[Request | None, list[Any], PartitionDecision]]:
        """What to send to the broker, the entries of what is refused, and the decision on limits."""
        connection, tenant, throttle = self.connection, self.context.tenant, self.throttle
        services, reservations = connection.services, self.context.reservations
        present = yield from self.partitions_present()
        throttle.learn_partitions(tenant.prefix, present)
        decision = decide_partitions(
            request,
            present,
            tenant.limits.partitions_max,
            lambda count: throttle.spend_changes(count, connection.now),
            reservations,
            connection.now,
            lambda pending: services.share_partitions(tenant.id, pending, connection.now),
        )
        brokers = services.brokers_for(tenant)
        if request.api == CREATE_TOPICS:
            rebuilt = request_rewriting.create_topics(decision.request, tenant, brokers, services.place)
        else:
            rebuilt = request_rewriting.create_partitions(
                decision.request, tenant, brokers, services.place, present
            )
        entries = [refused.entry for refused in decision.refused] + rebuilt.entries
        self.settle_partitions(rebuilt.entries)
        return rebuilt.request, entries, decision

    def partitions_present(self) -> Generator[bytes | Call, Any, dict[str, tuple[int, int]]]:
        """By topic. A limit counts on the platform's identity: an account may not describe all topics."""
        if self.context.tenant.limits.partitions_max is not None:
            # The platform has no user on a cluster that was adopted with another.
            with suppress(LoginRefused):
                present: dict[str, tuple[int, int]] = yield Call(self.caller().partitions())
                return present
        metadata = yield from self.request_metadata(ALL_TOPICS)
        return request_rewriting.partitions_present(metadata, self.context.prefix.decode())

    def settle_partitions(self, results: list[Any]) -> None:
        """Release reserved partitions that were not created; the others count until every broker has them."""
        now, context = self.connection.now, self.context
        for result in results:
            name = result["Name"].removeprefix(context.prefix.decode())
            if result["ErrorCode"] == Code.NONE:
                context.reservations.created(name, now)
            else:
                context.reservations.release(name)
        self.connection.services.share_partitions(context.tenant.id, context.reservations.pending, now)

    def forward_rebuilt(
        self,
        request: Request,
        rebuilt: Request | None,
        entries: list[Any],
        route: Route,
        key: str,
        wait_ms: int = 0,
    ) -> None:
        """Forward what is left of a request, as the same or another API; local entries join its response."""
        connection = self.connection
        version = request.version
        if rebuilt is None:
            self.respond(request, request_rewriting.merged(None, key, entries), wait_ms)
            charge_refusal(connection)
            return

        def then(frame: bytes) -> bytes:
            if request.api in STRICT_FIRST:
                body = decode_response(request.api, version, frame).body
                self.settle_partitions(body[key])
                if request.api == CREATE_TOPICS:
                    self.learn(body)
            response = sent.response
            assert isinstance(response, Program)
            connection.inward.wait_ms = wait_ms
            inward = spliced(response, connection.inward, len(frame).to_bytes(4, "big") + frame)
            if not entries and sent is route:
                return inward
            decoded_response = decode_response(sent.api, sent.version, inward[4:])
            body = request_rewriting.merged(decoded_response.body, key, entries)
            return encode_response(request.api, version, Response(request.correlation_id, body))

        sent = connection.routes[load().api_key(rebuilt.api), rebuilt.version]
        connection.forward(encode_request(rebuilt), request.correlation_id, sent, then)

    # Topic ids

    def look_up_topic_ids(self) -> None:
        """Look up unknown ids that requests have named; the tenant's become known."""
        connection = self.connection
        unknown_ids = connection.outward.unknown_ids
        topics = [{"TopicId": UUID(bytes=topic_id), "Name": None} for topic_id in unknown_ids.take()]

        def then(frame: bytes) -> None:
            self.learn(decode_response("Metadata", LOOK_UP_VERSION, frame).body)
            unknown_ids.settle()

        route = connection.routes[METADATA, LOOK_UP_VERSION]
        connection.request(_metadata_request(topics), CORRELATION_ID, route, then)

    def learn(self, response: dict[str, Any]) -> None:
        """Learn the ids of the tenant's topics from a response that lists topics."""
        context = self.context
        prefix = context.prefix.decode()
        for topic in response["Topics"]:
            name, topic_id = topic["Name"], topic.get("TopicId")
            own = name is not None and name.startswith(prefix)
            if own and topic["ErrorCode"] == Code.NONE and topic_id not in (None, request_rewriting.NO_ID):
                context.topics.learn(name.encode(), topic_id.bytes)


def _with_wait(body: dict[str, Any], request: Request, wait_ms: int) -> dict[str, Any]:
    """The body of a response with its throttle time, if its version has one."""
    fields = load().response(request.api).fields
    marked = any(field.name == THROTTLE_FIELD and request.version in field.versions for field in fields)
    return {**body, THROTTLE_FIELD: wait_ms} if wait_ms > 0 and marked else body


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
