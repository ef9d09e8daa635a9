"""`penstock topic`, `group`, `produce`, `consume`: as a tenant, through the gateway."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Iterable
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from penstock.cli.keyring import kept_for
from penstock.cli.output import Format, show, table_of, tell
from penstock.cli.settings import Options
from penstock.kafka import commits, groups, topics
from penstock.kafka.appending import append
from penstock.kafka.client import Client
from penstock.kafka.log import bounds, read
from penstock.kafka.partitions import TopicPartition
from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.settings import UsageInvalid
from penstock.olep.placing import partition_of
from penstock.wire.records import Record

topic = App(name="topic", help="A logical cluster's topics.")
group = App(name="group", help="A logical cluster's consumer groups.")

BATCH_RECORDS_MAX: Final = 500
TRIES_MAX: Final = 50  # while a new topic becomes known
TRY_SECONDS: Final = 0.1
POLL_MS: Final = 250

Cluster = Annotated[
    str | None,
    Parameter(name=["--cluster", "-c"], help="Logical cluster, id or name.", show_default="the only one"),
]
Name = Annotated[str, Parameter(help="The topic's name.")]


@topic.command(name="create")
async def create_topic(
    name: Name,
    *,
    cluster: Cluster = None,
    partitions: Annotated[int, Parameter(name=["--partitions", "-p"], help="How many.")] = 3,
    config: Annotated[list[str] | None, Parameter(help="key=value, several times.", negative="")] = None,
    options: Options = Options(),
) -> int:
    """Make a topic.

    Example:  penstock topic create orders --partitions 6 --cluster shop
    """
    settings: dict[str, str | None] = {}
    for pair in config or ():
        left, equals, right = pair.partition("=")
        if not equals:
            raise UsageInvalid(reason=f"--config {pair!r} has no value", way_out="Write key=value.")
        settings[left] = right
    async with kept_for(options.layout, cluster).client() as client:
        made = (await topics.create(client, [topics.NewTopic(name, partitions, configs=settings)]))[name]
        if isinstance(made, PenstockError):
            raise made
    data = {"name": name, "partitions": partitions, "id": str(made)}
    show(data, options.form, table_of([data], {"NAME": "name", "PARTITIONS": "partitions", "ID": "id"}))
    return Exit.FINE


@topic.command(name="list")
async def list_topics(*, cluster: Cluster = None, options: Options = Options()) -> int:
    """Topics, with their partitions and replicas.

    Example:  penstock topic list --cluster shop
    """
    async with kept_for(options.layout, cluster).client() as client:
        found = await topics.describe(client)
    rows = [
        {
            "name": name,
            "partitions": len(one.partitions),
            "replicas": max((len(p.replicas) for p in one.partitions), default=0),
            "under_replicated": sum(len(p.isr) < len(p.replicas) for p in one.partitions),
        }
        for name, one in sorted(found.items())
        if not isinstance(one, PenstockError)
    ]
    columns = {
        "NAME": "name",
        "PARTITIONS": "partitions",
        "REPLICAS": "replicas",
        "BEHIND": "under_replicated",
    }
    show(rows, options.form, table_of(rows, columns))
    return Exit.FINE


@topic.command(name="delete")
async def delete_topic(name: Name, *, cluster: Cluster = None, options: Options = Options()) -> int:
    """Delete a topic with its data.

    Example:  penstock topic delete orders --cluster shop
    """
    async with kept_for(options.layout, cluster).client() as client:
        for answer in (await topics.delete(client, [name])).values():
            if answer is not None:
                raise answer
    tell("deleted")
    return Exit.FINE


@group.command(name="list")
async def list_groups(*, cluster: Cluster = None, options: Options = Options()) -> int:
    """Consumer groups and their states.

    Example:  penstock group list --cluster shop
    """
    async with kept_for(options.layout, cluster).client() as client:
        found = await groups.list_all(client)
    rows = [{"id": one.id, "state": one.state, "type": str(one.type)} for _, one in sorted(found.items())]
    show(rows, options.form, table_of(rows, {"ID": "id", "STATE": "state", "TYPE": "type"}))
    return Exit.FINE


@group.command
async def lag(
    name: Annotated[str, Parameter(help="The group's id.")],
    *,
    cluster: Cluster = None,
    options: Options = Options(),
) -> int:
    """How far a group is behind, by partition.

    Example:  penstock group lag billing --cluster shop
    """
    async with kept_for(options.layout, cluster).client() as client:
        found = await commits.lag(client, name)
    rows: list[dict[str, Any]] = []
    for partition, one in sorted(found.items()):
        row: dict[str, Any] = {"topic": partition.topic, "partition": partition.partition}
        if isinstance(one, PenstockError):
            row["error"] = one.message
        else:
            row |= {"committed": one.committed, "end": one.end, "lag": one.records}
        rows.append(row)
    columns = {
        "TOPIC": "topic",
        "PARTITION": "partition",
        "COMMITTED": "committed",
        "END": "end",
        "LAG": "lag",
    }
    show(rows, options.form, table_of(rows, columns))
    return Exit.FINE


async def produce(
    topic: Name,
    values: Annotated[tuple[str, ...], Parameter(help="Records; from standard input if left out.")] = (),
    *,
    cluster: Cluster = None,
    key: Annotated[str | None, Parameter(help="The key of every record.", negative="")] = None,
    options: Options = Options(),
) -> int:
    """Write records, one a line, and say when they are acknowledged.

    Example:  penstock produce orders hello --cluster shop
    """
    lines: Iterable[str] = values or (line.rstrip("\n") for line in sys.stdin)
    written = 0
    async with kept_for(options.layout, cluster).client() as client:
        turns = itertools.count(int(time.time()))
        remaining = iter(lines)
        while some := list(itertools.islice(remaining, BATCH_RECORDS_MAX)):
            count = len(await partitions_of(client, topic))
            by_key = None if key is None else partition_of(key.encode(), count)
            number = next(turns) % count if by_key is None else by_key
            rows = [(None if key is None else key.encode(), line.encode()) for line in some]
            await append(client, TopicPartition(topic, number), rows)
            written += len(some)
    if options.form is not Format.TABLE:
        show({"acknowledged": written}, options.form, "")
    else:
        tell(f"{written} acknowledged")
    return Exit.FINE


async def consume(
    topic: Name,
    *,
    cluster: Cluster = None,
    beginning: Annotated[
        bool, Parameter(name=["--from-beginning", "-b"], help="What is there already, too.", negative="")
    ] = False,
    count: Annotated[int | None, Parameter(name=["--count", "-n"], help="End after so many.")] = None,
    follow: Annotated[bool, Parameter(help="Wait for more at the end.")] = True,
    options: Options = Options(),
) -> int:
    """Print records as they come, without a group: nothing is committed.

    Example:  penstock consume orders --from-beginning --count 10 --cluster shop
    """
    if count is not None and count < 1:
        raise UsageInvalid(reason=f"--count is {count}", way_out="Ask for one record or more.")
    left = count if count is not None else sys.maxsize
    async with kept_for(options.layout, cluster).client() as client:
        places: dict[TopicPartition, int] = {}
        for partition in await partitions_of(client, topic):
            first, end = await bounds(client, partition)
            places[partition] = first if beginning else end
        while left > 0:
            got = await _round(client, places, left, options.form, follow=follow)
            left -= got
            if not got and not follow:
                break
    return Exit.FINE


async def _round(
    client: Client, places: dict[TopicPartition, int], left: int, form: Format, *, follow: bool
) -> int:
    """One look at every partition; how many were printed."""
    wait_ms = POLL_MS if follow else 0
    chunks = await asyncio.gather(
        *(read(client, p, at, wait_ms=wait_ms, lane=f"consume {p}") for p, at in places.items())
    )
    printed = 0
    for partition, chunk in zip(list(places), chunks):
        for record in chunk.records[: left - printed]:
            _print(partition, record, form)
            printed += 1
        places[partition] = chunk.position
    sys.stdout.flush()
    return printed


def _print(partition: TopicPartition, record: Record, form: Format) -> None:
    value = None if record.value is None else record.value.decode(errors="replace")
    if form is Format.TABLE:
        print(value if value is not None else "")
        return
    key = None if record.key is None else record.key.decode(errors="replace")
    data = {"partition": partition.partition, "offset": record.offset, "key": key, "value": value}
    show(data, form, "")


async def partitions_of(client: Client, name: str) -> list[TopicPartition]:
    """All with a leader; a new topic takes a moment."""
    for attempt in itertools.count(1):
        leaders = await client.leaders([name], strict=attempt >= TRIES_MAX)
        if leaders and min(leaders.values()) >= 0:
            return sorted(TopicPartition(*partition) for partition in leaders)
        await asyncio.sleep(TRY_SECONDS)
    raise AssertionError
