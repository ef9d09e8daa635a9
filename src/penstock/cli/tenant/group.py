"""`penstock group`: a logical cluster's consumer groups, as its tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.console import Group

from penstock.cli.flags import Cluster, Yes, confirmed, past_ms
from penstock.cli.output import Format, console, report, show, table_of
from penstock.cli.remote import tenant_client
from penstock.cli.settings import ProfileOptions
from penstock.kafka.admin import group_offsets, groups
from penstock.kafka.admin.groups import GroupType
from penstock.kafka.admin.offsets import OffsetSpec, list_offsets
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition, wait_for_leaders
from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.control import EntityMissing
from penstock.model.errors.settings import UsageInvalid
from penstock.model.plural import counted

if TYPE_CHECKING:
    from penstock.kafka.client import Client

app = App(name="group", help="A logical cluster's consumer groups.")

Name = Annotated[str, Parameter(help="Id of the group.")]

_LISTED = {"ID": "id", "STATE": "state", "TYPE": "type"}
_MEMBERS = {"MEMBER": "id", "CLIENT": "client", "HOST": "host", "PARTITIONS": "partitions"}
_LAG = {"TOPIC": "topic", "PARTITION": "partition", "COMMITTED": "committed", "END": "end", "LAG": "lag"}
_RESET = {"TOPIC": "topic", "PARTITION": "partition", "COMMITTED": "before", "NEW": "after"}


@app.command(name="list")
async def list_(*, cluster: Cluster = None, options: ProfileOptions = ProfileOptions()) -> int:
    """List the consumer groups and their states.

    Example:  penstock group list --cluster shop
    """
    async with tenant_client(options, cluster) as client:
        listed = await groups.list_all(client)
    rows = [{"id": one.id, "state": one.state, "type": str(one.type)} for _, one in sorted(listed.items())]
    show(rows, options.form, table_of(rows, _LISTED, empty="no groups"))
    return Exit.FINE


@app.command
async def lag(name: Name, *, cluster: Cluster = None, options: ProfileOptions = ProfileOptions()) -> int:
    """Show the lag of a group, by partition.

    Example:  penstock group lag billing --cluster shop
    """
    async with tenant_client(options, cluster) as client:
        rows = await _lag(client, name)
    show(rows, options.form, table_of(rows, _LAG, empty="no committed offsets"))
    return Exit.FINE


@app.command
async def describe(name: Name, *, cluster: Cluster = None, options: ProfileOptions = ProfileOptions()) -> int:
    """Describe a group: its state, its members with their partitions, and its lag.

    Example:  penstock group describe billing --cluster shop
    """
    async with tenant_client(options, cluster) as client:
        group = await _group(client, name)
        rows = await _lag(client, name)
    members = [
        {
            "id": member.id,
            "client": member.client_id,
            "host": member.host,
            "partitions": [str(place) for place in sorted(member.assignment)],
        }
        for member in group.members
    ]
    data = {"id": name, "state": group.state, "type": str(group.type), "members": members, "lag": rows}
    shown = [member | {"partitions": ",".join(member["partitions"])} for member in members]
    view = Group(
        table_of([data], _LISTED),
        "",
        table_of(shown, _MEMBERS, empty="no members"),
        "",
        table_of(rows, _LAG, empty="no committed offsets"),
    )
    show(data, options.form, view)
    return Exit.FINE


@app.command
async def reset(
    name: Name,
    *,
    to: Annotated[str, Parameter(help="earliest, latest, an offset, or a time: 2026-01-31T12:00Z, 2h.")],
    topic: Annotated[
        list[str] | None,
        Parameter(help="Topic; repeatable.", show_default="those with commits", negative=""),
    ] = None,
    dry_run: Annotated[bool, Parameter(help="Only show the new offsets.", negative="")] = False,
    yes: Yes = False,
    cluster: Cluster = None,
    options: ProfileOptions = ProfileOptions(),
) -> int:
    """Set the committed offsets of a group without members. A time such as 2h is that long ago.

    Example:  penstock group reset billing --to 2h --dry-run --cluster shop
    """
    async with tenant_client(options, cluster) as client:
        before = await group_offsets.committed(client, name)
        places = sorted(before)
        if topic:
            places = [place for each in topic for place in await wait_for_leaders(client, each)]
        if not places:
            raise EntityMissing(kind="group with committed offsets", id=name)
        after = await _targets(client, places, to)
        rows = [
            {
                "topic": place.topic,
                "partition": place.partition,
                "before": before[place].offset if place in before else None,
                "after": after[place],
            }
            for place in places
        ]
        if dry_run:
            show(rows, options.form, table_of(rows, _RESET))
            report("nothing was changed: this is what a reset would set")
            return Exit.FINE
        if options.form is Format.TABLE:
            console(stderr=not yes).print(table_of(rows, _RESET))
        if not confirmed(f"This sets these offsets of group {name}.", yes=yes):
            return Exit.FAILED
        await _check_empty(client, name)
        commits = {place: group_offsets.CommittedOffset(after[place]) for place in places}
        results_or_raise(await group_offsets.commit(client, name, commits))
    if options.form is not Format.TABLE:
        show(rows, options.form, "")
    report(f"reset {counted(len(rows), 'partition')}")
    return Exit.FINE


@app.command
async def delete(
    name: Name, *, yes: Yes = False, cluster: Cluster = None, options: ProfileOptions = ProfileOptions()
) -> int:
    """Delete a group without members, with its committed offsets.

    Example:  penstock group delete billing --yes --cluster shop
    """
    async with tenant_client(options, cluster) as client:
        await _check_empty(client, name)
        if not confirmed(f"This deletes group {name} and its committed offsets.", yes=yes):
            return Exit.FAILED
        error = (await groups.delete(client, [name]))[name]
        if error is not None:
            raise error
    report("deleted")
    return Exit.FINE


async def _group(client: Client, name: str) -> groups.Group:
    listing = (await groups.list_all(client)).get(name)
    if listing is None:
        raise EntityMissing(kind="group", id=name)
    kind = GroupType.CLASSIC if listing.type is GroupType.UNKNOWN else listing.type
    return results_or_raise(await groups.describe(client, [name], type_=kind))[name]


async def _check_empty(client: Client, name: str) -> None:
    """A group that does not exist yet has no members, either."""
    if name not in await groups.list_all(client):
        return
    if members := (await _group(client, name)).members:
        raise UsageInvalid(
            reason=f"group {name} has {counted(len(members), 'member')}",
            way_out="Stop its consumers first: they would commit over it.",
        )


async def _targets(client: Client, places: list[TopicPartition], to: str) -> dict[TopicPartition, int]:
    """The new offset of each partition, within its log."""

    async def listed(spec: int) -> dict[TopicPartition, int]:
        results = results_or_raise(await list_offsets(client, dict.fromkeys(places, spec)))
        return {place: result.offset for place, result in results.items()}

    starts, ends = await listed(OffsetSpec.EARLIEST), await listed(OffsetSpec.LATEST)
    if to == "earliest":
        return starts
    if to == "latest":
        return ends
    if to.isdigit():
        return {place: min(max(int(to), starts[place]), ends[place]) for place in places}
    by_time = await listed(past_ms(to, "--to"))
    return {place: offset if offset >= 0 else ends[place] for place, offset in by_time.items()}


async def _lag(client: Client, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for partition, one in sorted((await group_offsets.lag(client, name)).items()):
        row: dict[str, Any] = {"topic": partition.topic, "partition": partition.partition}
        if isinstance(one, PenstockError):
            row["error"] = one.message
        else:
            row |= {"committed": one.committed, "end": one.end, "lag": one.records}
        rows.append(row)
    return rows
