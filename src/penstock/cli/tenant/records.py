"""`penstock produce` and `consume`: a logical cluster's records, as its tenant.

As JSON a record has its place, time, key, value and headers. `produce --input jsonl` writes what
`consume -o jsonl` prints, byte for byte: what is no UTF-8 is in base64, in fields that end in `_base64`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from penstock.cli.flags import Cluster, past_ms
from penstock.cli.library.dead_letters import app as dead_letters
from penstock.cli.output import Format, report, show
from penstock.cli.remote import tenant_client
from penstock.cli.settings import ProfileOptions
from penstock.cli.tenant.topic import Name
from penstock.kafka.admin.offsets import list_offsets
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition, wait_for_leaders
from penstock.kafka.append import Row, append
from penstock.kafka.client import Client
from penstock.kafka.partition_log import bounds, read
from penstock.model.errors import Exit
from penstock.model.errors.settings import UsageInvalid
from penstock.model.plural import counted
from penstock.olep.partitioner import partition_of
from penstock.wire.records import Record

consume = App(name="consume")
consume.command(dead_letters)

BATCH_RECORDS_MAX: Final = 500
POLL_MS: Final = 250
_FILTER: Final = re.compile(r"(key|value|header\.[^~]+)~(.*)", re.DOTALL)

Input = Literal["lines", "jsonl"]


async def produce(
    topic: Name,
    values: Annotated[tuple[str, ...], Parameter(help="Records; read from standard input if left out.")] = (),
    *,
    cluster: Cluster = None,
    key: Annotated[str | None, Parameter(help="The key of every record.", negative="")] = None,
    form: Annotated[
        Input,
        Parameter(name=["--input", "-i"], help="A value on each line, or what consume -o jsonl prints."),
    ] = "lines",
    options: ProfileOptions = ProfileOptions(),
) -> int:
    """Write records, one for each line, and wait for their acknowledgement.

    Example:  penstock produce orders hello --cluster shop
    """
    lines: Iterable[str] = values or (line.rstrip("\n") for line in sys.stdin)
    rows = _rows(lines, None if key is None else key.encode(), form)
    written = 0
    async with tenant_client(options, cluster) as client:
        rotation = itertools.count(int(time.time()))
        while some := list(itertools.islice(rows, BATCH_RECORDS_MAX)):
            count = len(await wait_for_leaders(client, topic))
            unkeyed = next(rotation) % count
            by_partition: dict[int, list[Row]] = {}
            for row in some:
                number = unkeyed if row[0] is None else partition_of(row[0], count)
                by_partition.setdefault(number, []).append(row)
            for number, batch in by_partition.items():
                await append(client, TopicPartition(topic, number), batch)
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
    offset: Annotated[int | None, Parameter(help="Start at this offset of each partition.")] = None,
    at: Annotated[str | None, Parameter(help="Start at a time: 2026-01-31T12:00Z, or 15m ago.")] = None,
    last: Annotated[int | None, Parameter(help="Start this many offsets before each end.")] = None,
    partition: Annotated[
        list[int] | None, Parameter(help="Only this partition; repeatable.", negative="")
    ] = None,
    pattern: Annotated[
        str | None,
        Parameter(name="--filter", help="Only matches: REGEX of the value, key~REGEX, header.NAME~REGEX."),
    ] = None,
    count: Annotated[
        int | None, Parameter(name=["--count", "-n"], help="Stop after this many records.")
    ] = None,
    follow: Annotated[bool, Parameter(help="Wait for new records at the end.")] = True,
    options: ProfileOptions = ProfileOptions(),
) -> int:
    """Print records as they arrive, without a group and without commits.

    Example:  penstock consume orders --at 15m --filter key~user-7 -o jsonl --cluster shop
    """
    if count is not None and count < 1:
        raise UsageInvalid(reason=f"--count is {count}", way_out="Ask for one record or more.")
    matches = _filter(pattern)
    start = _start(beginning=beginning, offset=offset, at=at, last=last)
    left = count if count is not None else sys.maxsize
    async with tenant_client(options, cluster) as client:
        places: dict[TopicPartition, int] = {}
        for place in _chosen(await wait_for_leaders(client, topic), partition):
            places[place] = await start(client, place)
        while left > 0:
            fetched, printed = await _round(client, places, left, options.form, matches, follow=follow)
            left -= printed
            if not fetched and not follow:
                break
    return Exit.FINE


async def _round(
    client: Client,
    places: dict[TopicPartition, int],
    left: int,
    form: Format,
    matches: Callable[[Record], bool],
    *,
    follow: bool,
) -> tuple[int, int]:
    """Read every partition once; the number of records read, and of those printed."""
    wait_ms = POLL_MS if follow else 0
    chunks = await asyncio.gather(
        *(read(client, p, at, wait_ms=wait_ms, lane=f"consume {p}") for p, at in places.items())
    )
    printed = 0
    for partition, chunk in zip(list(places), chunks):
        for record in itertools.islice(filter(matches, chunk.records), left - printed):
            _print(partition, record, form)
            printed += 1
        places[partition] = chunk.position
    sys.stdout.flush()
    return sum(len(chunk.records) for chunk in chunks), printed


def _start(*, beginning: bool, offset: int | None, at: str | None, last: int | None) -> Any:
    """A function of client and partition that returns the first offset to read."""
    given = [beginning or None, offset, at, last]
    if sum(each is not None for each in given) > 1:
        raise UsageInvalid(
            reason="--from-beginning, --offset, --at and --last exclude each other",
            way_out="Give one of them.",
        )
    for flag, value in (("--offset", offset), ("--last", last)):
        if value is not None and value < 0:
            raise UsageInvalid(reason=f"{flag} is {value}", way_out="Give 0 or more.")
    time_ms = None if at is None else past_ms(at, "--at")

    async def start(client: Client, place: TopicPartition) -> int:
        first, end = await bounds(client, place)
        if offset is not None:
            return min(max(offset, first), end)
        if last is not None:
            return max(first, end - last)
        if time_ms is not None:
            by_time = results_or_raise(await list_offsets(client, {place: time_ms}))[place].offset
            return end if by_time < 0 else by_time
        return first if beginning else end

    return start


def _chosen(places: list[TopicPartition], numbers: list[int] | None) -> list[TopicPartition]:
    if numbers is None:
        return places
    known = {place.partition: place for place in places}
    for number in numbers:
        if number not in known:
            raise UsageInvalid(
                reason=f"there is no partition {number}", way_out=f"The partitions are 0 to {max(known)}."
            )
    return [known[number] for number in dict.fromkeys(numbers)]


def _filter(text: str | None) -> Callable[[Record], bool]:
    if text is None:
        return lambda _: True
    match = _FILTER.fullmatch(text)
    field, expression = (match[1], match[2]) if match else ("value", text)
    try:
        pattern = re.compile(expression.encode())
    except re.error as error:
        raise UsageInvalid(
            reason=f"--filter {text!r} is no regular expression: {error}",
            way_out="Escape special characters.",
        ) from error

    def matches(record: Record) -> bool:
        parts = [record.key if field == "key" else record.value]
        if field.startswith("header."):
            parts = [value for name, value in record.headers if name == field.removeprefix("header.")]
        return any(part is not None and pattern.search(part) for part in parts)

    return matches


def _print(partition: TopicPartition, record: Record, form: Format) -> None:
    if form is Format.TABLE:
        print("" if record.value is None else record.value.decode(errors="replace"))
        return
    headers = [{"name": name, **_encoded("value", value)} for name, value in record.headers]
    data = {
        "topic": partition.topic, "partition": partition.partition, "offset": record.offset,
        "timestamp": record.timestamp_ms, **_encoded("key", record.key), **_encoded("value", record.value),
        "headers": headers,
    }  # fmt: skip
    show(data, form, "")


def _encoded(field: str, value: bytes | None) -> dict[str, str | None]:
    """The field as text if it is UTF-8, else in base64 in a field of another name."""
    try:
        return {field: None if value is None else value.decode()}
    except UnicodeDecodeError:
        assert value is not None
        return {f"{field}_base64": base64.b64encode(value).decode()}


def _rows(lines: Iterable[str], key: bytes | None, form: Input) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if form == "lines":
            yield key, line.encode()
            continue
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            headers = tuple((each["name"], _decoded("value", each)) for each in record.get("headers", ()))
            yield key if key is not None else _decoded("key", record), _decoded("value", record), headers
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as failure:
            raise UsageInvalid(
                reason=f"line {number} is no record as JSON: {failure}",
                way_out='Write {"key": "…", "value": "…"}, as `consume -o jsonl` does.',
            ) from failure


def _decoded(field: str, record: dict[str, Any]) -> bytes | None:
    if f"{field}_base64" in record:
        return base64.b64decode(record[f"{field}_base64"], validate=True)
    value = record.get(field)
    return None if value is None else value.encode()
