"""The table of `apis`, prepared for the data path: one lookup per request."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.gateway.tenancy.apis import (
    RESTRICTED_KINDS,
    Treatment,
    renamed_kinds,
    request_limits,
    treatment,
)
from penstock.wire.definitions import load
from penstock.wire.fetch_fast_path import VERSION_FIRST
from penstock.wire.field_rules import Kind
from penstock.wire.plans import Direction
from penstock.wire.splice import TAKE, Program, program, taking

if TYPE_CHECKING:
    from penstock.wire.splice import Action

PRODUCE, FETCH = 0, 1
PRODUCE_IDS_FIRST: Final = 13
API_VERSIONS: Final = 18
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
BEFORE_LOGIN: Final = frozenset((API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE))

# APIs whose responses name topics with their ids, and those whose responses list brokers.
_WITH_TOPIC_IDS: Final = frozenset(("Metadata", "DescribeTopicPartitions"))
_LISTING_BROKERS: Final = frozenset(("Metadata", "DescribeCluster"))
# The broker waits on purpose, for data or members, so no service time is counted.
_LONG_POLLS: Final = frozenset(("Fetch", "ShareFetch", "JoinGroup", "SyncGroup"))
_OBSERVED: Final = frozenset(("Produce", "DeleteTopics", "DeleteRecords"))


class Route:
    """What happens to one API in one version."""

    __slots__ = (
        "api", "by_id", "counts_service_time", "deletes_records", "deletes_topics", "has_topic_ids",
        "lists_brokers", "produces", "request", "request_bytes_max", "response", "skips_rewrite",
        "streams_response", "version",
    )  # fmt: skip

    def __init__(self, api_key: int, api: str, version: int, *, restricted: bool) -> None:
        how = treatment(api, version)
        self.api = api
        self.version = version
        self.produces = api_key == PRODUCE
        self.by_id = self.produces and version >= PRODUCE_IDS_FIRST
        self.skips_rewrite = api_key == FETCH and version >= VERSION_FIRST  # if ids and session are known
        self.deletes_topics = api == "DeleteTopics"
        self.deletes_records = api == "DeleteRecords"
        self.has_topic_ids = api in _WITH_TOPIC_IDS
        self.lists_brokers = api in _LISTING_BROKERS
        self.counts_service_time = api not in _LONG_POLLS
        limits = request_limits(api, version)
        self.request_bytes_max = limits.bytes_max
        self.request = taking(api_key, version, limits.elements_max)
        self.response: Program | Action = TAKE
        self.streams_response = False
        if how is Treatment.SPLICED:
            outward = renamed_kinds(api, Direction.REQUEST)
            self.request = program(
                api_key,
                version,
                Direction.REQUEST,
                outward,
                observed=self.produces,
                elements_max=limits.elements_max,
            )
        if how in (Treatment.SPLICED, Treatment.REBUILT):
            inward = renamed_kinds(api, Direction.RESPONSE)
            if restricted and self.lists_brokers:
                inward |= RESTRICTED_KINDS
            if self.has_topic_ids:
                inward |= {Kind.ERROR}
            self.response = program(api_key, version, Direction.RESPONSE, inward, observed=api in _OBSERVED)
            self.streams_response = self.response.streams


Routes = dict[tuple[int, int], Route]


@cache
def routes(*, restricted: bool) -> Routes:
    """Every API that clients may call, in every version with a plan. Programs are compiled on first use."""
    definitions = load()
    table: Routes = {}
    for api_key, api in definitions.apis().items():
        if "broker" not in definitions.request(api).listeners:
            continue
        for version in definitions.request(api).valid_versions:
            table[api_key, version] = Route(api_key, api, version, restricted=restricted)
    return table
