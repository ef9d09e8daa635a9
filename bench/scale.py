"""The persistent-lag scaler against KEDA's kafka scaler on the same traces, and what sampling costs.

Traces: nine scenarios, each from several seeds, through the same consumer group and HPA. Ours runs with
its defaults. KEDA's scaler runs with the same threshold and an HPA scale-up window of 0, 120 and
300 s (down: the HPA's 300 s). Every goal is relative to the baseline that does best.

Sampling: ten thousand groups over a hundred topics of twelve partitions on a real broker, including the
samples topic. The service runs here, its sampler in a separate process, and a third process requests
values. The cost of a round is that of service and sampler together.
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

from bench.harness import Result, Run, main
from bench.scale_calls import topic_of, trigger_metadata
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import open_fleet
from penstock.fleet.readiness import security_of, wait_until_ready
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.spec_file import parse_fleet
from penstock.fleet.supervisor import stop_nodes
from penstock.kafka.admin import group_offsets, topics
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.kafka.security import Login
from penstock.model.errors import PenstockError
from penstock.scale.decision.policy import Policy
from penstock.scale.server import Running, serving
from penstock.scale.settings import ClusterSettings, ScalerSettings
from penstock.scale.simulate.plot import draw
from penstock.scale.simulate.run import SAMPLE_SECONDS, KedaArm, PersistentArm, Scaler, run
from penstock.scale.simulate.score import NOTHING, Score, pressure_episodes, score
from penstock.scale.simulate.traces import trace_set

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from penstock.fleet.node import Node

POLICY = Policy(group="orders", replicas_max=24)
OURS = "persistent lag"
WINDOWS = (0, 120, 300)  # seconds, of the HPA's scale-up stabilisation
THRESHOLDS_BESIDE = (2000, 5000)  # records per replica: KEDA's scaler with laxer thresholds, for information
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
        run.log(f"traces, seed {seed}")
        all_scores.append(_run_traces(run, seed))
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
            trace: ours.late_minutes - each[keda(120).name][trace].late_minutes
            for trace, ours in each[OURS].items()
        }
        for each in all_scores
    ]
    yield Result.of_runs(
        "late-worst-trace", [max(each.values()) for each in worse],
        unit="minutes above the objective, more than with a window of 120 s", goal="<= 0",
        detail={trace: [round(each[trace], 2) for each in worse] for trace in worse[0]},
    )  # fmt: skip
    delays = [_delays(each) for each in all_scores]
    yield Result.of_runs(
        "reaction", [max(each.values(), default=0.0) for each in delays],
        unit="s behind a window of 0, worst episode",
        goal=f"<= {POLICY.sustain + SAMPLE_SECONDS:g}", detail={"by_trace": delays},
    )  # fmt: skip
    yield against_best("scale-events", "events", "<= 0.4", "ratio to the fewest of the baselines")
    yield against_best("flaps", "flaps", "<= 0.2", "ratio to the fewest of the baselines")
    yield against_best("replica-minutes", "replica_minutes", "< 1", "ratio to the fewest of the baselines")


def _run_traces(run_: Run, seed: int) -> Scores:
    """Runs every trace through every arm, and plots those of the first seed."""
    scores: Scores = {}
    for trace in trace_set(seed, LENGTH_QUICK if run_.quick else 1.0):
        episodes = pressure_episodes(run(trace, Scaler()), POLICY.lag_threshold, POLICY.objective)
        beside = [] if run_.quick else [keda(0, threshold) for threshold in THRESHOLDS_BESIDE]
        arms: list[Scaler] = [PersistentArm(POLICY), *(keda(window) for window in WINDOWS), *beside]
        outcomes = [run(trace, arm) for arm in arms]
        for outcome in outcomes:
            scores.setdefault(outcome.arm, {})[trace.name] = score(outcome, POLICY.objective, episodes)
        if seed == SEEDS[0]:
            draw(outcomes[:4], POLICY.objective, run_.out / f"scale-{trace.name.replace(' ', '-')}.png")
    return scores


def _delays(scores: Scores) -> dict[str, float]:
    """Per trace, the longest delay in seconds of our first scale-up in an episode after that of window 0."""
    eager = scores[keda(0).name]
    return {
        trace: max(own - other for own, other in zip(ours.reactions, eager[trace].reactions, strict=True))
        for trace, ours in scores[OURS].items()
        if ours.reactions
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
    # The service's share comes from the calls, whose number does not depend on the groups.
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
    rounds: list[float]  # processor seconds per round, both processes
    samplers: list[float]  # the sampler's share of them
    calls: list[float]  # milliseconds per call
    refused: int  # calls without a fresh sample


async def _sample(run: Run, groups: int) -> Sampling:
    with tempfile.TemporaryDirectory() as home:
        async with (
            _broker(Path(home)) as node,
            Client(node.cluster.spec.bootstrap(), security_of(node)) as client,
        ):
            run.log(f"committing offsets of {groups} groups")
            await _commit_all(client, groups)
            async with serving(_settings(node, Path(home))) as up:
                for number in range(groups):
                    up.verdicts.admit(f"bench/group-{number}", trigger_metadata(number))
                run.log("first round")
                await _wait_for_verdicts(up, 0.0)
                seconds = CALL_SECONDS_QUICK if run.quick else CALL_SECONDS
                caller = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "bench.scale_calls", str(up.port), str(seconds), str(groups),
                    stdout=asyncio.subprocess.PIPE,
                )  # fmt: skip
                rounds: list[Round] = []
                for number in range(ROUNDS_QUICK if run.quick else ROUNDS):
                    run.log(f"measured round {number + 1}")
                    rounds.append(await _one_round(up))
                out, _ = await caller.communicate()
                report = json.loads(out)
                during = [
                    spent for at, spent in report["calls"] if any(r.started <= at <= r.ended for r in rounds)
                ]
                spent = [each.processor for each in rounds]
                return Sampling(spent, [each.sampler for each in rounds], during, report["refused"])


def _settings(node: Node, home: Path) -> ScalerSettings:
    cluster = ClusterSettings(node.cluster.spec.bootstrap())
    login = security_of(node).login
    if isinstance(login, Login):
        (home / "password").write_text(login.password)
        cluster = replace(
            cluster, user=login.user, password_file=home / "password", mechanism=login.mechanism
        )
    return ScalerSettings(
        {"default": cluster}, "127.0.0.1:0", samples_cluster="default", samples_topic="bench-scale-samples"
    )


class Round(NamedTuple):
    started: float  # seconds on the monotonic clock
    ended: float
    processor: float  # seconds, both processes
    sampler: float


async def _one_round(up: Running) -> Round:
    """From the start of a slot until every group has a verdict."""
    interval = next(iter(up.verdicts.watches)).interval
    started = (time.monotonic() // interval + 1) * interval
    while time.monotonic() < started:
        await asyncio.sleep(0.001)
    own, sampler = time.process_time(), _sampler_seconds(up)
    await _wait_for_verdicts(up, started - 0.5)
    sampler = _sampler_seconds(up) - sampler
    return Round(started, time.monotonic(), time.process_time() - own + sampler, sampler)


def _sampler_seconds(up: Running) -> float:
    spent = psutil.Process(up.sampler.pid).cpu_times()
    return float(spent.user + spent.system)


async def _wait_for_verdicts(up: Running, since: float) -> None:
    left = list(up.verdicts.watches)
    async with asyncio.timeout(ROUND_SECONDS_MAX):
        while left:  # from the end, so that polling adds no measurable cost
            if (left[-1].received_at or 0.0) > since and left[-1].verdict is not None:
                left.pop()
            else:
                await asyncio.sleep(0.05)


async def _commit_all(client: Client, groups: int) -> None:
    names = [topic_of(number) for number in range(TOPICS)]
    results_or_raise(
        await topics.create(client, [topics.NewTopic(name, PARTITIONS, 1) for name in names], timeout=120)
    )
    limit = asyncio.Semaphore(COMMITS_AT_ONCE)

    async def commit(number: int) -> None:
        offsets: Mapping[TopicPartition, CommittedOffset] = {
            TopicPartition(topic_of(number), index): CommittedOffset(0) for index in range(PARTITIONS)
        }
        async with limit:
            results_or_raise(await group_offsets.commit(client, f"group-{number}", offsets, timeout=120))

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
