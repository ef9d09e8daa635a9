"""Creates topics that a Metadata request names and that do not exist, for tenants with `auto_create_topics`.

As in Kafka, the response still has UNKNOWN_TOPIC_OR_PARTITION, the creation follows, and clients ask again
until the topic is there. It takes the way of CreateTopics: as the account's user, which needs the right to
create it, within the tenant's limits, placed by the platform. Produce never creates a topic in Kafka; clients
send Metadata before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.gateway.connection.muting import charge_partitions
from penstock.gateway.connection.scram_login import CLIENT_ID
from penstock.gateway.connection.stages import choose_names
from penstock.gateway.limits.admission import Denial
from penstock.wire.error_codes import Code
from penstock.wire.frames import Request, decode_response, encode_request
from penstock.wire.splice import Program, spliced

if TYPE_CHECKING:
    from penstock.gateway.connection.in_flight import OnResponse
    from penstock.gateway.connection.local_requests import LocalRequests, Work
    from penstock.gateway.connection.routes import Route

CREATE_TOPICS_VERSION: Final = 7
CREATION_MS: Final = 10_000  # for the broker
AT_ONCE_MAX: Final = 100  # topics; the others are created when the client asks again
AGAIN_SECONDS: Final = 1.0  # before a topic is created again: brokers may not know it yet


def applies(local: LocalRequests, request: Request) -> bool:
    """Whether topics that this request names may be created. Old versions always ask for it."""
    return (
        local.context.tenant.auto_create_topics
        and request.api == "Metadata"
        and bool(request.body["Topics"])
        and bool(request.body.get("AllowAutoTopicCreation", True))
    )


def then(local: LocalRequests, request: Request, route: Route) -> OnResponse:
    """Pass the response on, and create topics that are unknown in it."""

    def on_response(frame: bytes) -> bytes:
        connection = local.connection
        choose_names(connection, route)
        assert isinstance(route.response, Program)
        topics = decode_response("Metadata", request.version, frame).body["Topics"]
        inward = spliced(route.response, connection.learning_inward, len(frame).to_bytes(4, "big") + frame)
        names = _to_create(local, topics)
        if names:
            connection.work.start(_create(local, names), connection.services.bounds.handshake_seconds)
        return inward

    return on_response


def _to_create(local: LocalRequests, topics: list[dict[str, Any]]) -> list[str]:
    """Unknown topics that no connection has just created."""
    context, now = local.context, local.connection.now
    if local.connection.work.active:
        return []
    context.auto_created = {name: until for name, until in context.auto_created.items() if now < until}
    prefix = context.prefix.decode()
    names = [
        topic["Name"].removeprefix(prefix)
        for topic in topics
        if topic["ErrorCode"] == Code.UNKNOWN_TOPIC_OR_PARTITION and (topic["Name"] or "").startswith(prefix)
    ]
    names = [name for name in dict.fromkeys(names) if name not in context.auto_created][:AT_ONCE_MAX]
    context.auto_created |= dict.fromkeys(names, now + AGAIN_SECONDS)
    return names


def _create(local: LocalRequests, names: list[str]) -> Work:
    connection = local.connection
    topic = {"NumPartitions": -1, "ReplicationFactor": -1, "Assignments": [], "Configs": []}
    topics = [{"Name": name, **topic} for name in names]
    body = {"Topics": topics, "TimeoutMs": CREATION_MS, "ValidateOnly": False}
    request = Request("CreateTopics", CREATE_TOPICS_VERSION, 0, CLIENT_ID, body)
    if local.partitions_limited():
        rebuilt, refused, decision = yield from local.plan_partitions(request)
        charge_partitions(connection, decision.changes, decision.throttle_seconds)
    else:
        rebuilt, refused = local.place_topics(request)
    if refused:
        connection.deny(Denial.NAME_REFUSED, api="Metadata", error=refused[0]["ErrorMessage"])
    if rebuilt is not None:
        frame = yield encode_request(rebuilt)
        response = decode_response("CreateTopics", CREATE_TOPICS_VERSION, frame).body
        local.settle_partitions(response["Topics"])
        local.learn(response)
