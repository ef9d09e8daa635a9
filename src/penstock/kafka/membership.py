"""Work that is divided among processes: each owns the partitions of a group that it is assigned.

The classic group protocol, as plain consumers speak it, so that Kafka's own tools show who owns.
The leader of the group leaves partitions where they are, as far as everybody gets its part. A process
owns from its assignment until it is told otherwise or has not been heard by the coordinator for a
session: `owned` also looks at the clock, so that one that was paused knows before it is told.

Owning says who should act; it fences nobody. For that there is a transactional id (`log`), or an epoch
in what is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.kafka.groups import assigned
from penstock.kafka.refusals import refusal
from penstock.kafka.routing import group_coordinator
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import KafkaRefused
from penstock.wire.codec import decode_at, encode
from penstock.wire.codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.kafka.client import Client

PROTOCOL: Final = "penstock-owner"
SESSION_SECONDS: Final = 6.0
HEARTBEATS_A_SESSION: Final = 4
PAUSE_SECONDS: Final = 0.5  # after something failed
LANE: Final = "ownership"  # a join may be held back for long
SUBSCRIPTION_VERSION: Final = 1  # the first that says what a member owns
ASSIGNMENT_VERSION: Final = 0
NOTHING: Final[frozenset[int]] = frozenset()
_LOST: Final = frozenset((Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.FENCED_INSTANCE_ID))

log = structlog.get_logger("penstock.kafka")


class Membership:
    """`changed` is told what it owns whenever that is something else than before."""

    def __init__(
        self,
        client: Client,
        group: str,
        topic: str,
        *,
        partitions: int,
        changed: Callable[[frozenset[int]], None],
        session_seconds: float = SESSION_SECONDS,
    ) -> None:
        self._client = client
        self.group = group
        self._topic = topic
        self._count = partitions
        self._changed = changed
        self._session_seconds = session_seconds
        self._to = group_coordinator(group)
        self._member = ""
        self._generation = -1
        self._owns: frozenset[int] = frozenset()
        self._heard = float("-inf")

    def owned(self) -> frozenset[int]:
        """What we own as far as anybody can know without asking."""
        heard = time.monotonic() - self._heard < self._session_seconds
        return self._owns if heard else NOTHING

    async def run(self) -> None:
        """Take part until cancelled; then leave, so that another need not wait."""
        try:
            while True:
                try:
                    await self._join()
                    await self._stay()
                except KafkaRefused:
                    raise  # asking again changes nothing: a session that the brokers do not allow
                except PenstockError as failure:
                    log.warning("group not reached", group=self.group, error=str(failure))
                    self._judge()
                    await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._set(NOTHING)
            await self._leave()

    async def _join(self) -> None:
        answer = await self._ask_to_join()
        if answer["ErrorCode"] == Code.MEMBER_ID_REQUIRED:
            self._member = answer["MemberId"]
            answer = await self._ask_to_join()
        if answer["ErrorCode"] in _LOST:
            self._member = ""
            self._set(NOTHING)
            return
        if answer["ErrorCode"]:
            raise refusal("JoinGroup", answer["ErrorCode"], None, f"group {self.group!r}")
        self._member, self._generation = answer["MemberId"], answer["GenerationId"]
        shares: list[dict[str, Any]] = []
        if answer["Leader"] == self._member:
            shares = self._shares(answer["Members"])
        body = {
            "GroupId": self.group,
            "GenerationId": self._generation,
            "MemberId": self._member,
            "ProtocolType": "consumer",
            "ProtocolName": PROTOCOL,
            "Assignments": shares,
        }
        began = time.monotonic()
        synced = await self._client.call("SyncGroup", body, to=self._to, lane=LANE, again=False)
        if synced["ErrorCode"] in (Code.REBALANCE_IN_PROGRESS, *_LOST):
            return
        if synced["ErrorCode"]:
            raise refusal("SyncGroup", synced["ErrorCode"], None, f"group {self.group!r}")
        self._heard = began
        given = assigned(synced["Assignment"])
        self._set(frozenset(one.partition for one in given if one.topic == self._topic))

    async def _ask_to_join(self) -> dict[str, Any]:
        owned = [{"Topic": self._topic, "Partitions": sorted(self._owns)}] if self._owns else []
        subscription = SUBSCRIPTION_VERSION.to_bytes(2) + encode(
            "ConsumerProtocolSubscription",
            SUBSCRIPTION_VERSION,
            {"Topics": [self._topic], "UserData": None, "OwnedPartitions": owned},
        )
        session_ms = int(self._session_seconds * 1000)
        body = {
            "GroupId": self.group,
            "SessionTimeoutMs": session_ms,
            "RebalanceTimeoutMs": session_ms,
            "MemberId": self._member,
            "ProtocolType": "consumer",
            "Protocols": [{"Name": PROTOCOL, "Metadata": subscription}],
        }
        return await self._client.call("JoinGroup", body, to=self._to, lane=LANE, again=False)

    def _shares(self, members: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """We lead: say who gets what."""
        had = {member["MemberId"]: _owned(member["Metadata"], self._topic) for member in members}
        return [
            {
                "MemberId": member,
                "Assignment": ASSIGNMENT_VERSION.to_bytes(2)
                + encode(
                    "ConsumerProtocolAssignment",
                    ASSIGNMENT_VERSION,
                    {
                        "AssignedPartitions": [{"Topic": self._topic, "Partitions": given}] if given else [],
                        "UserData": None,
                    },
                ),
            }
            for member, given in divided(had, self._count).items()
        ]

    async def _stay(self) -> None:
        """Heartbeats, until the group has to be joined again."""
        body = {"GroupId": self.group, "GenerationId": self._generation, "MemberId": self._member}
        while self._member:
            await asyncio.sleep(self._session_seconds / HEARTBEATS_A_SESSION)
            began = time.monotonic()
            self._judge()
            try:
                answer = await self._client.call(
                    "Heartbeat", body, to=self._to, lane=LANE, timeout=self._session_seconds, again=False
                )
            except PenstockError as failure:
                log.warning("heartbeat failed", group=self.group, error=str(failure))
                continue
            code = answer["ErrorCode"]
            if code in _LOST:
                self._member = ""
                self._set(NOTHING)
                return
            if code == Code.REBALANCE_IN_PROGRESS:
                self._heard = began
                return
            if code == Code.NONE:
                self._heard = began

    def _judge(self) -> None:
        if self._owns and not self.owned():
            self._set(NOTHING)

    def _set(self, owns: frozenset[int]) -> None:
        if owns != self._owns:
            self._owns = owns
            self._changed(owns)

    async def _leave(self) -> None:
        if not self._member:
            return
        members = [{"MemberId": self._member, "GroupInstanceId": None, "Reason": None}]

        def body(version: int) -> dict[str, Any]:
            who = {"Members": members} if version >= 3 else {"MemberId": self._member}
            return {"GroupId": self.group, **who}

        with contextlib.suppress(PenstockError):  # a courtesy: without it the session runs out
            await self._client.call("LeaveGroup", body, to=self._to, timeout=1.0, again=False)


def divided(had: Mapping[str, frozenset[int]], partitions: int) -> dict[str, list[int]]:
    """Who gets which partitions: nobody more than one beyond another, and no more of them move than must.

    The same members with the same claims get the same, whoever leads. A partition that two claim,
    since one of them was not heard for a while, goes to the first by name.
    """
    members = sorted(had)
    least, more = divmod(partitions, len(members))
    given: dict[str, list[int]] = {member: [] for member in members}
    free = set(range(partitions))
    roomy = more  # so many may have one partition more than the others
    for member in sorted(members, key=lambda one: (-len(had[one]), one)):
        kept = sorted(had[member] & free)
        room = least + 1 if roomy and len(kept) > least else least
        roomy -= room > least
        given[member] = kept[:room]
        free -= set(given[member])
    for partition in sorted(free):
        given[min(members, key=lambda one: (len(given[one]), one))].append(partition)
    return {member: sorted(some) for member, some in given.items()}


def _owned(subscription: bytes, topic: str) -> frozenset[int]:
    if int.from_bytes(subscription[:2], "big") < SUBSCRIPTION_VERSION:
        return NOTHING
    values, _ = decode_at("ConsumerProtocolSubscription", SUBSCRIPTION_VERSION, bytes(subscription), 2)
    return frozenset(p for t in values["OwnedPartitions"] if t["Topic"] == topic for p in t["Partitions"])
