"""`penstock audit`: the durability audit: run it, and read its findings."""

from __future__ import annotations

import asyncio
import getpass
import os
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from penstock.audit import reading, topics
from penstock.audit.explaining import explained
from penstock.audit.finding_reader import FindingReader
from penstock.audit.live import is_running
from penstock.audit.process import run_auditors
from penstock.audit.rules.catalogue import RULES, selected
from penstock.audit.rules.state import SubjectState
from penstock.audit.service import SNAPSHOT_SECONDS, SWEEP_SECONDS, Auditor
from penstock.audit.settings import AuditSettings, read_audit_settings
from penstock.audit.stores import StoreCollector, Stores
from penstock.cli.operator.audit_stores import stores_by_cluster
from penstock.cli.output import show, table_of
from penstock.cli.settings import LogLines, Metrics, Options, start_logs
from penstock.control.physical.local import fleet_clusters
from penstock.kafka.client import Client
from penstock.log_lines import announce
from penstock.model.durability import PARTITION, FindingState
from penstock.model.errors import Exit
from penstock.model.errors.audit import SubjectUnknown
from penstock.model.errors.settings import UsageInvalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from penstock.audit.explaining import Explained
    from penstock.model.durability import FindingRecord

Config = Annotated[
    Path | None, Parameter(help="Settings file, for clusters that run elsewhere.", negative="")
]
Cluster = Annotated[str | None, Parameter(help="Which cluster.", show_default="the only one", negative="")]
_FINDINGS = {
    "ID": "id", "SEVERITY": "severity", "RULE": "rule", "SUBJECT": "shown", "FIRST": "first",
    "LAST": "last", "STATE": "state", "LAST SEEN": "last_seen", "DETAIL": "detail",
}  # fmt: skip
_RULES = {"RULE": "rule", "SEVERITY": "severity", "INVARIANT": "invariant", "FED BY": "fed_by"}
_STATUS = {"CLUSTER": "cluster", "SUBJECTS": "subjects", "OPEN": "open", "AGE": "age", "UNSEEN": "unseen",
           "LATE": "late", "DROPPED": "dropped"}  # fmt: skip
_EXPLAIN = {"TIME": "time", "SOURCE": "source", "EVENT": "event", "FACTS": "facts", "REASON": "reason"}


def _clusters(
    config: Path | None, options: Options
) -> dict[str, tuple[Client, Callable[[], Awaitable[Client]]]]:
    """By name: a client of the brokers, and a function that connects to the controllers."""
    result: dict[str, tuple[Client, Any]] = {}
    if config is not None:
        for each in read_audit_settings(config, os.environ).clusters:

            async def connect(each: Any = each) -> Client:
                return Client(each.controllers, each.controller_security, controllers=True)

            result[each.name] = (Client(each.bootstrap, each.security), connect)
        return result
    for provided in fleet_clusters(options.layout):
        client = provided.client()

        async def connect_local(provided: Any = provided, client: Client = client) -> Client:
            connected: Client = await provided.controllers_client(client)
            return connected

        result[provided.id] = (client, connect_local)
    return result


@asynccontextmanager
async def one_cluster(
    config: Path | None, cluster: str | None, options: Options
) -> AsyncIterator[tuple[str, Client]]:
    clusters = _clusters(config, options)
    name = cluster or next(iter(clusters))
    if name not in clusters or (cluster is None and len(clusters) > 1):
        way_out = f"Give --cluster, one of {', '.join(clusters)}."
        raise UsageInvalid(reason=f"cluster {cluster!r} is not audited here", way_out=way_out)
    client = clusters[name][0]
    try:
        yield name, client
    finally:
        for each, _ in clusters.values():
            await each.close()


