"""What a restore would do, and why it may not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.backup.chain import Chain, chain_of
from penstock.backup.layout import Gap
from penstock.backup.restore_plan import ClusterFacts, Request, RestorePlan, plan_restore
from penstock.backup.restore_steps import STEPS, Step, needs_shadow, steps_left
from penstock.backup.sources import Replicas, choose_sources
from penstock.model.shadow_ids import SHADOW_IDS
from tests.backup.test_chain import segment
from tests.tier.segments import NOW_MS, TOPIC_ID

REQUEST = Request(TOPIC_ID, "orders", "orders")
FACTS = ClusterFacts(3, 10_000, has_authorizer=True, target_exists=False, metadata_level=30)
CHAINS = {0: chain_of([segment(0, 9)]), 1: Chain(empty_at=4)}
HOUR_MS = 3_600_000


def plan(
    *,
    chains: dict[int, Chain] | None = None,
    request: Request = REQUEST,
    configs: dict[str, str | None] | None = None,
    gaps: dict[int, tuple[Gap, ...]] | None = None,
    **facts: Any,
) -> RestorePlan:
    known = CHAINS if chains is None else chains
    return plan_restore(request, known, gaps or {}, configs or {}, replace(FACTS, **facts), NOW_MS + HOUR_MS)


def test_a_plan_names_every_partition_with_its_range() -> None:
    planned = plan(configs={"retention.ms": "-1", "segment.bytes": "1048576"})
    assert planned.refusals == ()
    assert [(one.start, one.end) for one in planned.partitions] == [(0, 10), (4, 4)]
    assert planned.log_bytes == 100
    assert planned.configs == {"retention.ms": "-1", "segment.bytes": "1048576"}


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"brokers": 1}, "1 brokers"),
        ({"free_bytes": 199}, "200 are needed"),
        ({"has_authorizer": False}, "authorizer"),
        ({"target_exists": True}, "--as"),
        ({"metadata_level": 31}, "31 is not tested"),
        ({"running": "restore-1"}, "restore-1"),
        ({"interventions": ("a reassignment",)}, "a reassignment is under way"),
    ],
)
def test_a_cluster_that_is_not_fit_is_a_reason_against(facts: dict[str, Any], reason: str) -> None:
    (refusal,) = plan(**facts).refusals
    assert reason in refusal


def test_free_disk_that_is_not_known_is_no_reason() -> None:
    assert plan(free_bytes=-1).refusals == ()


@pytest.mark.parametrize("target", ["__offsets", "_penstock.registry", "", "x" * 250])
def test_names_of_internal_topics_are_refused(target: str) -> None:
    assert plan(request=replace(REQUEST, target=target)).refusals


def test_a_missing_segment_is_a_reason_against() -> None:
    chains = {0: chain_of([segment(0, 4), segment(8, 9)])}
    (refusal,) = plan(chains=chains).refusals
    assert "offsets 5 to 7 are missing" in refusal


def test_a_recorded_gap_is_a_warning() -> None:
    chains = {0: chain_of([segment(0, 4), segment(8, 9)])}
    planned = plan(chains=chains, gaps={0: (Gap(TOPIC_ID, 0, 5, 7),)})
    assert planned.refusals == ()
    assert "offsets 5 to 7" in planned.warnings[0]


def test_retention_that_would_delete_again_is_a_reason_against() -> None:
    assert "retention.ms" in plan(configs={"retention.ms": "1000"}).refusals[0]
    assert "retention.bytes" in plan(configs={"retention.bytes": "99"}).refusals[0]
    assert plan(configs={"retention.ms": "1000", "cleanup.policy": "compact"}).refusals == ()
    longer = plan(configs={"retention.ms": "1000"}, request=replace(REQUEST, retention_ms=-1))
    assert (longer.refusals, longer.configs["retention.ms"]) == ((), "-1")


def test_tiering_is_not_restored_and_that_is_stated() -> None:
    planned = plan(configs={"remote.storage.enable": "true"})
    assert planned.configs == {}
    assert planned.warnings == ("not restored: remote.storage.enable",)


def test_a_topic_without_partitions_is_refused() -> None:
    assert plan(chains={}).refusals == ("the backup has no partition of it",)


def test_steps_follow_each_other() -> None:
    assert steps_left(None) == STEPS
    assert steps_left(Step.PROVED) == (Step.CONFIGURED, Step.OPENED)
    assert needs_shadow(Step.OBJECTS)
    assert not needs_shadow(Step.RETURNED)


def test_partitions_are_archived_from_followers_in_equal_parts() -> None:
    replicas = {n: Replicas(1, (1, 2, 3)) for n in range(10)}
    chosen = choose_sources(replicas, [1, 2, 3])
    assert sorted(chosen.values()) == [2] * 5 + [3] * 5


@pytest.mark.parametrize(
    ("replicas", "live", "avoid", "expected"),
    [
        (Replicas(1, (1,)), [1], (), {0: 1}),  # the leader, if there is no follower
        (Replicas(1, (1, 2)), [1], (), {0: 1}),  # or none that lives
        (Replicas(1, (1, 2, 3)), [1, 2, 3], (2,), {0: 3}),
        (Replicas(1, (1, 2)), [1, 2], (2,), {0: 2}),  # rather a follower that failed than the leader
        (Replicas(-1, ()), [1], (), {}),
        (Replicas(SHADOW_IDS[0], (SHADOW_IDS[0], 2)), [SHADOW_IDS[0], 2], (), {0: 2}),
    ],
)
def test_the_source_of_a_partition(
    replicas: Replicas, live: list[int], avoid: tuple[int, ...], expected: dict[int, int]
) -> None:
    assert choose_sources({0: replicas}, live, avoid=avoid) == expected
