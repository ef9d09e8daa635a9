"""The table of `apis` made ready for the data path: one lookup a request."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.gateway.apis import (
    RESTRICTED_KINDS,
    Treatment,
    changed,
    treatment,
)
from penstock.wire.definitions import load
from penstock.wire.passing import VERSION_FIRST
from penstock.wire.plans import Direction
from penstock.wire.rules import Kind
from penstock.wire.splice import TAKE, Program, program

if TYPE_CHECKING:
    from penstock.wire.splice import Action

PRODUCE, FETCH = 0, 1
PRODUCE_IDS_FIRST: Final = 13
API_VERSIONS: Final = 18
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
BEFORE_LOGIN: Final = frozenset((API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE))

# Answers that name topics with their ids, and answers that list brokers.
_TEACHING: Final = frozenset(("Metadata", "DescribeTopicPartitions"))
_LISTING: Final = frozenset(("Metadata", "DescribeCluster"))
# The broker waits on purpose: for data, for members, for replicas. No service time is counted.
_WAITING: Final = frozenset(("Fetch", "ShareFetch", "JoinGroup", "SyncGroup"))
_WATCHED: Final = frozenset(("Produce", "DeleteTopics"))


class Route:
    """What happens to one API in one version."""

    __slots__ = (
        "api", "by_id", "here", "lists", "passes", "produces", "rebuilt", "refused", "request", "response",
        "teaches", "timed", "version",
    )  # fmt: skip

    def __init__(self, api_key: int, api: str, version: int, *, restricted: bool) -> None:
        how = treatment(api, version)
        self.api = api
        self.version = version
        self.here = how is Treatment.HERE
        self.rebuilt = how is Treatment.REBUILT
        self.refused = how is Treatment.REFUSED
        self.produces = api_key == PRODUCE
        self.by_id = self.produces and version >= PRODUCE_IDS_FIRST
        self.passes = api_key == FETCH and version >= VERSION_FIRST  # if its ids and its session are known
        self.teaches = api in _TEACHING
        self.lists = api in _LISTING
        self.timed = api not in _WAITING
        self.request: Program | Action = TAKE
        self.response: Program | Action = TAKE
        if how is Treatment.SPLICED:
            outward = changed(api, Direction.REQUEST)
            self.request = program(
                api_key, version, Direction.REQUEST, outward, watched=api in _WATCHED and self.produces
            )
        if how in (Treatment.SPLICED, Treatment.REBUILT):
            inward = changed(api, Direction.RESPONSE)
            if restricted and self.lists:
                inward |= RESTRICTED_KINDS
            if self.teaches:
                inward |= {Kind.ERROR}
            self.response = program(api_key, version, Direction.RESPONSE, inward, watched=api in _WATCHED)


Routes = dict[tuple[int, int], Route]


@cache
def routes(*, restricted: bool) -> Routes:
    """Every API that clients may call, in every version there is a plan for. Programs are made later."""
    definitions = load()
    found: Routes = {}
    for api_key, api in definitions.apis().items():
        if "broker" not in definitions.request(api).listeners:
            continue
        for version in definitions.request(api).valid_versions:
            found[api_key, version] = Route(api_key, api, version, restricted=restricted)
    return found