def run(
    *,
    config: Config = None,
    sweep: Annotated[
        float | None, Parameter(help="Seconds between sweeps.", show_default=f"{SWEEP_SECONDS:g}")
    ] = None,
    metrics: Metrics = None,
    log_format: LogLines = None,
    until_stdin_ends: Annotated[bool, Parameter(help="Stop when standard input ends.", negative="")] = False,
    options: Options = Options(),
) -> int:
    """Run the durability audit, for this home or from a settings file. Of several, one is active.

    Example:  penstock audit run --config audit.yaml
    """
    flags: dict[str, Any] = {"sweep_seconds": sweep, "metrics": metrics}
    given = {key: value for key, value in flags.items() if value is not None}
    settings = (
        AuditSettings((), **given) if config is None else read_audit_settings(config, os.environ, given)
    )
    start_logs(log_format)
    stores = stores_by_cluster(config, options)

    async def serve() -> None:
        auditors = {
            name: (
                partial(
                    Auditor,
                    name,
                    client,
                    connect,
                    sweep_seconds=settings.sweep_seconds,
                    snapshot_seconds=settings.snapshot_seconds if config else SNAPSHOT_SECONDS,
                    webhook=settings.webhook,
                    stores=StoreCollector(stores.get(name, Stores()), settings.stores_seconds),
                ),
                client,
            )
            for name, (client, connect) in _clusters(config, options).items()
        }
        await run_auditors(
            auditors, metrics=settings.metrics, until_stdin_ends=until_stdin_ends, report=announce
        )

    asyncio.run(serve())
    return Exit.FINE


def findings(
    *,
    rule: Annotated[
        list[str] | None, Parameter(help="Only of this rule; may be repeated.", negative="")
    ] = None,
    every: Annotated[
        bool, Parameter(name="--all", help="Also acknowledged and resolved ones.", negative="")
    ] = False,
    config: Config = None,
    cluster: Cluster = None,
    options: Options = Options(),
) -> int:
    """List the findings of the durability audit. Exits with 5 if a critical one is open.

    Example:  penstock audit findings --rule log-start-unexplained
    """
    names = {each.name for each in selected(rule)} if rule else {each.name for each in RULES}

    async def work() -> list[FindingRecord]:
        async with one_cluster(config, cluster, options) as (_, client):
            return (await FindingReader(client).read()).current()

    shown = [each for each in asyncio.run(work()) if each.rule in names and (every or each.is_open)]
    rows = [_row(each) for each in shown]
    show(rows, options.form, table_of(rows, _FINDINGS, empty="no findings"))
    urgent = any(each.severity == "critical" and each.is_open for each in shown)
    return Exit.UNHEALTHY if urgent else Exit.FINE


def show_(
    finding: Annotated[str, Parameter(help="Its id, or the beginning of it.")],
    *,
    config: Config = None,
    cluster: Cluster = None,
    options: Options = Options(),
) -> int:
    """Show one finding with its evidence and what to do.

    Example:  penstock audit show 3f9a
    """

    async def work() -> FindingRecord:
        async with one_cluster(config, cluster, options) as (_, client):
            return await FindingReader(client).finding(finding)

    record = asyncio.run(work())
    action = next(each.action for each in RULES if each.name == record.rule)
    row = _row(record) | {"evidence": dict(record.evidence), "action": action}
    lines = [{"key": key, "value": value} for key, value in row.items()]
    show(row, options.form, table_of(lines, {"": "key", "VALUE": "value"}))
    return Exit.FINE


def acknowledge(
    finding: Annotated[str, Parameter(help="Its id, or the beginning of it.")],
    *,
    resolved: Annotated[
        bool, Parameter(help="It is over: open it again if it is observed again.", negative="")
    ] = False,
    note: Annotated[str, Parameter(help="Why it needs no further attention.")] = "",
    config: Config = None,
    cluster: Cluster = None,
    options: Options = Options(),
) -> int:
    """Acknowledge or resolve a finding. It is open again if it becomes more severe.

    Example:  penstock audit acknowledge 3f9a --resolved --note "restored from backup"
    """
    state = FindingState.RESOLVED if resolved else FindingState.ACKNOWLEDGED

    async def work() -> FindingRecord:
        async with one_cluster(config, cluster, options) as (_, client):
            return await FindingReader(client).handle(finding, state, getpass.getuser(), note)

    row = _row(asyncio.run(work()))
    show(row, options.form, table_of([row], _FINDINGS))
    return Exit.FINE


