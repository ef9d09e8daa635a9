"""The durability audit: what folding an event costs, and how fast a scrub reads.

Folding: histories of 1,000 partitions with three replicas each, as collectors write them, parsed from JSON as
from the topic. All 23 rules are compared with one rule, and with a plain loop that parses the same events and
checks that one rule with a dictionary: the least that any auditor does. A long run shows whether the time for
an event grows with the history.

Scrub: every batch of three replicas of a real topic, against a loop of bare fetches from the same brokers
with one CRC32C over each response. Processor time is that of this process only: the brokers do the same for
both.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer
from crc32c import crc32c

from bench.fleets import kill_nodes, start_fleet
from bench.harness import Result, Run, main
from bench.measure import interleave
from penstock.audit.rules.catalogue import RULES, selected
from penstock.audit.rules.fold import RuleSet, step
from penstock.audit.scrub.places import LANE
from penstock.audit.scrub.service import Scrubber
from penstock.backup.raw_fetch import LogId, fetch
from penstock.fleet.credentials.passwords import PLATFORM_USER, SCRAM_MECHANISM
from penstock.fleet.readiness import security_of
from penstock.kafka.admin import topics
from penstock.kafka.client import Client
from penstock.kafka.partition_log import ensure_topic
from penstock.model.durability import (
    Acked,
    LogEvent,
    Placement,
    Policy,
    Replica,
    Segment,
    What,
    members_of,
    partition_subject,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.audit.rules.state import SubjectState
    from penstock.model.durability import Facts

SUBJECTS: Final = 1_000
EVENTS, EVENTS_QUICK = 200_000, 12_000  # of a round
LONG, LONG_QUICK = 10_000_000, 24_000
CHUNK: Final = 100_000
ROUNDS, ROUNDS_QUICK = 5, 3
ONE_RULE: Final = "log-start-falls"
BEGIN_MS: Final = 1_800_000_000_000
STEP_MS: Final = 10_000
ROUND_OFFSETS: Final = 1_000
SEGMENT_ROUNDS: Final = 16
SEGMENT_OFFSETS: Final = SEGMENT_ROUNDS * ROUND_OFFSETS
TOPIC: Final = "scrubbed"
TOPIC_BYTES, TOPIC_BYTES_QUICK = 400 << 20, 60 << 20
BATCH_BYTES: Final = 16 << 10
RECORD_BYTES: Final = 1 << 10

States = dict[bytes, "SubjectState"]


def measure(run: Run) -> Iterator[Result]:
    yield from _folding(run)
    yield from _long_run(run)
    yield from _scrubbing(run)


def events(first: int, count: int) -> Iterator[bytes]:
    """The events from a number on, subject by subject in turn, as records of `_penstock.durability`."""
    for number in range(first, first + count):
        subject, turn = number % SUBJECTS, number // SUBJECTS
        facts = _facts(turn)
        time_ms = BEGIN_MS + turn * STEP_MS
        name = partition_subject(f"{subject:022d}", 0)
        what = What(type(facts).__name__.lower())
        yield LogEvent("pkc-000000", name, "auditor", turn, time_ms, what, members_of(facts)).to_bytes()


def _facts(turn: int) -> Facts:
    """Ten events in turn: a sweep of three replicas, twice, and acknowledgements; at times a segment."""
    if turn < 2:
        return (Policy(tiered=True, min_isr=2), Placement("orders", (1, 2, 3), (1, 2, 3), 1, 0, 0))[turn]
    round_, kind = divmod(turn - 2, 10)
    end = ROUND_OFFSETS * (round_ + 1)
    segment, rest = divmod(round_, SEGMENT_ROUNDS)
    if kind in (0, 1, 2, 5, 6, 7):
        tiered = SEGMENT_OFFSETS * (max(round_ - 1, 0) // SEGMENT_ROUNDS) - 1
        leads = {"stable": end, "high_watermark": end} if kind in (0, 5) else {}
        return Replica(kind % 5 + 1, 0, end, 0, tiered, tiered + 1, size=end * 100, **leads)
    if kind == 3 and segment and not rest:
        first = SEGMENT_OFFSETS * (segment - 1)
        return Segment(f"segment-{segment}", 1, first, first + SEGMENT_OFFSETS - 1, BEGIN_MS, 100_000)
    return Acked(end - ROUND_OFFSETS, end - 1, ROUND_OFFSETS, 100_000, BEGIN_MS)


def fold(values: list[bytes], rules: RuleSet, states: States) -> None:
    """Parse and judge. The histories are sound, so there is no finding."""
    for value in values:
        event = LogEvent.from_bytes(value)
        states[event.key], findings = step(states.get(event.key), event, rules)
        assert not findings, findings


def plain_loop(values: list[bytes]) -> int:
    """Parse, and check one rule with a dictionary. Returns the violations."""
    starts: dict[tuple[str, int], int] = {}
    violations = 0
    for value in values:
        event = json.loads(value)
        if event["what"] == "replica":
            facts = event["facts"]
            key = (event["subject"], facts["broker"])
            violations += facts["start"] < starts.get(key, 0)
            starts[key] = facts["start"]
    return violations


def _folding(run: Run) -> Iterator[Result]:
    count = EVENTS_QUICK if run.quick else EVENTS
    values = list(events(0, count))
    run.log(f"folding {count} events of {SUBJECTS} subjects")
    one, every = RuleSet(selected([ONE_RULE])), RuleSet(RULES)

    def folded(rules: RuleSet) -> float:
        start = time.process_time()
        fold(values, rules, {})
        return count / (time.process_time() - start)

    def looped() -> float:
        start = time.process_time()
        assert plain_loop(values) == 0
        return count / (time.process_time() - start)

    series = interleave(
        {"23 rules": lambda: folded(every), "one rule": lambda: folded(one), "loop": looped},
        rounds=ROUNDS_QUICK if run.quick else ROUNDS,
    )
    rates = {name: each.median("value") for name, each in series.items()}
    yield Result.of_runs(
        "fold-rules-time", series["one rule"].ratios(series["23 rules"], "value"),
        unit="time ratio of 23 rules to one", goal="<= 2.0", detail=rates,
    )  # fmt: skip
    yield Result.of_runs("fold-rate", series["23 rules"].value, unit="events/s of one process")
    yield Result.of_runs(
        "fold-loop-rate", series["23 rules"].ratios(series["loop"], "value"),
        unit="rate ratio of 23 rules to a plain loop with one", goal=">= 1.0", detail=rates,
    )  # fmt: skip


def _long_run(run: Run) -> Iterator[Result]:
    """The last tenth of a long history against the second tenth: by then every state is at its size."""
    count = LONG_QUICK if run.quick else LONG
    chunk = min(CHUNK, count // 20)
    states: States = {}
    every = RuleSet(RULES)
    seconds: list[float] = []
    for first in range(0, count, chunk):
        values = list(events(first, chunk))
        start = time.process_time()
        fold(values, every, states)
        seconds.append(time.process_time() - start)
        if len(seconds) % 10 == 0:
            run.log(f"{first + chunk} of {count} events, {chunk / seconds[-1]:.0f} events/s")
    tenth = len(seconds) // 10
    early, late = statistics.median(seconds[tenth : 2 * tenth]), statistics.median(seconds[-tenth:])
    yield Result(
        "fold-growth", late / early, "time ratio of the last tenth to the second", "<= 1.1",
        detail={"events": count, "rate": chunk / late, "subjects": len(states)},
    )  # fmt: skip


def _scrubbing(run: Run) -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="bench-audit-") as home:
        yield from asyncio.run(_scrub_lines(run, Path(home)))


async def _scrub_lines(run: Run, home: Path) -> list[Result]:
    fleet = await start_fleet(home, {"port": 0, "brokers": 3})
    try:
        node = next(each for each in fleet.nodes if each.spec.is_broker)
        async with Client(node.cluster.spec.bootstrap(), security_of(node)) as client:
            await ensure_topic(client, topics.NewTopic(TOPIC, replicas={0: (1, 2, 3)}))
            size = TOPIC_BYTES_QUICK if run.quick else TOPIC_BYTES
            run.log(f"producing {size >> 20} MiB")
            config: dict[str, Any] = {
                "bootstrap.servers": node.cluster.spec.bootstrap(),
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": SCRAM_MECHANISM,
                "sasl.username": PLATFORM_USER,
                "sasl.password": fleet.access.credentials.platform,
            }
            await asyncio.to_thread(_produce, config, size)
            described = (await topics.describe(client, [TOPIC]))[TOPIC]
            assert isinstance(described, topics.Topic)
            log = LogId(described.id, 0)
            rates: dict[str, list[float]] = {"scrub": [], "bare": []}
            for round_ in range(-1, ROUNDS_QUICK if run.quick else ROUNDS):
                for name in ("scrub", "bare") if round_ % 2 else ("bare", "scrub"):
                    start = time.process_time()
                    read = await (_scrub(client) if name == "scrub" else _bare(client, log))
                    if round_ >= 0:
                        rates[name].append(read / (time.process_time() - start))
    finally:
        kill_nodes(fleet)
    ratios = [ours / bare for ours, bare in zip(rates["scrub"], rates["bare"], strict=True)]
    detail = {f"{name}_mb_per_processor_second": statistics.median(v) / 1e6 for name, v in rates.items()}
    return [
        Result.of_runs(
            "scrub-rate", ratios, unit="rate ratio to a bare fetch and CRC32C loop", goal=">= 0.7",
            detail=detail | {"batch_bytes": BATCH_BYTES},
        )
    ]  # fmt: skip


async def _scrub(client: Client) -> int:
    (result,) = await Scrubber("pkc-000000", client, bytes_per_second=None, within_ms=0, only=[TOPIC]).run()
    assert not result.problems
    assert len(result.places) == 3
    return result.size


async def _bare(client: Client, log: LogId) -> int:
    """Everything from every replica, side by side, with one CRC over each response."""
    sizes = await asyncio.gather(*(_bare_replica(client, broker, log) for broker in (1, 2, 3)))
    return sum(sizes)


async def _bare_replica(client: Client, broker: int, log: LogId) -> int:
    offset, total = 0, 0
    while True:
        fetched = (await fetch(client, broker, {log: offset}, lane=LANE))[log]
        if not fetched.data:
            return total
        crc32c(fetched.data)
        total += len(fetched.data)
        offset = _next_offset(fetched.data)


def _next_offset(data: bytes | memoryview) -> int:
    """Behind the last whole batch, by the lengths and last offset deltas alone."""
    at, offset = 0, 0
    while at + 12 <= len(data):
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if end > len(data):
            break
        offset = int.from_bytes(data[at : at + 8], "big") + int.from_bytes(data[at + 23 : at + 27], "big") + 1
        at = end
    return offset


def _produce(config: Mapping[str, Any], size: int) -> None:
    producer = Producer({**config, "enable.idempotence": True, "batch.size": BATCH_BYTES, "linger.ms": 50})
    value = os.urandom(RECORD_BYTES)
    for _ in range(size // RECORD_BYTES):
        while True:
            try:
                producer.produce(TOPIC, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(120) == 0


if __name__ == "__main__":
    sys.exit(main("audit", measure))
