"""A cluster link against MirrorMaker 2: speed and cost of catching up, and what a group reads again.

Both copy the same topic of 12 partitions between the same two clusters, one after the other: the source
has one broker, the destination two and a controller. MirrorMaker runs from its published jars, with four
tasks, group offsets, and intervals of two seconds as a link has them. The first quarter of each copy is not
counted, so start-up and warm-up are not either. Processor time is that of the copying process and of all
brokers. `--quick` copies 96 MB once, the full run 480 MB three times. Not measured: exactly-once, the same
bytes by reassignment, lag under load, failover of many partitions, idle partitions.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench import link_setup as setup
from bench.harness import Result, Run, main

if TYPE_CHECKING:
    from collections.abc import Iterator

QUICK_RECORDS: Final = 96_000  # of 1 KB
FULL_RECORDS: Final = 480_000
ROUNDS: Final = 3
BEHIND: Final = 10_000  # records that a group has not read when the source is lost


def measure(run: Run) -> Iterator[Result]:
    records, rounds = (QUICK_RECORDS, 1) if run.quick else (FULL_RECORDS, ROUNDS)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
        setup.clusters(Path(directory)) as pair,
    ):
        ours, peer = asyncio.run(_measured(run, pair, records, rounds))
    detail = {
        "megabytes": records * setup.RECORD_BYTES / 1e6,
        "ours_mb_per_s": [one.megabytes_per_second for one in ours],
        "ours_s_per_gb": [one.processor_seconds_per_gigabyte for one in ours],
        "peer_mb_per_s": [one.megabytes_per_second for one in peer],
        "peer_s_per_gb": [one.processor_seconds_per_gigabyte for one in peer],
        "peer_read_again": [one.read_again for one in peer],
    }
    pairs = list(zip(ours, peer, strict=False))
    yield _ratio(
        "catch-up-rate", [a.megabytes_per_second / b.megabytes_per_second for a, b in pairs], ">= 2", detail
    )
    yield _ratio(
        "catch-up-cpu",
        [a.processor_seconds_per_gigabyte / b.processor_seconds_per_gigabyte for a, b in pairs],
        "<= 0.5",
        detail,
    )
    yield Result.of_runs(
        "read-again-after-failover",
        [float(one.read_again) for one in ours],
        unit=f"records, by a group {BEHIND} behind",
        goal="== 0",
        detail={"peer": [one.read_again for one in peer]},
    )
    yield Result.of_runs(
        "failover", [one.failover_seconds for one in ours], unit="s, command to open for writes"
    )


def _ratio(name: str, runs: list[float], goal: str, detail: dict[str, object]) -> Result:
    unit = "ratio to MirrorMaker 2"
    if not runs:
        return Result.missing(name, unit=unit, goal=goal, reason=setup.missing_peer(), optional=True)
    return Result.of_runs(name, runs, unit=unit, goal=goal, detail=detail, optional=True)


async def _measured(
    run: Run, pair: setup.Pair, records: int, rounds: int
) -> tuple[list[setup.Copied], list[setup.Copied]]:
    ours: list[setup.Copied] = []
    peer: list[setup.Copied] = []
    for number in range(rounds):
        topic = f"load-{number}"
        await setup.fill(pair, topic, records)
        await setup.commit_behind(pair, topic, BEHIND)
        ours.append(await setup.linked(pair, topic, records))
        run.log(f"link: {ours[-1]}")
        if not setup.missing_peer():
            peer.append(await setup.mirrored_by_maker(pair, topic, records))
            run.log(f"MirrorMaker 2: {peer[-1]}")
    return ours, peer


if __name__ == "__main__":
    sys.exit(main("link", measure))