def status(*, config: Config = None, cluster: Cluster = None, options: Options = Options()) -> int:
    """Show whether the audit runs: age of its last heartbeat, subjects, open findings. Exits with 5 if not.

    Example:  penstock audit status
    """

    snapshots = (
        SNAPSHOT_SECONDS if config is None else read_audit_settings(config, os.environ).snapshot_seconds
    )
    stored_ms = int(snapshots * 1000)

    async def work() -> dict[str, Any]:
        async with one_cluster(config, cluster, options) as (name, client):
            stored = await topics.read_compacted(client, topics.STATE)
            states = [SubjectState.from_bytes(value) for key, value in stored.items() if b"/" in key]
            beats = [each for each in states if each.heartbeat is not None]
            last_ms = max((each.heartbeat_ms for each in beats), default=0)
            unseen = sum(each.heartbeat.unseen_count for each in beats if each.heartbeat is not None)
            open_ = [each for each in (await FindingReader(client).read()).current() if each.is_open]
            age = (datetime.now(UTC) - datetime.fromtimestamp(last_ms / 1000, UTC)).total_seconds()
            return {
                "runs": is_running(states, int(datetime.now(UTC).timestamp() * 1000), stored_ms),
                "cluster": name,
                "subjects": len(states),
                "open": len(open_),
                "age": f"{age:.0f} s" if last_ms else "never",
                "unseen": unseen,
                "late": sum(each.late for each in states),
                "dropped": sum(each.dropped for each in states),
            }

    row = asyncio.run(work())
    show(row, options.form, table_of([row], _STATUS))
    return Exit.FINE if row["runs"] else Exit.UNHEALTHY


def rules(*, options: Options = Options()) -> int:
    """List the rules of the durability audit, and what feeds each.

    Example:  penstock audit rules
    """
    rows = [
        {
            "rule": each.name,
            "severity": str(each.severity),
            "invariant": each.invariant,
            "evidence": [str(what) for what in each.evidence],
            "missing": [str(what) for what in each.missing],
            "fed_by": each.fed_by,
            "action": each.action,
        }
        for each in RULES
    ]
    show(rows, options.form, table_of(rows, _RULES))
    return Exit.FINE


def explain(
    partition: Annotated[str, Parameter(help="A topic and a partition, such as orders/0.")],
    *,
    config: Config = None,
    cluster: Cluster = None,
    options: Options = Options(),
) -> int:
    """Show the history of a partition, and why each change was legal.

    Example:  penstock audit explain orders/0
    """
    topic, slash, number = partition.rpartition("/")
    if not slash or not number.isdecimal():
        raise SubjectUnknown(subject=partition)

    async def work() -> list[dict[str, Any]]:
        async with one_cluster(config, cluster, options) as (name, client):
            subject = await reading.subject_of(client, topic, int(number))
            history = await reading.read_history(client, name, subject)
            return [_explained_row(each) for each in explained(history)]

    rows = asyncio.run(work())
    show(rows, options.form, table_of(rows, _EXPLAIN))
    return Exit.FINE


def _explained_row(each: Explained) -> dict[str, Any]:
    findings = (f"finding {one.id[:8]} ({one.rule}): {one.detail}" for one in each.findings)
    return {
        "time": _time(each.event.time_ms),
        "source": each.event.source,
        "event": str(each.event.what),
        "facts": " ".join(f"{key}={value}" for key, value in each.event.facts.items()),
        "reason": "; ".join((*each.reasons, *findings)),
    }


def _row(record: FindingRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "severity": str(record.severity),
        "rule": record.rule,
        "cluster": record.cluster,
        "subject": record.subject,
        "topic": record.topic_name,
        "shown": _shown(record),
        "first": record.first,
        "last": record.last,
        "state": str(record.state),
        "first_seen": _time(record.first_seen_ms),
        "last_seen": _time(record.last_seen_ms),
        "detail": record.detail,
        "actor": record.actor,
        "note": record.note,
    }


def _shown(record: FindingRecord) -> str:
    """A partition by the name of its topic, as commands take it."""
    if not (record.topic_name and record.subject.startswith(PARTITION)):
        return record.subject
    return f"{record.topic_name}/{record.subject.rpartition('/')[2]}"


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
