"""What a restore in place would do, and why it may not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.backup.chain import Chain, chain_of
from penstock.backup.in_place.plan import (
    InPlaceFacts,
    InPlacePlan,
    InPlaceRequest,
    LivePartition,
    plan_in_place,
)
from penstock.backup.layout import Gap
from penstock.model.shadow_ids import SHADOW_IDS
from tests.backup.test_chain import segment
from tests.tier.segments import NOW_MS, TOPIC_ID

REQUEST = InPlaceRequest("orders", TOPIC_ID)
FACTS = InPlaceFacts(frozenset((1, 2, 3)), 10_000, 30, 0.0)
CHAINS = {0: chain_of([segment(0, 9)])}
LIVE = LivePartition((1, 2, 3), (2, 1, 3), start=5, end=12)
HOUR_MS = 3_600_000


def plan(
    *,
    chains: dict[int, Chain] | None = None,
    request: InPlaceRequest = REQUEST,
    configs: dict[str, str | None] | None = None,
    gaps: dict[int, tuple[Gap, ...]] | None = None,
    partition: LivePartition = LIVE,
    **facts: Any,
) -> InPlacePlan:
    return plan_in_place(
        request, chains or CHAINS, gaps or {}, {0: partition}, configs or {}, replace(FACTS, **facts),
        NOW_MS + HOUR_MS,
    )  # fmt: skip


def test_a_plan_names_what_each_partition_lacks() -> None:
    planned = plan(configs={"min.insync.replicas": "2"})
    assert planned.refusals == ()
    (one,) = planned.partitions
    assert (one.start, one.end, one.replicas) == (0, 5, (1, 2, 3))
    assert planned.needed == 2


def test_a_topic_that_lacks_nothing_is_refused() -> None:
    assert plan(partition=replace(LIVE, start=0)).refusals == ("the backup has nothing below its log starts",)


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"cleanup.policy": "compact,delete"}, "compacted"),
        ({"remote.storage.enable": "true"}, "tiered"),
        ({"min.insync.replicas": "3"}, "3 others must be in sync"),
        ({"retention.ms": "1000"}, "beyond retention.ms"),
        ({"retention.bytes": "99"}, "more than its retention.bytes"),
    ],
)
def test_a_topic_that_does_not_allow_it_is_a_reason_against(
    configs: dict[str, str | None], reason: str
) -> None:
    (refusal,) = plan(configs=configs).refusals
    assert reason in refusal


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"live": frozenset((1, 2))}, "2 brokers"),
        ({"free_bytes": 199}, "200 are needed"),
        ({"metadata_level": 31}, "31 is not tested"),
        ({"clock_skew_seconds": -301.0}, "clocks differ by -301 s"),
        ({"is_mirror": True}, "mirror"),
        ({"running": "restore-1"}, "restore-1"),
        ({"interventions": ("a reassignment",)}, "a reassignment is under way"),
    ],
)
def test_a_cluster_that_is_not_fit_is_a_reason_against(facts: dict[str, Any], reason: str) -> None:
    (refusal,) = plan(**facts).refusals
    assert reason in refusal


@pytest.mark.parametrize(
    ("live", "reason"),
    [
        ({"isr": (1, 2)}, "only [1, 2] are in sync"),
        ({"differs": "the batch at offset 5 is another one"}, "the batch at offset 5"),
        ({"replicas": (1, 2, SHADOW_IDS[0]), "isr": (1, 2, SHADOW_IDS[0])}, "a shadow"),
    ],
)
def test_a_partition_that_is_not_fit_is_a_reason_against(live: dict[str, Any], reason: str) -> None:
    (refusal,) = plan(partition=replace(LIVE, **live)).refusals
    assert refusal.startswith("partition 0: ")
    assert reason in refusal


def test_producers_never_wait_longer_than_is_allowed() -> None:
    (refusal,) = plan(request=replace(REQUEST, pause_seconds=0.000001)).refusals
    assert "producers would wait" in refusal


def test_a_longer_retention_makes_it_possible() -> None:
    request = replace(REQUEST, retention_ms=-1)
    assert plan(request=request, configs={"retention.ms": "1000"}).refusals == ()


def test_missing_segments_are_refused_and_recorded_gaps_are_not() -> None:
    chains = {0: chain_of([segment(0, 2), segment(4, 9)])}
    (refusal,) = plan(chains=chains).refusals
    assert "offsets 3 to 3 are missing" in refusal
    planned = plan(chains=chains, gaps={0: (Gap(TOPIC_ID, 0, 3, 3),)})
    assert planned.refusals == ()
    assert "offsets 3 to 3" in planned.warnings[0]
