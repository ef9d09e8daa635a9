"""`penstock tier`: tiered storage of the clusters underneath."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Group

from penstock.cli.operator.tier_sweep import sweep
from penstock.cli.output import progress, report, show, table_of
from penstock.cli.settings import Options
from penstock.fleet.adopted import adoption
from penstock.fleet.jars import cache_directory
from penstock.fleet.kafka_properties import as_text
from penstock.fleet.layout import make_directory
from penstock.fleet.local_fleet import load_fleet
from penstock.fleet.readiness import security_of
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.spec import Listener, TierSpec, TierStore
from penstock.fleet.tier_properties import adopted_properties
from penstock.kafka.client import Client
from penstock.model.errors import Exit
from penstock.model.errors.settings import UsageInvalid
from penstock.tier.s3_jars import SDK_VERSION, fetch_s3
from penstock.tier.status import broker_counters, tiered_partitions

app = App(name="tier", help="Tiered storage: old segments in an object store.")
app.command(sweep)

_PARTITIONS = {
    "TOPIC": "topic", "PARTITION": "partition", "START": "start", "ON DISK FROM": "local_start",
    "IN STORE TO": "tiered_to", "END": "end",
}  # fmt: skip
_BROKERS = {
    "BROKER": "broker", "COPIED": "copies", "BYTES": "copied_bytes", "FAILED": "copy_failures",
    "BLOCKED": "copies_blocked", "READS": "gets", "READ FAILURES": "get_failures", "ERROR": "error",
}  # fmt: skip


@app.command
async def status(*, options: Options = Options()) -> int:
    """Show how far each tiered partition is in the store, and what each broker copied and read.

    Example:  penstock tier status
    """
    fleet = load_fleet(options.layout)
    data = []
    tables = []
    blocked = False
    for cluster in fleet.clusters:
        brokers = [node for node in cluster.nodes if node.spec.is_broker]
        async with Client(cluster.cluster.spec.bootstrap(), security_of(brokers[0])) as client:
            partitions = [asdict(row) for row in await tiered_partitions(client)]
        agents = [(b.name, "127.0.0.1", b.spec.ports[Listener.METRICS]) for b in brokers]
        counters = await broker_counters(agents)
        blocked |= any(row.get("copies_blocked") for row in counters)
        data.append({"cluster": cluster.name, "partitions": partitions, "brokers": counters})
        tables += [table_of(partitions, _PARTITIONS, empty=f"{cluster.name}: no tiered topics"), ""]
        tables.append(table_of(counters, _BROKERS))
    show(data, options.form, Group(*tables))
    if blocked:
        report("A segment is damaged on a broker and not copied: its log names it (`penstock logs`).")
    return Exit.UNHEALTHY if blocked else Exit.FINE


@app.command
async def fetch(
    *,
    force: Annotated[bool, Parameter(help="Fetch again what is already cached.", negative="")] = False,
    options: Options = Options(),
) -> int:
    """Resolve the jars of the S3 store with Maven, verify them, and compile the store.

    Example:  penstock tier fetch
    """
    runtime = await obtain_runtime(progress)
    with progress(f"fetching Amazon's SDK {SDK_VERSION} with Maven, once"):
        jars = fetch_s3(cache_directory(), runtime, force=force)
    data = {"sdk": SDK_VERSION, "jars": len(jars), "directory": str(jars[0].parent)}
    show(data, options.form, table_of([data], {"SDK": "sdk", "JARS": "jars", "DIRECTORY": "directory"}))
    return Exit.FINE


@app.command
async def jar(
    cluster: Annotated[str, Parameter(help="An adopted cluster.")],
    *,
    to: Annotated[Path, Parameter(help="Directory for the jars and properties.")],
    directory: Annotated[
        str | None, Parameter(help="File store: a directory that all brokers share.")
    ] = None,
    bucket: Annotated[str | None, Parameter(help="S3 store: the bucket.")] = None,
    region: Annotated[str | None, Parameter(help="Its region.")] = None,
    endpoint: Annotated[str | None, Parameter(help="An S3 server other than Amazon's.")] = None,
    listener: Annotated[str, Parameter(help="The brokers' listener for tier metadata.")] = "INTERNAL",
    options: Options = Options(),
) -> int:
    """Write the plugin and the properties that give an adopted cluster tiered storage.

    Example:  penstock tier jar east --to tier-east --bucket history --region eu-west-1
    """
    if (directory is None) == (bucket is None) or (bucket is not None and region is None):
        raise UsageInvalid(
            reason="expected one store", way_out="Give --directory, or --bucket with --region."
        )
    adopted = adoption.load_adopted(options.layout, cluster)
    runtime = await obtain_runtime(progress)
    if bucket is None:
        tier = TierSpec(TierStore.FILE, directory=directory or "")
        jars = [runtime.jars.plugin] if runtime.jars.plugin else []
    else:
        tier = TierSpec(TierStore.S3, bucket=bucket, region=region or "", endpoint=endpoint or "")
        with progress(f"fetching Amazon's SDK {SDK_VERSION} with Maven, once"):
            jars = fetch_s3(cache_directory(), runtime)
    make_directory(to)
    for path in jars:
        shutil.copy(path, to)
    properties = adopted_properties(tier, adopted.kafka_id, adopted.brokers, str(to.absolute()), listener)
    for role, values in properties.items():
        (to / f"{role}.properties").write_text(as_text(values))
    report(f"{len(jars)} jars, broker.properties and controller.properties are in {to}")
    return Exit.FINE
