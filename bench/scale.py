"""The persistent-lag scaler against KEDA's kafka scaler on the same traces, and what sampling costs.

Traces: nine stories, each from several seeds, through the same consumer group and HPA. Ours runs with
its defaults. KEDA's scaler runs with the same threshold and an HPA scale-up window of 0, 120 and
300 s (down: the HPA's 300 s). Every goal is measured against the baseline that is best at it.

Sampling: ten thousand groups over a hundred topics of twelve partitions on a real broker, samples
topic included, by the scaler as it is served: the service here, its sampler in a process of its own,
and another process that asks for values. A round's cost is that of the service and the sampler together.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from bench.frame import Result, Run, main
from bench.scale_calls import topic_of, wishes_of
from penstock.fleet.layout import Layout
from penstock.fleet.local import open_fleet
from penstock.fleet.parse import parse_fleet
from penstock.fleet.readiness import security_of, wait_until_ready
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.supervisor import stop_nodes
from penstock.kafka import commits, topics
from penstock.kafka.client import Client
from penstock.kafka.commits import Committed
from penstock.kafka.outcomes import all_done
from penstock.kafka.partitions import TopicPartition
from penstock.model.errors import PenstockError
from penstock.scale.policy import Policy
from penstock.scale.server import Running, serving
from penstock.scale.settings import ClusterSettings, ScalerSettings
from penstock.scale.simulate.plot import draw
from penstock.scale.simulate.run import SAMPLE_SECONDS, KedaArm, PersistentArm, Still, run
from penstock.scale.simulate.score import NOTHING, Score, pressure_episodes, score
from penstock.scale.simulate.traces import trace_set

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from penstock.fleet.node import Node
    from penstock.scale.simulate.run import Scaler

POLICY = Policy(group="orders", replicas_max=24)
OURS = "persistent lag"
WINDOWS = (0, 120, 300)  # seconds, of the HPA's scale-up stabilisation
THRESHOLDS_BESIDE = (2000, 5000)  # records a replica: KEDA's scaler with laxer thresholds, to read beside
SEEDS, SEEDS_QUICK = (1, 2, 3), (1,)
LENGTH_QUICK = 0.2  # of the traces
GROUPS, GROUPS_QUICK = 10_000, 1_000
TOPICS, PARTITIONS = 100, 12
ROUNDS, ROUNDS_QUICK = 3, 2
COMMITS_AT_ONCE = 50
ROUND_SECONDS_MAX = 120
CALLS_MIN = 100  # for a 99th percentile
CALL_SECONDS_QUICK, CALL_SECONDS = 22.0, 35.0

Scores = dict[str, dict[str, Score]]  # by arm, by trace


def measure(run: Run) -> Iterator[Result]:
    yield from _traces(run)
    yield from _sampling(run)


def keda(window: int, threshold: int = 500) -> KedaArm:
    arm = KedaArm(threshold, window)
    if threshold != 500:
        arm.name = f"KEDA kafka, threshold {threshold}, window {window} s"
    return arm


def _traces(run: Run) -> Iterator[Result]:
    all_scores: list[Scores] = []
    for seed in SEEDS_QUICK if run.quick else SEEDS:
        run.say(f"traces, seed {seed}")
        all_scores.append(_play(run, seed))
    totals = [{arm: sum(by_trace.values(), NOTHING) for arm, by_trace in each.items()} for each in all_scores]
    baselines = [keda(window).name for window in WINDOWS]

    def against_best(name: str, pick: str, goal: str, unit: str) -> Result:
        runs = []
        for total in totals:
            best = min(getattr(total[arm], pick) for arm in baselines)
            runs.append(getattr(total[OURS], pick) / best)
        detail = {arm: [getattr(total[arm], pick) for total in totals] for arm in totals[0]}
        return Result.of_runs(name, runs, unit=unit, goal=goal, detail=detail)

    late = [total[OURS].late_minutes - min(total[arm].late_minutes for arm in baselines) for total in totals]
    yield Result.of_runs(
        "late-total", late, unit="minutes above the objective, more than the best baseline", goal="<= 0",
        detail={arm: [round(total[arm].late_minutes, 1) for total in totals] for arm in totals[0]},
    )  # fmt: skip
    worse = [
        {
            trace: found.late_minutes - each[keda(120).name][trace].late_minutes
            for trace, found in each[OURS].items()
        }
        for each in all_scores
    ]
    yield Result.of_runs(
        "late-worst-trace", [max(each.values()) for each in worse],
        unit="minutes above the objective, more than with a window of 120 s", goal="<= 0",
        detail={trace: [round(each[trace], 2) for each in worse] for trace in worse[0]},
    )  # fmt: skip
    behind = [_behind(each) for each in all_scores]
    yield Result.of_runs(
        "reaction", [max(each.values(), default=0.0) for each in behind],
        unit="s behind a window of 0, worst episode",
        goal=f"<= {POLICY.sustain + SAMPLE_SECONDS:g}", detail={"by_trace": behind},
    )  # fmt: skip
    yield against_best("scale-events", "events", "<= 0.4", "ratio to the fewest of the baselines")
    yield against_best("flaps", "flaps", "<= 0.2", "ratio to the fewest of the baselines")
    yield against_best("replica-minutes", "replica_minutes", "< 1", "ratio to the fewest of the baselines")


def _play(run_: Run, seed: int) -> Scores:
    """Every trace through every arm; pictures of the first seed."""
    scores: Scores = {}
    for trace in trace_set(seed, LENGTH_QUICK if run_.quick else 1.0):
        episodes = pressure_episodes(run(trace, Still()), POLICY.lag_threshold, POLICY.objective)
        beside = [] if run_.quick else [keda(0, threshold) for threshold in THRESHOLDS_BESIDE]
        arms: list[Scaler] = [PersistentArm(POLICY), *(keda(window) for window in WINDOWS), *beside]
        outcomes = [run(trace, arm) for arm in arms]
        for outcome in outcomes:
            scores.setdefault(outcome.arm, {})[trace.name] = score(outcome, POLICY.objective, episodes)
        if seed == SEEDS[0]:
            draw(outcomes[:4], POLICY.objective, run_.out / f"scale-{trace.name.replace(' ', '-')}.png")
    return scores


def _behind(scores: Scores) -> dict[str, float]:
    """By trace: seconds that our first scale-up of an episode comes after window 0's, the worst."""
    eager = scores[keda(0).name]
    return {
        trace: max(
            ours - theirs for ours, theirs in zip(found.reactions, eager[trace].reactions, strict=True)
        )
        for trace, found in scores[OURS].items()
        if found.reactions
    }


