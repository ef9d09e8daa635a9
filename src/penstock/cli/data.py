"""`penstock topic`, `group`, `produce`, `consume`: as a tenant, through the gateway."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Iterable
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from penstock.cli.dead_letters import app as dead_letters
from penstock.cli.flags import Cluster
from penstock.cli.output import Format, report, show, table_of
from penstock.cli.settings import Options
from penstock.kafka.admin import group_offsets, groups, topics
from penstock.kafka.admin.partitions import TopicPartition, wait_for_leaders
from penstock.kafka.append import append
from penstock.kafka.client import Client
from penstock.kafka.partition_log import bounds, read
from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.settings import UsageInvalid
from penstock.model.plural import counted
from penstock.olep.partitioner import partition_of
from penstock.platform.keyring import saved_key
from penstock.wire.records import Record

topic = App(name="topic", help="A logical cluster's topics.")
group = App(name="group", help="A logical cluster's consumer groups.")
consume = App(name="consume")
consume.command(dead_letters)

BATCH_RECORDS_MAX: Final = 500
POLL_MS: Final = 250

Name = Annotated[str, Parameter(help="Name of the topic.")]


@topic.command(name="create")
async def create_topic(
    name: Name,
    *,
    cluster: Cluster = None,
    partitions: Annotated[int, Parameter(name=["--partitions", "-p"], help="Number of partitions.")] = 3,
    config: Annotated[
        list[str] | None, Parameter(help="Topic setting, key=value; repeatable.", negative="")
    ] = None,
    options: Options = Options(),
) -> int:
    """Create a topic.

    Example:  penstock topic create orders --partitions 6 --cluster shop
    """
    settings: dict[str, str | None] = {}
    for pair in config or ():
        left, equals, right = pair.partition("=")
        if not equals:
            raise UsageInvalid(reason=f"--config {pair!r} has no value", way_out="Write key=value.")
        settings[left] = right
    async with saved_key(options.layout, cluster).client() as client:
        made = (await topics.create(client, [topics.NewTopic(name, partitions, configs=settings)]))[name]
        if isinstance(made, PenstockError):
            raise made
    data = {"name": name, "partitions": partitions, "id": str(made)}
    show(data, options.form, table_of([data], {"NAME": "name", "PARTITIONS": "partitions", "ID": "id"}))
    return Exit.FINE


@topic.command(name="list")
async def list_topics(*, cluster: Cluster = None, options: Options = Options()) -> int:
    """List the topics, with their partitions and replicas.

    Example:  penstock topic list --cluster shop
    """
    async with saved_key(options.layout, cluster).client() as client:
        described = await topics.describe(client)
    rows = [
        {
            "name": name,
            "partitions": len(one.partitions),
            "replicas": max((len(p.replicas) for p in one.partitions), default=0),
            "under_replicated": sum(len(p.isr) < len(p.replicas) for p in one.partitions),
        }
        for name, one in sorted(described.items())
        if not isinstance(one, PenstockError)
    ]
    columns = {
        "NAME": "name",
        "PARTITIONS": "partitions",
        "REPLICAS": "replicas",
        "UNDER-REPLICATED": "under_replicated",
    }
    show(rows, options.form, table_of(rows, columns, empty="no topics"))
    return Exit.FINE


@topic.command(name="delete")
async def delete_topic(name: Name, *, cluster: Cluster = None, options: Options = Options()) -> int:
    """Delete a topic and its data.

    Example:  penstock topic delete orders --cluster shop
    """
    async with saved_key(options.layout, cluster).client() as client:
        for error in (await topics.delete(client, [name])).values():
            if error is not None:
                raise error
    report("deleted")
    return Exit.FINE


@group.command(name="list")
async def list_groups(*, cluster: Cluster = None, options: Options = Options()) -> int:
    """List the consumer groups and their states.

    Example:  penstock group list --cluster shop
    """
    async with saved_key(options.layout, cluster).client() as client:
        listed = await groups.list_all(client)
    rows = [{"id": one.id, "state": one.state, "type": str(one.type)} for _, one in sorted(listed.items())]
    show(
        rows, options.form, table_of(rows, {"ID": "id", "STATE": "state", "TYPE": "type"}, empty="no groups")
    )
    return Exit.FINE


@group.command
async def lag(
    name: Annotated[str, Parameter(help="Id of the group.")],
    *,
    cluster: Cluster = None,
    options: Options = Options(),
) -> int:
    """Show the lag of a group, by partition.

    Example:  penstock group lag billing --cluster shop
    """
    async with saved_key(options.layout, cluster).client() as client:
        lags = await group_offsets.lag(client, name)
    rows: list[dict[str, Any]] = []
    for partition, one in sorted(lags.items()):
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
    show(rows, options.form, table_of(rows, columns, empty="no committed offsets"))
    return Exit.FINE


async def produce(
    topic: Name,
    values: Annotated[tuple[str, ...], Parameter(help="Records; read from standard input if left out.")] = (),
    *,
    cluster: Cluster = None,
    key: Annotated[str | None, Parameter(help="The key of every record.", negative="")] = None,
    options: Options = Options(),
) -> int:
    """Write records, one for each line, and wait for their acknowledgement.

    Example:  penstock produce orders hello --cluster shop
    """
    lines: Iterable[str] = values or (line.rstrip("\n") for line in sys.stdin)
    written = 0
    async with saved_key(options.layout, cluster).client() as client:
        rotation = itertools.count(int(time.time()))
        remaining = iter(lines)
        while some := list(itertools.islice(remaining, BATCH_RECORDS_MAX)):
            count = len(await wait_for_leaders(client, topic))
            by_key = None if key is None else partition_of(key.encode(), count)
            number = next(rotation) % count if by_key is None else by_key
            rows = [(None if key is None else key.encode(), line.encode()) for line in some]
            await append(client, TopicPartition(topic, number), rows)
            written += len(some)
    if options.form is not Format.TABLE:
        show({"acknowledged": written}, options.form, "")
    else:
        report(f"{counted(written, 'record')} acknowledged")
    return Exit.FINE


@consume.default
async def print_records(
    topic: Name,
    *,
    cluster: Cluster = None,
    beginning: Annotated[
        bool, Parameter(name=["--from-beginning", "-b"], help="Start at the oldest record.", negative="")
    ] = False,
    count: Annotated[
        int | None, Parameter(name=["--count", "-n"], help="Stop after this many records.")
    ] = None,
    follow: Annotated[bool, Parameter(help="Wait for new records at the end.")] = True,
    options: Options = Options(),
) -> int:
    """Print records as they arrive, without a group and without commits.

    Example:  penstock consume orders --from-beginning --count 10 --cluster shop
    """
    if count is not None and count < 1:
        raise UsageInvalid(reason=f"--count is {count}", way_out="Ask for one record or more.")
    left = count if count is not None else sys.maxsize
    async with saved_key(options.layout, cluster).client() as client:
        places: dict[TopicPartition, int] = {}
        for partition in await wait_for_leaders(client, topic):
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
    """Read every partition once; the number of records printed."""
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
