"""`penstock topic`: a logical cluster's topics, as its tenant."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter
from rich.console import Group

from penstock.cli.flags import Cluster, Yes, confirmed, duration_ms, key_values
from penstock.cli.output import report, show, table_of
from penstock.cli.remote import tenant_client
from penstock.cli.settings import ProfileOptions
from penstock.gateway.tenancy.tenant_configs import MINUTE, RETENTION_BYTES, tiering_refusal
from penstock.kafka.admin import configs, topics
from penstock.kafka.admin.offsets import DELETE_TO_HIGH_WATERMARK, OffsetSpec, delete_before, list_offsets
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.settings import UsageInvalid
from penstock.model.errors.tier import RetentionBytesTiered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kafka.client import Client

APPLY_POLLS_MAX: Final = 50
APPLY_POLL_SECONDS: Final = 0.1
SEGMENT_MS_MIN: Final = 10 * MINUTE  # as the gateway allows tenants

app = App(name="topic", help="A logical cluster's topics.")

Name = Annotated[str, Parameter(help="Name of the topic.")]

_LISTED = {"NAME": "name", "PARTITIONS": "partitions", "REPLICAS": "replicas"}
_LISTED |= {"UNDER-REPLICATED": "under_replicated"}
_PARTITIONS = {
    "PARTITION": "partition", "LEADER": "leader", "REPLICAS": "replicas", "IN SYNC": "isr",
    "START": "start", "END": "end",
}  # fmt: skip
_CONFIG = {"SETTING": "name", "VALUE": "value", "ORIGIN": "origin"}


@app.command
async def create(
    name: Name,
    *,
    cluster: Cluster = None,
    partitions: Annotated[int, Parameter(name=["--partitions", "-p"], help="Number of partitions.")] = 3,
    config: Annotated[
        list[str] | None, Parameter(help="Topic setting, key=value; repeatable.", negative="")
    ] = None,
    tiered: Annotated[bool, Parameter(help="Move old segments to the object store.", negative="")] = False,
    local_retention: Annotated[
        str | None, Parameter(help="How long the brokers' disks keep a copy, such as 1h; needs --tiered.")
    ] = None,
    options: ProfileOptions = ProfileOptions(),
) -> int:
    """Create a topic.

    Example:  penstock topic create orders --partitions 6 --tiered --local-retention 1h --cluster shop
    """
    settings: dict[str, str | None] = {
        **_tier_settings(tiered=tiered, local_retention=local_retention),
        **_settings(config, "--config"),
    }
    _check_tiering(name, settings)
    async with tenant_client(options, cluster) as client:
        made = (await topics.create(client, [topics.NewTopic(name, partitions, configs=settings)]))[name]
        if isinstance(made, PenstockError):
            raise made
    data = {"name": name, "partitions": partitions, "id": str(made)}
    show(data, options.form, table_of([data], {"NAME": "name", "PARTITIONS": "partitions", "ID": "id"}))
    return Exit.FINE


@app.command(name="list")
async def list_(*, cluster: Cluster = None, options: ProfileOptions = ProfileOptions()) -> int:
    """List the topics, with their partitions and replicas.

    Example:  penstock topic list --cluster shop
    """
    async with tenant_client(options, cluster) as client:
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
    show(rows, options.form, table_of(rows, _LISTED, empty="no topics"))
    return Exit.FINE


@app.command
async def describe(name: Name, *, cluster: Cluster = None, options: ProfileOptions = ProfileOptions()) -> int:
    """Describe a topic: its partitions with their offsets, and the settings that were changed.

    Example:  penstock topic describe orders --cluster shop
    """
    async with tenant_client(options, cluster) as client:
        described = results_or_raise(await topics.describe(client, [name]))[name]
        places = [TopicPartition(name, p.index) for p in described.partitions]
        starts = await list_offsets(client, dict.fromkeys(places, OffsetSpec.EARLIEST))
        ends = await list_offsets(client, dict.fromkeys(places, OffsetSpec.LATEST))
        settings = [row for row in await _config(client, name) if row["origin"] == "topic"]
    rows: list[dict[str, Any]] = []
    for partition, place in zip(described.partitions, places):
        start, end = starts[place], ends[place]
        rows.append(
            {
                "partition": partition.index,
                "leader": partition.leader,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "start": None if isinstance(start, PenstockError) else start.offset,
                "end": None if isinstance(end, PenstockError) else end.offset,
            }
        )
    data = {"name": name, "id": str(described.id), "partitions": rows, "config": settings}
    shown = [row | {key: ",".join(map(str, row[key])) for key in ("replicas", "isr")} for row in rows]
    changed = table_of(settings, _CONFIG, empty="only default settings")
    show(data, options.form, Group(table_of(shown, _PARTITIONS), "", changed))
    return Exit.FINE


@app.command
async def config(
    name: Name,
    *,
    set_: Annotated[
        list[str] | None, Parameter(name="--set", help="Set key=value; repeatable.", negative="")
    ] = None,
    unset: Annotated[
        list[str] | None, Parameter(help="Restore the default of a key; repeatable.", negative="")
    ] = None,
    cluster: Cluster = None,
    options: ProfileOptions = ProfileOptions(),
) -> int:
    """Show every setting of a topic, after changing those that are given.

    Example:  penstock topic config orders --set retention.ms=3600000 --cluster shop
    """
    changes: dict[str, str | None] = {**_settings(set_, "--set"), **dict.fromkeys(unset or ())}
    async with tenant_client(options, cluster) as client:
        if changes:
            present = {row["name"]: row["value"] for row in await _config(client, name)}
            _check_tiering(name, {**present, **changes})
            resource = configs.topic(name)
            error = (await configs.alter(client, {resource: configs.changes(changes)}))[resource]
            if error is not None:
                raise error
        rows = await _config(client, name)
        for _ in range(APPLY_POLLS_MAX):  # the broker that responds learns of a change a moment later
            topic_values = {row["name"]: row["value"] for row in rows if row["origin"] == "topic"}
            if all(topic_values.get(key) == value for key, value in changes.items()):
                break
            await asyncio.sleep(APPLY_POLL_SECONDS)
            rows = await _config(client, name)
    show(rows, options.form, table_of(rows, _CONFIG))
    return Exit.FINE


@app.command
async def purge(
    name: Name,
    *,
    partition: Annotated[int | None, Parameter(help="Only this partition.")] = None,
    before: Annotated[
        int | None, Parameter(help="Only records before this offset; needs --partition.")
    ] = None,
    yes: Yes = False,
    cluster: Cluster = None,
    options: ProfileOptions = ProfileOptions(),
) -> int:
    """Delete the records of a topic and keep the topic, its settings and its offsets.

    Example:  penstock topic purge orders --yes --cluster shop
    """
    if before is not None and (partition is None or before < 0):
        raise UsageInvalid(
            reason="--before needs the partition that the offset belongs to",
            way_out="Give --partition and an offset of 0 or more.",
        )
    async with tenant_client(options, cluster) as client:
        described = results_or_raise(await topics.describe(client, [name]))[name]
        known = [p.index for p in described.partitions]
        if partition is not None and partition not in known:
            raise UsageInvalid(
                reason=f"topic {name} has no partition {partition}",
                way_out=f"Its partitions are 0 to {len(known) - 1}.",
            )
        chosen = known if partition is None else [partition]
        where = f"partition {partition} of topic {name}" if partition is not None else f"topic {name}"
        what = "every record" if before is None else f"the records before offset {before}"
        if not confirmed(f"This deletes {what} of {where}.", yes=yes):
            return Exit.FAILED
        limit = DELETE_TO_HIGH_WATERMARK if before is None else before
        starts = results_or_raise(
            await delete_before(client, {TopicPartition(name, one): limit for one in chosen})
        )
    rows = [{"partition": place.partition, "start": start} for place, start in sorted(starts.items())]
    show(rows, options.form, table_of(rows, {"PARTITION": "partition", "STARTS AT": "start"}))
    return Exit.FINE


@app.command
async def delete(
    name: Name, *, yes: Yes = False, cluster: Cluster = None, options: ProfileOptions = ProfileOptions()
) -> int:
    """Delete a topic and its data.

    Example:  penstock topic delete orders --yes --cluster shop
    """
    async with tenant_client(options, cluster) as client:
        results_or_raise(await topics.describe(client, [name]))
        if not confirmed(f"This deletes topic {name} and its data.", yes=yes):
            return Exit.FAILED
        for error in (await topics.delete(client, [name])).values():
            if error is not None:
                raise error
    report("deleted")
    return Exit.FINE


def _tier_settings(*, tiered: bool, local_retention: str | None) -> dict[str, str]:
    """A segment is moved when it is closed, so a segment lasts as long as the copy on disk."""
    if not tiered and local_retention is not None:
        raise UsageInvalid(reason="--local-retention needs --tiered", way_out="Give --tiered as well.")
    settings = {"remote.storage.enable": "true"} if tiered else {}
    if local_retention is not None:
        milliseconds = duration_ms(local_retention, "--local-retention")
        settings["local.retention.ms"] = str(milliseconds)
        settings["segment.ms"] = str(max(milliseconds, SEGMENT_MS_MIN))
    return settings


def _check_tiering(name: str, settings: Mapping[str, str | None]) -> None:
    if tiering_refusal(settings) is not None:
        raise RetentionBytesTiered(topic=name, value=settings[RETENTION_BYTES])


async def _config(client: Client, name: str) -> list[dict[str, Any]]:
    resource = configs.topic(name)
    entries = results_or_raise(await configs.describe(client, [resource]))[resource]
    return [
        {"name": entry.name, "value": entry.value, "origin": entry.source.name.lower().replace("_", " ")}
        for entry in sorted(entries.values(), key=lambda entry: entry.name)
    ]


def _settings(pairs: list[str] | None, flag: str) -> dict[str, str]:
    return key_values(pairs or (), flag, where="penstock topic")