def _sampling(run: Run) -> Iterator[Result]:
    groups = GROUPS_QUICK if run.quick else GROUPS
    try:
        rounds, samplers, calls, refused = asyncio.run(_sample(run, groups))
    except (PenstockError, OSError, TimeoutError) as failure:
        for name, unit, goal in (
            ("sampling-round", "processor seconds", "<= 10"),
            ("get-metrics-p99", "ms", "< 5"),
        ):
            yield Result.missing(name, unit=unit, goal=goal, reason=str(failure) or "a round took too long")
        return
    # The service's part is that of the calls, which are the same however many groups there are.
    scaled = [each - sampler + sampler * GROUPS / groups for each, sampler in zip(rounds, samplers)]
    yield Result.of_runs(
        "sampling-round", scaled, unit=f"processor seconds for {GROUPS} groups", goal="<= 10",
        detail={"groups": groups, "topics": TOPICS, "partitions": PARTITIONS,
                "sampler_process_s": [round(each, 2) for each in samplers]},
    )  # fmt: skip
    if len(calls) < CALLS_MIN:
        yield Result.missing(
            "get-metrics-p99", unit="ms", goal="< 5", reason=f"only {len(calls)} calls in the rounds"
        )
        return
    percentiles = statistics.quantiles(calls, n=100)
    yield Result(
        "get-metrics-p99", percentiles[98], "ms, while sampling", "< 5",
        tuple(percentiles[i] for i in (49, 89, 98)),
        {"calls": len(calls), "max_ms": round(max(calls), 2), "groups": groups, "refused": refused},
    )  # fmt: skip


class Sampling(NamedTuple):
    rounds: list[float]  # processor seconds of each, both processes
    samplers: list[float]  # of it, the sampler's
    calls: list[float]  # milliseconds of each
    refused: int  # calls without a fresh sample


