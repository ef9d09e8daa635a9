"""`penstock audit scrub`: read every copy of a log, and compare."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, validators
from rich.console import Group

from penstock.audit.scrub.service import Scrubber
from penstock.audit.stores import Stores, archives_of
from penstock.cli.flags import duration_ms
from penstock.cli.operator.audit_stores import stores_by_cluster
from penstock.cli.operator.durability import Cluster, Config, one_cluster
from penstock.cli.output import report, show, table_of
from penstock.cli.settings import Options
from penstock.model.errors import Exit
from penstock.model.plural import counted

if TYPE_CHECKING:
    from penstock.audit.scrub.partition_scrub import Result
    from penstock.model.durability import Scrubbed

MEGABYTE = 1_000_000
_RESULTS = {
    "TOPIC": "topic", "PARTITION": "partition", "FIRST": "first", "LAST": "last", "BYTES": "bytes",
    "PLACES": "places", "LEFT OUT": "left_out",
}  # fmt: skip
_PROBLEMS = {
    "TOPIC": "topic", "PARTITION": "partition", "PLACE": "place", "FIRST": "first", "LAST": "last",
    "PROBLEM": "problem",
}  # fmt: skip


def scrub(
    *,
    topic: Annotated[
        list[str] | None, Parameter(help="Only this topic; may be repeated.", negative="")
    ] = None,
    within: Annotated[
        str, Parameter(help="Read each partition once in this time; what was read since is left out.")
    ] = "7d",
    rate: Annotated[
        float,
        Parameter(help="Megabytes a second, of all copies together.", validator=validators.Number(gt=0)),
    ] = 5.0,
    config: Config = None,
    cluster: Cluster = None,
    options: Options = Options(),
) -> int:
    """Read every replica, the tier and the backup, and compare. Continues where the last run stopped.

    Exits with 5 if copies differ. `penstock audit run` raises the findings.

    Example:  penstock audit scrub --topic orders --rate 20
    """

    def done(result: Result, number: int, of: int) -> None:
        report(f"{number}/{of}: {result.topic}/{result.partition}, {result.size} bytes")

    async def work() -> list[Result]:
        async with one_cluster(config, cluster, options) as (name, client):
            stores = stores_by_cluster(config, options).get(name, Stores())
            scrubber = Scrubber(
                name,
                client,
                archives=archives_of(stores, (await client.cluster()).id or ""),
                bytes_per_second=rate * MEGABYTE,
                within_ms=duration_ms(within, "--within"),
                only=topic or (),
                report=done,
            )
            return await scrubber.run()

    results = asyncio.run(work())
    rows = [_row(each) for each in results]
    problems = [problem for each in rows for problem in each["problems"]]
    tables: list[Any] = [table_of(rows, _RESULTS, empty="nothing is due")]
    if problems:
        tables.append(table_of(problems, _PROBLEMS))
    show(rows, options.form, Group(*tables))
    incomplete = sum(1 for each in results if each.left_out)
    report(
        f"{counted(len(rows), 'partition')}, {sum(each.size for each in results)} bytes, "
        f"{counted(len(problems), 'problem')}; {incomplete} not read completely"
    )
    return Exit.UNHEALTHY if problems else Exit.FINE


def _row(result: Result) -> dict[str, Any]:
    where = {"topic": result.topic, "partition": result.partition}
    return {
        **where,
        "first": result.first,
        "last": result.last,
        "bytes": result.size,
        "places": ", ".join(sorted(result.places)),
        "left_out": ", ".join(sorted(result.left_out)),
        "problems": [
            {**where, "place": each.place, "first": each.first, "last": each.last, "problem": _problem(each)}
            for each in result.problems
        ],
    }


def _problem(row: Scrubbed) -> str:
    if row.sequence_errors:
        return row.sequence_errors[0]
    if row.holes:
        return "missing"
    return "damaged" if row.damaged else "differs from most others"
