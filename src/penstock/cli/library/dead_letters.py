"""`penstock consume dead-letters`: list the records that failed, and write them back to their topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from penstock.cli.flags import Cluster
from penstock.cli.output import Format, report, show, table_of
from penstock.cli.remote import tenant_client
from penstock.cli.settings import ProfileOptions
from penstock.kafka.admin import group_offsets
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.partitions import TopicPartition, wait_for_leaders
from penstock.kafka.append import append
from penstock.kafka.partition_log import bounds, read
from penstock.model import offset_map
from penstock.model.dead_letter import failure_of, own_headers
from penstock.model.errors import Exit
from penstock.model.errors.settings import UsageInvalid
from penstock.model.plural import counted
from penstock.olep.partitioner import partition_of

if TYPE_CHECKING:
    from penstock.kafka.client import Client
    from penstock.model.dead_letter import Failure
    from penstock.wire.records import Record

app = App(name="dead-letters", help="Records that failed in a parallel consumer.")

# The group whose committed offsets and offset maps list the dead letters that are replayed.
GROUP_PREFIX: Final = "penstock.dead-letters."

Topic = Annotated[str, Parameter(help="The dead-letter topic.")]
Cause = Annotated[
    str | None, Parameter(help="Only failures of this exception, such as ValueError.", negative="")
]


@dataclass(slots=True)
class Partition:
    """One partition of a dead-letter topic: its dead letters that are not replayed, from `position` on."""

    place: TopicPartition
    position: int
    end: int
    replayed: offset_map.OffsetMap | None
    kept: list[int] = field(default_factory=list)  # offsets read and left for a later replay

    async def next_letters(self, client: Client) -> list[tuple[Record, Failure | None]]:
        """The next ones, read in one fetch."""
        chunk = await read(client, self.place, self.position)
        self.position = chunk.position if chunk.position > self.position else self.end
        done = self.replayed.done if self.replayed is not None else lambda offset: False
        letters = [each for each in chunk.records if each.offset < self.end and not done(each.offset)]
        return [(each, failure_of(each.headers)) for each in letters]

    def commit(self) -> CommittedOffset:
        """What is replayed up to `position`, and beyond it by earlier replays."""
        unfinished, end = list(self.kept), self.position
        if self.replayed is not None and self.replayed.end > end:
            unfinished += sorted(each for each in self.replayed.unfinished if each >= end)
            end = self.replayed.end
        base = unfinished[0] if unfinished else end
        metadata = offset_map.encode(base, end, unfinished) if end > base else ""
        if len(metadata) > offset_map.METADATA_CHARS_MAX:
            raise UsageInvalid(
                reason=f"{len(unfinished)} dead letters in {self.place} are left between replayed ones",
                way_out="Replay those first, without --cause.",
            )
        return CommittedOffset(base, metadata=metadata)


async def partitions(client: Client, topic: str) -> list[Partition]:
    places = await wait_for_leaders(client, topic)
    stored = await group_offsets.committed(client, GROUP_PREFIX + topic, places)
    opened = []
    for place in places:
        first, end = await bounds(client, place)
        known = stored.get(place)
        replayed = None if known is None else offset_map.decode(known.offset, known.metadata)
        opened.append(Partition(place, max(first, known.offset if known else first), end, replayed))
    return opened


def _matches(failure: Failure | None, cause: str | None) -> bool:
    return cause is None or (failure is not None and cause in (failure.cause, failure.cause.split(".")[-1]))


async def replay_letters(
    client: Client, topic: str, *, cause: str | None = None, to: str | None = None
) -> tuple[int, int]:
    """Writes dead letters back, each to its partition of origin; how many, and how many are left.

    At least once: progress is committed after the records are acknowledged.
    """
    written = left = 0
    counts: dict[str, int] = {}
    for partition in await partitions(client, topic):
        while partition.position < partition.end:
            rows: dict[TopicPartition, list[Any]] = {}
            for record, failure in await partition.next_letters(client):
                target = to or (failure.topic if failure is not None else None)
                if target is None or not _matches(failure, cause):
                    partition.kept.append(record.offset)
                    continue
                if target not in counts:
                    counts[target] = len(await wait_for_leaders(client, target))
                number = failure.partition if failure is not None else counts[target]
                if to is not None or number >= counts[target]:
                    number = partition_of(record.key or b"", counts[target])
                row = (record.key, record.value, tuple(own_headers(record.headers)))
                rows.setdefault(TopicPartition(target, number), []).append(row)
            progress = partition.commit()
            for place, batch in rows.items():
                await append(client, place, batch)
                written += len(batch)
            results = await group_offsets.commit(client, GROUP_PREFIX + topic, {partition.place: progress})
            for error in filter(None, results.values()):
                raise error
        left += len(partition.kept)
    return written, left


@app.command(name="list")
async def list_letters(
    topic: Topic, *, cluster: Cluster = None, cause: Cause = None, options: ProfileOptions = ProfileOptions()
) -> int:
    """List the dead letters that are not replayed, with their origin and the cause of their failure.

    Example:  penstock consume dead-letters list orders.dead --cluster shop
    """
    rows: list[dict[str, Any]] = []
    async with tenant_client(options, cluster) as client:
        for partition in await partitions(client, topic):
            while partition.position < partition.end:
                for record, failure in await partition.next_letters(client):
                    if _matches(failure, cause):
                        rows.append(_row(partition.place, record, failure))
    columns = {
        "PARTITION": "partition", "OFFSET": "offset", "FROM": "from", "KEY": "key", "CAUSE": "cause",
        "MESSAGE": "message", "ATTEMPTS": "attempts",
    }  # fmt: skip
    show(rows, options.form, table_of(rows, columns, empty="no dead letters"))
    return Exit.FINE


@app.command(name="replay")
async def replay(
    topic: Topic,
    *,
    cluster: Cluster = None,
    cause: Cause = None,
    to: Annotated[
        str | None,
        Parameter(help="Write to this topic.", show_default="the topic each came from", negative=""),
    ] = None,
    options: ProfileOptions = ProfileOptions(),
) -> int:
    """Write dead letters back to the topics they came from, after you repaired the handler.

    A second call replays only what is new. If it is interrupted, some records may be written twice.

    Example:  penstock consume dead-letters replay orders.dead --cause ValueError --cluster shop
    """
    async with tenant_client(options, cluster) as client:
        written, left = await replay_letters(client, topic, cause=cause, to=to)
    if options.form is not Format.TABLE:
        show({"replayed": written, "left": left}, options.form, "")
    else:
        report(f"{counted(written, 'dead letter')} replayed, {left} left")
    return Exit.FINE


def _row(place: TopicPartition, record: Record, failure: Failure | None) -> dict[str, Any]:
    row: dict[str, Any] = {"partition": place.partition, "offset": record.offset}
    row["key"] = None if record.key is None else record.key.decode(errors="replace")
    if failure is not None:
        row |= {
            "from": f"{failure.topic}[{failure.partition}]@{failure.offset}",
            "cause": failure.cause, "message": failure.message, "attempts": failure.attempts,
        }  # fmt: skip
    return row
