"""`penstock link`: byte-identical mirrors of topics on another cluster."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.console import Group

from penstock.audit.intents import IntentLog
from penstock.cli.flags import Yes, confirmed
from penstock.cli.output import report, show, table_of
from penstock.cli.settings import LogLines, Options, start_logs
from penstock.kafka.client import Client
from penstock.link import commands
from penstock.link.metrics import LinkMetrics
from penstock.link.readiness import readiness
from penstock.link.runner import LinkRunner
from penstock.link.settings import read_link_settings
from penstock.link.states import Action, State
from penstock.link.verify import compare
from penstock.log_lines import announce
from penstock.metrics_server import metrics_at, on_loop, page_of
from penstock.model.errors import Exit
from penstock.model.errors.link import TailStoreMissing
from penstock.model.fault_points import check_armed
from penstock.model.plural import counted
from penstock.tier.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.console import RenderableType

    from penstock.link.settings import ClusterAccess, LinkSettings

app = App(name="link", help="Byte-identical mirrors of another cluster's topics, with the same offsets.")

Name = Annotated[str, Parameter(help="Name of the link.")]
Settings = Annotated[Path, Parameter(name=("--settings", "-s"), help="The link's settings file.")]

_LISTED = {
    "NAME": "name",
    "STATE": "state",
    "TOPICS": "topic_count",
    "PARTITIONS": "partitions",
    "LAG": "lag",
}
_PARTITIONS = {
    "PARTITION": "partition",
    "END": "end",
    "SOURCE END": "source_end",
    "LAG": "lag",
    "FAILED": "failed",
}
_TAILS = {
    "SAVED TAIL": "partition",
    "FROM": "start",
    "TO": "end",
    "BATCHES": "batches",
    "TRUNCATED TO": "kept",
}
_READY_TOPICS = {
    "TOPIC": "topic",
    "PARTITIONS": "partitions",
    "LAG": "lag",
    "OPEN TRANSACTIONS": "open_transactions",
    "RECENT PRODUCERS": "recent_producers",
    "LAST RECORD": "last_record",
}
_READY_GROUPS = {"GROUP": "group", "STATE": "state", "UNREAD": "unread", "BLOCKED": "blocked"}
_COMPARED = {"PARTITION": "partition", "FROM": "start", "TO": "end", "SAME": "same", "DIGEST": "digest"}


@dataclass(frozen=True, slots=True)
class Clients:
    source: Client
    destination: Client


@app.command
async def create(
    name: Name,
    *,
    settings: Settings,
    topic: Annotated[
        list[str], Parameter(help="Topic, or a regular expression of topics; repeatable.", negative="")
    ],
    follow_deletes: Annotated[
        bool, Parameter(help="Delete a mirror when the source's topic is deleted.", negative="")
    ] = False,
    hold_start: Annotated[
        bool,
        Parameter(
            help="Stop a partition whose source deletes more than its retention explains.", negative=""
        ),
    ] = False,
    options: Options = Options(),
) -> int:
    """Create a link. It mirrors once `penstock link run` runs.

    Example:  penstock link create east --settings link.yaml --topic orders --topic 'payments.*'
    """
    parsed = read_link_settings(settings)
    async with _clients(parsed) as clients:
        await commands.create(
            clients.source,
            clients.destination,
            name,
            topic,
            follow_deletes=follow_deletes,
            hold_start=hold_start,
            shadow_id=parsed.shadow_id,
        )
        row = await commands.show(clients.destination, name)
    _show_state(row, options)
    report(f"created {name}; start it with `penstock link run {name}`")
    return Exit.FINE


@app.command(name="list")
async def list_(*, settings: Settings, options: Options = Options()) -> int:
    """List the links of a destination, with their states and lags.

    Example:  penstock link list --settings link.yaml
    """
    async with _clients(read_link_settings(settings)) as clients:
        rows = await commands.links(clients.destination)
    shown = [row | {"topic_count": len(row["topics"])} for row in rows]
    show(rows, options.form, table_of(shown, _LISTED, empty="no links"))
    return Exit.FINE


@app.command(name="show")
async def show_(name: Name, *, settings: Settings, options: Options = Options()) -> int:
    """Show a link: its state, and the lag of each partition.

    Example:  penstock link show east --settings link.yaml
    """
    async with _clients(read_link_settings(settings)) as clients:
        row = await commands.show(clients.destination, name)
    partitions = [{"partition": place, **one} for place, one in row["progress"].items()]
    saved = [
        {"partition": place, **{key: one[key] for key in ("start", "end", "batches", "kept")}}
        for place, one in row["tails"].items()
        if one["end"] > one["start"]
    ]
    problems = [f"problem with {duty}: {reason}" for duty, reason in row["problems"].items()]
    view = Group(
        _state_table(row),
        "",
        *problems,
        table_of(partitions, _PARTITIONS, empty="no partitions yet"),
        *((table_of(saved, _TAILS),) if saved else ()),
    )
    show(row, options.form, view)
    return Exit.UNHEALTHY if row["failed"] else Exit.FINE


@app.command
async def run(name: Name, *, settings: Settings, log_format: LogLines = None) -> int:
    """Run a link until it is promoted or failed over.

    Example:  penstock link run east --settings link.yaml
    """
    parsed = read_link_settings(settings)
    start_logs(log_format)
    async with _clients(parsed) as clients, _client(parsed.controllers, controllers=True) as controllers:
        check_armed()
        runner = LinkRunner(
            name,
            clients.source,
            clients.destination,
            controllers,
            parsed.shadow,
            bytes_per_second=parsed.bytes_per_second,
            tails=Store(parsed.tails) if parsed.tails is not None else None,
        )
        metrics, loop = LinkMetrics(runner), asyncio.get_running_loop()
        page = on_loop(loop, page_of(metrics))
        with metrics_at(parsed.metrics, page, not_ready=metrics.not_ready, loop=loop):
            announce(f"link {name} starts")
            await runner.run()
    announce(f"link {name} is active: clients may write to its topics")
    return Exit.FINE


@app.command
async def pause(name: Name, *, settings: Settings, options: Options = Options()) -> int:
    """Stop fetching. Mirrors stay closed for writes.

    Example:  penstock link pause east --settings link.yaml
    """
    return await _request(name, settings, Action.PAUSE, options)


@app.command
async def resume(name: Name, *, settings: Settings, options: Options = Options()) -> int:
    """Fetch again.

    Example:  penstock link resume east --settings link.yaml
    """
    return await _request(name, settings, Action.RESUME, options)


@app.command
async def promote(
    name: Name,
    *,
    settings: Settings,
    dry_run: Annotated[
        bool, Parameter(help="Only show lag, producers and groups, and what prevents it.", negative="")
    ] = False,
    yes: Yes = False,
    options: Options = Options(),
) -> int:
    """Close the source for writes, wait until the lag is 0, and open the mirrors for writes.

    Example:  penstock link promote east --settings link.yaml --dry-run
    """
    if dry_run:
        return await _show_readiness(name, settings, options)
    if not confirmed(f"This closes the source topics of {name} for writes, for good.", yes=yes):
        return Exit.FAILED
    return await _request(name, settings, Action.PROMOTE, options)


@app.command
async def failover(name: Name, *, settings: Settings, yes: Yes = False, options: Options = Options()) -> int:
    """Open the mirrors for writes with what they have. What was not mirrored stays on the source.

    Example:  penstock link failover east --settings link.yaml --yes
    """
    if not confirmed(
        f"This gives up what {name} has not mirrored. Stop the source's producers first.", yes=yes
    ):
        return Exit.FAILED
    return await _request(name, settings, Action.FAILOVER, options)


@app.command
async def reverse(name: Name, *, settings: Settings, yes: Yes = False, options: Options = Options()) -> int:
    """Reverse an active link: its old source becomes the mirror. `penstock link run` carries it out.

    In the settings file, `destination` is the old source, and `source` the active side. What only the old
    source has is saved to `tails` first; then the old source is truncated to what both have.

    Example:  penstock link reverse east --settings back.yaml --yes
    """
    parsed = read_link_settings(settings)
    if parsed.tails is None:
        raise TailStoreMissing(link=name)
    warning = f"This closes the topics of {name} on {parsed.destination.bootstrap} and truncates them."
    if not confirmed(warning, yes=yes):
        return Exit.FAILED
    async with _clients(parsed) as clients:
        row = await commands.reverse(clients.source, clients.destination, name, shadow_id=parsed.shadow_id)
    _show_state(row, options)
    report(f"recorded the link back; start it with `penstock link run {name} --settings {settings}`")
    return Exit.FINE


@app.command
async def verify(name: Name, *, settings: Settings, options: Options = Options()) -> int:
    """Compare the batches of both sides: offsets and CRCs; of compacted topics, the latest values.

    While it mirrors, the durability audit gets the result.

    Example:  penstock link verify east --settings link.yaml
    """
    async with _clients(read_link_settings(settings)) as clients:
        row = await commands.show(clients.destination, name)
        compared = [
            one
            for topic in row["topics"]
            for one in await compare(clients.source, clients.destination, topic)
        ]
        if row["state"] in (State.MIRRORING, State.PAUSED):
            await IntentLog(clients.destination).record(one.evidence(name) for one in compared)
    rows: list[dict[str, Any]] = [
        {
            "partition": str(one.partition),
            "start": one.start,
            "end": one.end,
            "same": one.same,
            "digest": one.mirror_digest[:16],
        }
        for one in compared
    ]
    show(rows, options.form, table_of(rows, _COMPARED, empty="nothing is mirrored yet"))
    differing = sum(not one.same for one in compared)
    report(f"{counted(differing, 'partition')} of {len(compared)} differ")
    return Exit.UNHEALTHY if differing else Exit.FINE


@app.command
async def delete(name: Name, *, settings: Settings, yes: Yes = False) -> int:
    """Forget a link that is active or never ran. Topics and their records stay.

    Example:  penstock link delete east --settings link.yaml --yes
    """
    if not confirmed(f"This forgets link {name} and its history.", yes=yes):
        return Exit.FAILED
    async with _clients(read_link_settings(settings)) as clients:
        await commands.delete(clients.destination, name)
    report("deleted")
    return Exit.FINE


async def _show_readiness(name: str, settings: Path, options: Options) -> int:
    async with _clients(read_link_settings(settings)) as clients:
        row = await commands.show(clients.destination, name)
        ready = await readiness(clients.source, clients.destination, row)
    topics, groups = [asdict(one) for one in ready.topics], [asdict(one) for one in ready.groups]
    for one in topics:
        last = one["last_record_seconds"]
        one["last_record"] = "none" if last is None else f"{last:.0f} s ago"
    view = Group(
        table_of(topics, _READY_TOPICS, empty="nothing is mirrored yet"),
        "",
        table_of(groups, _READY_GROUPS, empty="no groups"),
        *(f"prevents it: {one}" for one in ready.blockers),
    )
    show(asdict(ready), options.form, view)
    return Exit.UNHEALTHY if ready.blockers else Exit.FINE


async def _request(name: str, settings: Path, action: Action, options: Options) -> int:
    async with _clients(read_link_settings(settings)) as clients:
        row = await commands.request(clients.destination, name, action)
    _show_state(row, options)
    return Exit.FINE


def _show_state(row: dict[str, Any], options: Options) -> None:
    show(row, options.form, _state_table(row))


def _state_table(row: dict[str, Any]) -> RenderableType:
    return table_of([row | {"topic_count": len(row["topics"])}], _LISTED)


def _client(access: ClusterAccess, *, controllers: bool = False) -> Client:
    return Client(access.bootstrap, access.security, controllers=controllers)


@asynccontextmanager
async def _clients(settings: LinkSettings) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(_client(settings.source))
        destination = await stack.enter_async_context(_client(settings.destination))
        yield Clients(source, destination)
