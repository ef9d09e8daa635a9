"""Reading the metadata log: trimmed logs, leader changes, nothing new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from penstock.kafka import quorum
from penstock.kafka.client import Client
from penstock.model.errors.wire import KafkaBusy, KafkaRefused
from penstock.wire.logs import Entry, write_framed
from penstock.wire.records import CONTROL, Record, write
from tests.kafka.fake_broker import FakeBroker, fake_broker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.wire.frames import Request

EPOCH = 4


def batch(first: int, *names: str) -> bytes:
    entries = [Entry("TopicRecord", 0, {"Name": name, "TopicId": UUID(int=7)}) for name in names]
    rows = [Record(first + i, 1, None, write_framed(entry)) for i, entry in enumerate(entries)]
    return write(rows, leader_epoch=EPOCH)


class FakeController:
    """Has a log from `start`, and a snapshot of everything before it."""

    def __init__(self, node: FakeBroker) -> None:
        self.node = node
        self.start, self.watermark = 10, 14
        self.log = (
            batch(10, "c", "d")
            + write([Record(12, 1, b"\0\0\0\x02", b"")], flags=CONTROL)
            + batch(13, "e", "f")
        )
        self.snapshot = batch(0, "a") + batch(1, "b")
        self.leaders = [1]  # reported one after another; the last one stays
        node.responses["DescribeCluster"] = lambda request: {
            "ClusterId": "c",
            "ControllerId": 1,
            "Brokers": [{"BrokerId": 1, "Host": node.host, "Port": node.port}],
        }
        node.responses["DescribeQuorum"] = lambda request: self.quorum()
        node.responses["Fetch"] = self.fetched
        node.responses["FetchSnapshot"] = self.snapshot_part

    def quorum(self) -> dict[str, Any]:
        partition = {"LeaderId": 1, "LeaderEpoch": EPOCH, "HighWatermark": self.watermark}
        return {"Topics": [{"TopicName": quorum.METADATA_TOPIC, "Partitions": [partition]}]}

    def fetched(self, request: Request) -> dict[str, Any]:
        (requested,) = request.body["Topics"][0]["Partitions"]
        result: dict[str, Any] = {
            "HighWatermark": self.watermark,
            "CurrentLeader": {"LeaderId": 1, "LeaderEpoch": EPOCH},
        }
        if self.leaders and self.leaders.pop(0) != 1:
            result["ErrorCode"] = 6
            result["CurrentLeader"] = {"LeaderId": -1, "LeaderEpoch": -1}
        elif requested["FetchOffset"] < self.start:
            result["SnapshotId"] = {"EndOffset": self.start, "Epoch": EPOCH}
        elif requested["FetchOffset"] < self.watermark:
            result["Records"] = self.log
        return {"Responses": [{"TopicId": UUID(int=1), "Partitions": [result]}]}

    def snapshot_part(self, request: Request) -> dict[str, Any]:
        """Half of the snapshot at a time, cut anywhere."""
        (requested,) = request.body["Topics"][0]["Partitions"]
        half = self.snapshot[requested["Position"] :][: len(self.snapshot) // 2 + 1]
        result = {"Size": len(self.snapshot), "Position": requested["Position"], "UnalignedRecords": half}
        return {"Topics": [{"Name": quorum.METADATA_TOPIC, "Partitions": [result]}]}


@pytest.fixture
async def controller() -> AsyncIterator[FakeController]:
    async with fake_broker() as node:
        yield FakeController(node)


@pytest.fixture
async def client(controller: FakeController) -> AsyncIterator[Client]:
    async with Client(controller.node.address, controllers=True) as one:
        yield one


def names(chunk: quorum.Chunk) -> list[str]:
    return [record.entry.values["Name"] for record in chunk.records]


async def test_a_trimmed_log_is_read_from_its_snapshot(client: Client) -> None:
    first = await quorum.read(client, 0)
    second = await quorum.read(client, first.next_offset)

    assert (names(first), first.is_snapshot, first.next_offset) == (["a", "b"], True, 10)
    assert {record.offset for record in first.records} == {9}
    assert (names(second), second.is_snapshot, second.next_offset) == (["c", "d", "e"], False, 14)


async def test_a_part_of_a_snapshot_is_not_taken_for_the_whole(
    controller: FakeController, client: Client
) -> None:
    """Topics and brokers that it lacks would count as deleted."""
    whole, size = controller.snapshot_part, len(controller.snapshot)

    def cut(request: Request) -> dict[str, Any]:
        response = whole(request)
        (part,) = response["Topics"][0]["Partitions"]
        if part["Position"] > 0:
            part["UnalignedRecords"] = b""
        return response

    controller.node.responses["FetchSnapshot"] = cut
    with pytest.raises(KafkaRefused, match=f"of {size} bytes"):
        await quorum.read(client, 0)


async def test_uncommitted_records_are_not_returned(controller: FakeController, client: Client) -> None:
    controller.watermark = 11

    chunk = await quorum.read(client, 10)

    assert (names(chunk), chunk.next_offset) == (["c"], 11)


async def test_records_before_the_requested_offset_are_left_out(client: Client) -> None:
    chunk = await quorum.read(client, 11)

    assert [record.offset for record in chunk.records] == [11, 13]


async def test_nothing_new_is_an_empty_chunk(client: Client) -> None:
    chunk = await quorum.read(client, 14)

    assert (chunk.records, chunk.next_offset) == ((), 14)


async def test_a_leader_that_moved_is_looked_up_again(controller: FakeController, client: Client) -> None:
    controller.leaders = [2, 2, 1]

    chunk = await quorum.read(client, 10)

    assert names(chunk) == ["c", "d", "e"]


async def test_a_quorum_without_a_leader_is_busy(controller: FakeController, client: Client) -> None:
    controller.leaders = [2] * 99

    with pytest.raises(KafkaBusy, match="metadata log"):
        await quorum.read(client, 10)
