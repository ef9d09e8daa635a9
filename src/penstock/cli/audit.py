"""`penstock audit`: what operators changed, from the audit topic of the home cluster."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from penstock.cli.flags import past_ms
from penstock.cli.output import Format, show, table_of
from penstock.cli.settings import Options
from penstock.control.physical.local import fleet_clusters
from penstock.fleet.local_fleet import load_fleet
from penstock.kafka.admin.offsets import list_offsets
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.partition_log import bounds, read
from penstock.model.errors import Exit
from penstock.model.errors.fleet import NotRunning
from penstock.model.events import AuditEvent
from penstock.model.key_names import AUDIT_TOPIC

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.kafka.client import Client

app = App(name="audit", help="Audit events: what operators changed, and when.")

POLL_MS = 250
AUDIT = TopicPartition(AUDIT_TOPIC, 0)
_COLUMNS = {
    "TIME": "time", "ACTOR": "actor", "OPERATION": "operation", "SUBJECT": "subject", "CLUSTER": "tenant",
    "OUTCOME": "outcome",
}  # fmt: skip


@app.command
async def tail(
    *,
    lines: Annotated[int, Parameter(name=["--lines", "-n"], help="Number of events from the end.")] = 20,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], help="Print new events as they happen.", negative="")
    ] = False,
    options: Options = Options(),
) -> int:
    """Print the latest audit events of the local platform.

    Example:  penstock audit tail --follow
    """
    async with _home_client(options) as client:
        _, end = await bounds(client, AUDIT)
        rows = [row async for row in _events(client, 0, end, lambda _: True)]
        _print(rows[-lines:] if lines > 0 else [], options.form)
        while follow:
            chunk = await read(client, AUDIT, end, wait_ms=POLL_MS)
            end = chunk.position
            if new := [_row(AuditEvent.from_bytes(record.value or b"")) for record in chunk.records]:
                _print(new, options.form)
    return Exit.FINE


@app.command
async def search(
    *,
    actor: Annotated[str, Parameter(help="Only events of this actor.")] = "",
    operation: Annotated[str, Parameter(help="Only operations that start so, such as cluster.")] = "",
    subject: Annotated[str, Parameter(help="Only events about this id.")] = "",
    cluster: Annotated[
        str, Parameter(name=["--cluster", "-c"], help="Only of this logical cluster id.")
    ] = "",
    since: Annotated[str | None, Parameter(help="From a time: 2026-01-31T12:00Z, or 2h ago.")] = None,
    options: Options = Options(),
) -> int:
    """Search the audit events of the local platform, oldest first.

    Example:  penstock audit search --operation cluster.delete --since 1d
    """

    def matches(event: AuditEvent) -> bool:
        return (
            actor in ("", event.actor)
            and event.operation.startswith(operation)
            and subject in ("", event.subject)
            and cluster in ("", event.tenant)
        )

    time_ms = None if since is None else past_ms(since, "--since")
    async with _home_client(options) as client:
        start, end = await bounds(client, AUDIT)
        if time_ms is not None:
            by_time = results_or_raise(await list_offsets(client, {AUDIT: time_ms}))[AUDIT].offset
            start = end if by_time < 0 else by_time
        rows = [row async for row in _events(client, start, end, matches)]
    show(rows, options.form, table_of(rows, _COLUMNS, empty="no audit events match"))
    return Exit.FINE


def _home_client(options: Options) -> Client:
    fleet = load_fleet(options.layout)
    if not any(node.running() for node in fleet.nodes):
        raise NotRunning(home=options.layout.home)
    return next(iter(fleet_clusters(options.layout))).client()


async def _events(
    client: Client, start: int, end: int, matches: Callable[[AuditEvent], bool]
) -> AsyncIterator[dict[str, Any]]:
    first, _ = await bounds(client, AUDIT)
    position = max(start, first)
    while position < end:
        chunk = await read(client, AUDIT, position)
        for record in chunk.records:
            event = AuditEvent.from_bytes(record.value or b"")
            if matches(event):
                yield _row(event)
        position = max(chunk.position, position + 1)


def _row(event: AuditEvent) -> dict[str, Any]:
    return {
        "time": datetime.fromtimestamp(event.time_ms / 1000, UTC).isoformat(timespec="seconds"),
        "actor": event.actor,
        "operation": event.operation,
        "subject": event.subject,
        "tenant": event.tenant,
        "outcome": str(event.outcome),
        "before": event.before,
        "after": event.after,
    }


def _print(rows: list[dict[str, Any]], form: Format) -> None:
    show(rows, form, table_of(rows, _COLUMNS, empty="no audit events"))
    sys.stdout.flush()