async def _sample(run: Run, groups: int) -> Sampling:
    with tempfile.TemporaryDirectory() as home:
        async with (
            _broker(Path(home)) as node,
            Client(node.cluster.spec.bootstrap(), security_of(node)) as client,
        ):
            run.say(f"committing offsets of {groups} groups")
            await _commit_all(client, groups)
            async with serving(_settings(node, Path(home))) as up:
                for number in range(groups):
                    up.board.admit(f"bench/group-{number}", wishes_of(number))
                run.say("first round")
                await _all_judged(up, 0.0)
                seconds = CALL_SECONDS_QUICK if run.quick else CALL_SECONDS
                caller = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "bench.scale_calls", str(up.port), str(seconds), str(groups),
                    stdout=asyncio.subprocess.PIPE,
                )  # fmt: skip
                rounds: list[Round] = []
                for number in range(ROUNDS_QUICK if run.quick else ROUNDS):
                    run.say(f"measured round {number + 1}")
                    rounds.append(await _one_round(up))
                out, _ = await caller.communicate()
                said = json.loads(out)
                during = [
                    spent for at, spent in said["calls"] if any(r.begun <= at <= r.ended for r in rounds)
                ]
                spent = [each.processor for each in rounds]
                return Sampling(spent, [each.sampler for each in rounds], during, said["refused"])


def _settings(node: Node, home: Path) -> ScalerSettings:
    cluster = ClusterSettings(node.cluster.spec.bootstrap())
    login = security_of(node).login
    if login is not None:
        (home / "password").write_text(login.password)
        cluster = replace(
            cluster, user=login.user, password_file=home / "password", mechanism=login.mechanism
        )
    return ScalerSettings(
        {"default": cluster}, "127.0.0.1:0", samples_cluster="default", samples_topic="bench-scale-samples"
    )


class Round(NamedTuple):
    begun: float  # seconds since the epoch
    ended: float
    processor: float  # seconds, both processes
    sampler: float


async def _one_round(up: Running) -> Round:
    """From the beginning of a slot until every group of it is judged."""
    interval = next(iter(up.board.watches)).interval
    begun = (time.time() // interval + 1) * interval
    while time.time() < begun:
        await asyncio.sleep(0.001)
    ours, theirs = time.process_time(), _sampler_seconds(up)
    await _all_judged(up, begun - 0.5)
    theirs = _sampler_seconds(up) - theirs
    return Round(begun, time.time(), time.process_time() - ours + theirs, theirs)


def _sampler_seconds(up: Running) -> float:
    spent = psutil.Process(up.sampler.pid).cpu_times()
    return float(spent.user + spent.system)


async def _all_judged(up: Running, since: float) -> None:
    left = list(up.board.watches)
    async with asyncio.timeout(ROUND_SECONDS_MAX):
        while left:  # from the end, so that looking costs nothing that would be measured
            if (left[-1].sampled_at or 0.0) > since and left[-1].verdict is not None:
                left.pop()
            else:
                await asyncio.sleep(0.05)


async def _commit_all(client: Client, groups: int) -> None:
    names = [topic_of(number) for number in range(TOPICS)]
    all_done(
        await topics.create(client, [topics.NewTopic(name, PARTITIONS, 1) for name in names], timeout=120)
    )
    turn = asyncio.Semaphore(COMMITS_AT_ONCE)

    async def commit(number: int) -> None:
        offsets: Mapping[TopicPartition, Committed] = {
            TopicPartition(topic_of(number), index): Committed(0) for index in range(PARTITIONS)
        }
        async with turn:
            all_done(await commits.commit(client, f"group-{number}", offsets, timeout=120))

    await asyncio.gather(*map(commit, range(groups)))


@asynccontextmanager
async def _broker(home: Path) -> AsyncIterator[Node]:
    shape = {"port": 0, "combined": True, "brokers": 1, "zones": ["a"]}
    fleet = open_fleet(parse_fleet({"clusters": [shape]}), Layout(home), await obtain_runtime())
    await fleet.prepare()
    try:
        for node in fleet.nodes:
            await node.start()
        await wait_until_ready(list(fleet.nodes))
        yield fleet.nodes[0]
    finally:
        await stop_nodes(fleet.nodes)


if __name__ == "__main__":
    sys.exit(main("scale", measure))
