"""A failure belongs to the group that caused it: the calls of a round, with a scripted client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.model.errors.wire import (
    ApiUnsupported,
    CallTimedOut,
    KafkaBusy,
    KafkaDenied,
    ResponseMalformed,
)
from penstock.scale.sampler.kafka_source import GROUPS_PER_CALL, KafkaLagSource
from penstock.scale.sampler.source import GroupSnapshot
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.model.errors import PenstockError


class ScriptedClient:
    """Groups on two nodes. `codes` are error codes of groups, `silent` are nodes that do not respond."""

    def __init__(
        self,
        nodes: Mapping[str, int],
        *,
        codes: Mapping[str, int] | None = None,
        silent: frozenset[int] = frozenset(),
        unsupported: frozenset[str] = frozenset(),
        assignments: Mapping[str, bytes] | None = None,
    ) -> None:
        self.nodes = nodes
        self.codes = codes or {}
        self.silent = silent
        self.unsupported = unsupported
        self.assignments = assignments or {}
        self.calls: list[tuple[str, int]] = []

    async def call(self, api: str, body: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        if api == "FindCoordinator":
            keys = body["CoordinatorKeys"]
            return {"Coordinators": [{"Key": key, "ErrorCode": 0, "NodeId": self.nodes[key]} for key in keys]}
        node = options["to"].id
        self.calls.append((api, node))
        if api in self.unsupported:
            raise ApiUnsupported(address="b:1", api=api, offered="none", known="1", kafka_version="4.2")
        if node in self.silent:
            raise CallTimedOut(api=api, address=f"b:{node}", seconds=5)
        names = body.get("GroupIds") or [
            each if isinstance(each, str) else each["GroupId"] for each in body["Groups"]
        ]
        return {"Groups": [self._group(name) for name in names]}

    def _group(self, name: str) -> dict[str, Any]:
        assignment = self.assignments.get(name)
        members = [{"MemberId": "m", "MemberAssignment": assignment}] if assignment else []
        code = self.codes.get(name, 0)
        return {"GroupId": name, "ErrorCode": code, "GroupState": "Stable", "Members": members, "Topics": []}


async def snapshots(
    client: ScriptedClient, *, share: bool = False
) -> dict[str, GroupSnapshot | PenstockError]:
    source = KafkaLagSource(client)  # type: ignore[arg-type]  # scripted
    return await source.groups(list(client.nodes), share=share)


async def test_an_api_that_a_broker_lacks_is_an_error_of_each_group() -> None:
    client = ScriptedClient({"pool": 1}, unsupported=frozenset({"ShareGroupDescribe"}))

    results = await snapshots(client, share=True)

    assert isinstance(results["pool"], ApiUnsupported)


async def test_a_group_that_a_broker_without_the_consumer_protocol_does_not_know_is_missing() -> None:
    client = ScriptedClient(
        {"gone": 1, "billing": 1},
        codes={"gone": Code.GROUP_ID_NOT_FOUND},
        unsupported=frozenset({"ConsumerGroupDescribe"}),
    )

    results = await snapshots(client)

    assert list(results) == ["billing"]
    assert isinstance(results["billing"], GroupSnapshot)


async def test_a_group_that_may_not_be_described_fails_alone() -> None:
    client = ScriptedClient({"secret": 1, "billing": 1}, codes={"secret": Code.GROUP_AUTHORIZATION_FAILED})

    results = await snapshots(client)

    assert isinstance(results["secret"], KafkaDenied)
    assert isinstance(results["billing"], GroupSnapshot)


async def test_members_with_another_assignment_format_fail_their_group_alone() -> None:
    client = ScriptedClient(
        {"connect": 1, "billing": 1}, assignments={"connect": b"\x00\x01\x7f\xff\xff\xff"}
    )

    results = await snapshots(client)

    assert isinstance(results["connect"], ResponseMalformed)
    assert isinstance(results["billing"], GroupSnapshot)


async def test_a_node_that_does_not_respond_fails_its_groups_and_is_called_only_once() -> None:
    nodes = {f"g{number}": 1 + number % 2 for number in range(40 * GROUPS_PER_CALL)}
    client = ScriptedClient(nodes, silent=frozenset({2}))

    results = await snapshots(client)

    failed = {name for name, each in results.items() if isinstance(each, CallTimedOut)}
    assert failed == {name for name, node in nodes.items() if node == 2}
    assert client.calls.count(("DescribeGroups", 2)) <= 4  # those under way at once


async def test_a_coordinator_that_moves_fails_its_groups_alone() -> None:
    client = ScriptedClient({"moving": 1, "billing": 2}, codes={"moving": Code.NOT_COORDINATOR})

    results = await snapshots(client)

    assert isinstance(results["moving"], KafkaBusy)
    assert isinstance(results["billing"], GroupSnapshot)
