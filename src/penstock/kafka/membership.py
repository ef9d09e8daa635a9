"""Share partitions among processes: each member owns the partitions its consumer group assigns to it.

It uses the classic group protocol of plain consumers, so Kafka's own tools show the owners. The group
leader keeps partitions where they are as far as an even spread allows. Ownership lasts from the
assignment until a rebalance, or until the coordinator has not confirmed a heartbeat for a session
timeout. `owned` checks the clock, so a process that was paused stops acting before it learns anything.

A member that gave up its partitions joins again, even if the coordinator still knows it: a coordinator
that took over the group gives every member a new session, and would confirm heartbeats of a member that
owns nothing for ever.

Ownership decides which process should act; it fences no one. For fencing, use a transactional id
(`partition_log`) or write an epoch with the data.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.kafka.admin.groups import assigned
from penstock.kafka.broker_errors import broker_error
from penstock.kafka.routing import group_coordinator
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import KafkaRefused
from penstock.wire.codec import decode_at, encode
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.kafka.client import Client

PROTOCOL: Final = "penstock-owner"
SESSION_SECONDS: Final = 6.0
HEARTBEATS_PER_SESSION: Final = 4
PAUSE_SECONDS: Final = 0.5  # after a failure
LANE: Final = "ownership"  # a JoinGroup request may wait for a whole rebalance
SUBSCRIPTION_VERSION: Final = 1  # the first with the partitions a member owns
ASSIGNMENT_VERSION: Final = 0
NOTHING: Final[frozenset[int]] = frozenset()
_LOST: Final = frozenset((Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.FENCED_INSTANCE_ID))

log = structlog.get_logger("penstock.kafka")


class GroupMembership:
    """One member of the group; calls `changed` with the owned partitions whenever they change."""

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
        self._confirmed_at = float("-inf")  # when the coordinator last confirmed the membership

    def owned(self) -> frozenset[int]:
        """The owned partitions; none if the last confirmation is older than the session timeout."""
        return self._owns if self.is_confirmed() else NOTHING

    def is_confirmed(self) -> bool:
        """Whether the group's coordinator confirmed the membership within a session timeout."""
        return time.monotonic() - self._confirmed_at < self._session_seconds

    async def run(self) -> None:
        """Take part until cancelled, then leave, so that others need not wait for the session to expire."""
        try:
            while True:
                try:
                    await self._join()
                    await self._heartbeat()
                except KafkaRefused:
                    raise  # a retry cannot help: the brokers do not allow this session timeout
                except PenstockError as failure:
                    log.warning("group unreachable", group=self.group, error=str(failure))
                    self._drop_expired()
                    await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._set(NOTHING)
            await self._leave()

    async def _join(self) -> None:
        response = await self._send_join()
        if response["ErrorCode"] == Code.MEMBER_ID_REQUIRED:
            self._member = response["MemberId"]
            response = await self._send_join()
        if response["ErrorCode"] in _LOST:
            self._member = ""
            self._set(NOTHING)
            return
        if response["ErrorCode"]:
            raise broker_error("JoinGroup", response["ErrorCode"], None, f"group {self.group!r}")
        self._member, self._generation = response["MemberId"], response["GenerationId"]
        assignments: list[dict[str, Any]] = []
        if response["Leader"] == self._member:
            assignments = self._assignments(response["Members"])
        body = {
            "GroupId": self.group,
            "GenerationId": self._generation,
            "MemberId": self._member,
            "ProtocolType": "consumer",
            "ProtocolName": PROTOCOL,
            "Assignments": assignments,
        }
        began = time.monotonic()
        synced = await self._call("SyncGroup", body)
        if synced["ErrorCode"] in (Code.REBALANCE_IN_PROGRESS, *_LOST):
            return
        if synced["ErrorCode"]:
            raise broker_error("SyncGroup", synced["ErrorCode"], None, f"group {self.group!r}")
        self._confirmed_at = began
        assignment = assigned(synced["Assignment"])
        self._set(frozenset(p.partition for p in assignment if p.topic == self._topic))

    async def _send_join(self) -> dict[str, Any]:
        owned = [{"Topic": self._topic, "Partitions": sorted(self._owns)}] if self._owns else []
        values = {"Topics": [self._topic], "UserData": None, "OwnedPartitions": owned}
        encoded = encode("ConsumerProtocolSubscription", SUBSCRIPTION_VERSION, values)
        session_ms = int(self._session_seconds * 1000)
        body = {
            "GroupId": self.group,
            "SessionTimeoutMs": session_ms,
            "RebalanceTimeoutMs": session_ms,
            "MemberId": self._member,
            "ProtocolType": "consumer",
            "Protocols": [{"Name": PROTOCOL, "Metadata": SUBSCRIPTION_VERSION.to_bytes(2) + encoded}],
        }
        return await self._call("JoinGroup", body)

    async def _call(self, api: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A request that may wait for the other members, at most for a rebalance timeout."""
        timeout = 2 * self._session_seconds
        return await self._client.call(api, body, to=self._to, lane=LANE, timeout=timeout, retry=False)

    def _assignments(self, members: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """As the group leader: the assignment of each member."""
        owned = {member["MemberId"]: _owned(member["Metadata"], self._topic) for member in members}
        assignments = []
        for member, partitions in assign(owned, self._count).items():
            topics = [{"Topic": self._topic, "Partitions": partitions}] if partitions else []
            values = {"AssignedPartitions": topics, "UserData": None}
            encoded = encode("ConsumerProtocolAssignment", ASSIGNMENT_VERSION, values)
            assignments.append({"MemberId": member, "Assignment": ASSIGNMENT_VERSION.to_bytes(2) + encoded})
        return assignments

    async def _heartbeat(self) -> None:
        """Send heartbeats until the group must be joined again."""
        body = {"GroupId": self.group, "GenerationId": self._generation, "MemberId": self._member}
        while self._member:
            await asyncio.sleep(self._session_seconds / HEARTBEATS_PER_SESSION)
            began = time.monotonic()
            if self._drop_expired():
                return
            try:
                response = await self._client.call(
                    "Heartbeat", body, to=self._to, lane=LANE, timeout=self._session_seconds, retry=False
                )
            except PenstockError as failure:
                log.warning("heartbeat failed", group=self.group, error=str(failure))
                continue
            code = response["ErrorCode"]
            if code in _LOST:
                self._member = ""
                self._set(NOTHING)
                return
            if code == Code.REBALANCE_IN_PROGRESS:
                self._confirmed_at = began
                return
            if code == Code.NONE:
                self._confirmed_at = began

    def _drop_expired(self) -> bool:
        """Give up the partitions if the membership was not confirmed for a session; true if it did."""
        if not self._owns or self.owned():
            return False
        log.warning("ownership expired", group=self.group, partitions=sorted(self._owns))
        self._set(NOTHING)
        return True

    def _set(self, owns: frozenset[int]) -> None:
        if owns != self._owns:
            self._owns = owns
            self._changed(owns)

    async def _leave(self) -> None:
        if not self._member:
            return
        members = [{"MemberId": self._member, "GroupInstanceId": None, "Reason": None}]

        def body(version: int) -> dict[str, Any]:
            leaving = {"Members": members} if version >= 3 else {"MemberId": self._member}
            return {"GroupId": self.group, **leaving}

        with contextlib.suppress(PenstockError):  # without it the session expires by itself
            await self._client.call("LeaveGroup", body, to=self._to, timeout=1.0, retry=False)


def assign(owned: Mapping[str, frozenset[int]], partitions: int) -> dict[str, list[int]]:
    """Spread the partitions evenly over the members, moving as few as possible.

    `owned` is what each member owned before. The result depends only on the arguments, not on which
    member leads. If two members claim a partition, because one of them was disconnected for a while,
    it stays with the one that owned more, then with the first by name."""
    members = sorted(owned)
    least, larger_shares = divmod(partitions, len(members))  # so many members get one partition more
    assignment: dict[str, list[int]] = {member: [] for member in members}
    unassigned = set(range(partitions))
    for member in sorted(members, key=lambda name: (-len(owned[name]), name)):
        claimed = sorted(owned[member] & unassigned)
        share = least + 1 if larger_shares and len(claimed) > least else least
        larger_shares -= share > least
        assignment[member] = claimed[:share]
        unassigned -= set(assignment[member])
    for partition in sorted(unassigned):
        assignment[min(members, key=lambda name: (len(assignment[name]), name))].append(partition)
    return {member: sorted(assigned_partitions) for member, assigned_partitions in assignment.items()}


def _owned(subscription: bytes, topic: str) -> frozenset[int]:
    if int.from_bytes(subscription[:2], "big") < SUBSCRIPTION_VERSION:
        return NOTHING
    values, _ = decode_at("ConsumerProtocolSubscription", SUBSCRIPTION_VERSION, bytes(subscription), 2)
    return frozenset(p for t in values["OwnedPartitions"] if t["Topic"] == topic for p in t["Partitions"])
