"""Gateways and coordinators are killed under load: limits hold, and counters match the traffic.

A restarted gateway has a full token bucket, and while it was away another gateway had its share for one
decision. That much may exceed the quota with each kill, and no more. Two decisions after the last kill
the tenant has its quota again.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.fleet.local_fleet import save_fleet_document
from penstock.model.events import Dimension
from tests.gateway.soak_clients import PARTITIONS, PATIENCE_SECONDS, Load
from tests.gateway.test_replacement import LOST_SECONDS, Soak, declared, metered
from tests.harness.fleet import THREE_ZONES, wait_for
from tests.harness.gateway import new_access, wait_for_topic
from tests.harness.gateway_process import GatewayFile
from tests.quota.test_coordinator import INTERVAL_SECONDS, coordinator

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access

pytestmark = [pytest.mark.kafka, pytest.mark.soak]

SECONDS = float(os.environ.get("SOAK_SECONDS", "180"))
CALM_SECONDS = 20.0  # after the last kill, in which the quota must be reached
PAUSE_SECONDS = (8.0, 16.0)  # between two kills
QUOTA = 1_500_000.0
GATEWAYS = 2
RECORD_BYTES = 10_000
OVERHEAD = 1.1  # bytes of frames and other requests, relative to those of records
BURSTS = 2.0  # seconds of its rate that a gateway may pass at once: one saved, one charged late
IN_FLIGHT_BYTES = 4_000_000  # of one client, counted and possibly resent after a disconnect


class Flood(Load):
    """A producer at full speed."""

    def __init__(self, access: Access, topic: str) -> None:
        self.delivered: list[float] = []
        super().__init__(access, topic)

    def work(self) -> None:
        producer = Producer(
            self.access.client_config(
                linger_ms=5,
                queue_buffering_max_kbytes=2000,
                message_timeout_ms=int(PATIENCE_SECONDS * 1000),
                request_timeout_ms=60_000,
            )
        )
        while not self.stopping.is_set():
            try:
                producer.produce(self.topic, bytes(RECORD_BYTES), on_delivery=self._delivered)
            except BufferError:
                producer.poll(0.05)
            producer.poll(0)
        if producer.flush(PATIENCE_SECONDS):
            self.surfaced.append("undelivered records")

    def _delivered(self, error: Any, message: Any) -> None:
        del message
        if error is None:
            self.delivered.append(time.monotonic())
        else:
            self.surfaced.append(error)


def test_limits_hold_and_counters_reconcile_while_gateways_and_coordinators_are_killed(
    fleet: Fleet, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    dice = random.Random(seed := os.environ.get("SOAK_SEED", os.urandom(4).hex()))
    access, topic = new_access(), unique("load")
    save_fleet_document(fleet.local.layout, {"clusters": [dict(THREE_ZONES)]})
    asyncio.run(declared(fleet, access, {str(Dimension.INGRESS_BYTES): QUOTA}))
    settings = {"tenants_from": "state", "gateways": GATEWAYS}
    files = [
        GatewayFile(fleet, tmp_path / f"g{number}.yaml", settings | {"gateway": f"g{number}"})
        for number in range(GATEWAYS)
    ]
    with ExitStack() as ending:
        for file in files:
            ending.callback(file.stop)
        soaks = [Soak(file, dice) for file in files]
        accesses = [file.write(access)[0] for file in files]
        for file in files:
            file.start()
        admin = AdminClient(accesses[0].client_config())
        admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(60)
        asyncio.run(wait_for_topic(accesses[0], topic, PARTITIONS))
        coordinators = [ending.enter_context(coordinator(fleet)) for _ in range(2)]
        floods = [Flood(each, topic) for each in accesses]
        for one in floods:
            ending.callback(one.join)
        for one in floods:
            ending.callback(one.stop)
        wait_for(lambda: all(one.delivered for one in floods), what="both to begin", seconds=60)
        began = time.monotonic()
        while time.monotonic() - began < SECONDS:
            time.sleep(dice.uniform(*PAUSE_SECONDS))
            if dice.random() < 0.3:
                coordinators.pop(dice.randrange(2)).kill()
                coordinators.append(ending.enter_context(coordinator(fleet)))
            else:
                dice.choice(soaks).kill()
        time.sleep(3 * INTERVAL_SECONDS)
        calm = time.monotonic()
        time.sleep(CALM_SECONDS)
        ended = time.monotonic()
        for one in floods:
            one.stop()
        for one in floods:
            one.join()
        for file in files:
            file.stop()
        reports = asyncio.run(metered(fleet, access))

    print(f"{len(soaks[0].killed)} and {len(soaks[1].killed)} kills of gateways, seed {seed}")
    assert [one.surfaced for one in floods] == [[], []]
    killed = [when for soak in soaks for when in soak.killed]
    times = sorted(when for one in floods for when in one.delivered)
    check_limits(times, killed, began, calm, ended)
    check_counters(times, killed, sum(one.used[Dimension.INGRESS_BYTES] for one in reports.values()))


def check_limits(times: list[float], killed: list[float], began: float, calm: float, ended: float) -> None:
    within = sum(began <= when <= ended for when in times) * RECORD_BYTES
    quota_ratio = sum(calm <= when <= ended for when in times) * RECORD_BYTES / (QUOTA * CALM_SECONDS)
    allowed_seconds = (len(killed) + GATEWAYS) * (BURSTS + INTERVAL_SECONDS)
    print(
        f"of the quota {within / (QUOTA * (ended - began)):.2f} passed, {quota_ratio:.2f} after the last kill"
    )
    assert within <= QUOTA * (ended - began + allowed_seconds)
    assert 0.8 <= quota_ratio <= 1 + GATEWAYS * BURSTS / CALM_SECONDS


def check_counters(times: list[float], killed: list[float], counted: int) -> None:
    """Every byte is counted, unless its gateway was killed before reporting it."""
    lost = sum(any(when - LOST_SECONDS <= t <= when for when in killed) for t in times) * RECORD_BYTES
    passed = len(times) * RECORD_BYTES
    print(f"{passed} bytes passed, {counted} counted, {lost} may be lost")
    assert counted >= passed - lost
    assert counted <= passed * OVERHEAD + (len(killed) + 1) * IN_FLIGHT_BYTES
