"""Claims of "Persistent Kafka Consumer Lag-Based Scaler for KEDA", by section."""

from __future__ import annotations

from typing import Final

from tests.paper.claim import Claim

CLAIMS: Final = (
    Claim(
        "§4, §5.2",
        "Lag above the threshold for the whole sustain time scales up: more than 500 for 120 s.",
        ("penstock.scale.decision.group_rules", "penstock.scale.decision.verdict"),
        (
            "tests/scale/test_verdict.py::test_a_scale_up_comes_at_the_sample_nearest_to_the_end_of_the_sustain_time",
            "tests/scale/test_verdict.py::test_overload_that_lasts_scales_once_to_what_the_load_needs",
        ),
        rows=("S2",),
    ),
    Claim(
        "§4",
        "Transient lag spikes are ignored.",
        ("penstock.scale.decision.group_rules", "penstock.scale.decision.partition_state"),
        (
            "tests/scale/test_verdict.py::test_a_burst_that_drains_by_itself_requests_nothing",
            "tests/scale/test_verdict.py::test_high_dip_high_is_not_persistent",
            "tests/scale/test_scaling.py::test_a_burst_changes_nothing_overload_scales_up_once_and_recovery_down_once",
        ),
        rows=("S2",),
    ),
    Claim(
        "§5.1",
        "Lag is sampled for each partition at an interval, 10 s by default.",
        ("penstock.scale.sampler.cluster", "penstock.scale.sampler.kafka_source", "penstock.scale.settings"),
        (
            "tests/scale/test_cluster_sampler.py::test_all_groups_share_one_read_of_the_logs",
            "tests/scale/test_kafka_source.py::test_a_group_with_members_of_either_protocol",
            "tests/scale/test_window.py::test_lag_is_what_lies_between_commit_and_end",
        ),
        rows=("S1",),
    ),
    Claim(
        "§5.1, §6.1",
        "Recent samples are kept in a sliding window.",
        ("penstock.scale.decision.window", "penstock.scale.sampler.samples_topic"),
        (
            "tests/scale/test_window.py::test_rows_older_than_the_window_are_dropped",
            "tests/scale/test_external_scaler.py::test_two_instances_on_one_topic_agree_and_a_restart_keeps_the_window",
        ),
        rows=("S1",),
    ),
    Claim(
        "§5.2",
        "Lag that falls consistently causes no scaling.",
        ("penstock.scale.decision.partition_state", "penstock.scale.decision.verdict"),
        ("tests/scale/test_verdict.py::test_falling_lag_requests_nothing",),
        rows=("S2",),
    ),
    Claim(
        "§5.2",
        "Sustained low lag scales down.",
        ("penstock.scale.decision.group_rules", "penstock.scale.decision.verdict"),
        (
            "tests/scale/test_verdict.py::test_sustained_low_scales_down_once_to_what_the_load_needs",
            "tests/scale/test_scaling.py::test_a_burst_changes_nothing_overload_scales_up_once_and_recovery_down_once",
        ),
        rows=("S2",),
    ),
    Claim(
        "§5.3",
        "Moving averages or medians smooth the samples.",
        ("penstock.scale.decision.partition_facts",),
        (
            "tests/scale/test_partition_facts.py::test_one_outlier_changes_neither_the_smoothed_lag_nor_the_slope",
            "tests/scale/test_verdict.py::test_a_dip_of_one_sample_is_smoothed_away",
        ),
        rows=("S3",),
    ),
    Claim(
        "§5.3",
        "Hysteresis, a scale-up interval and a cool-down period prevent jitter.",
        ("penstock.scale.decision.group_rules",),
        (
            "tests/scale/test_verdict.py::test_between_the_two_thresholds_nothing_changes",
            "tests/scale/test_verdict.py::test_scale_ups_respect_their_interval",
            "tests/scale/test_verdict.py::test_scaling_down_waits_for_the_cool_down",
        ),
        rows=("S3",),
    ),
    Claim(
        "§6.1",
        "An adapter connects the scaler to KEDA as an external scaler over gRPC.",
        ("penstock.scale.external_scaler", "penstock.scale.server"),
        (
            "tests/scale/test_peer_keda.py::test_spec_value_and_activity_reach_the_hpa",
            "tests/scale/test_external_scaler.py::test_pressure_that_lasts_changes_the_value",
        ),
        rows=("S4",),
    ),
    Claim(
        "§7",
        "A ScaledObject configures it with scalerAddress, lagThreshold 500 and sustainSeconds 120.",
        ("penstock.scale.decision.policy",),
        (
            "tests/scale/test_policy.py::test_the_papers_metadata_is_valid",
            "tests/scale/test_docs.py::test_the_scaled_objects_metadata_is_valid",
        ),
        rows=("S4",),
    ),
    Claim(
        "§7",
        "Beyond the paper: its example counts high–low–high as persistent; here a dip restarts the sustain time.",
        ("penstock.scale.decision.partition_facts",),
        (
            "tests/scale/test_verdict.py::test_high_dip_high_is_not_persistent",
            "tests/scale/test_partition_facts.py::test_the_duration_of_high_lag_counts_from_the_last_dip",
        ),
        rows=("S2",),
    ),
    Claim(
        "§8.1",
        "Fewer false scalings and less flapping than KEDA's static threshold, on the same simulated traces.",
        ("penstock.scale.simulate",),
        (
            "bench.scale::scale-events",
            "bench.scale::flaps",
            "tests/scale/simulate/test_run.py::test_bursts_that_drain_by_themselves_cause_no_scaling_up",
        ),
        rows=("S5",),
    ),
    Claim(
        "§8.2, §3.3",
        "Scaling follows the delay users see: the lag objective is missed no longer than with KEDA's scaler.",
        ("penstock.scale.decision.group_rules", "penstock.scale.simulate"),
        (
            "bench.scale::late-total",
            "tests/scale/test_verdict.py::test_seconds_of_lag_can_be_the_threshold",
            "tests/scale/simulate/test_run.py::test_a_step_is_scaled_in_time_and_reverted_after_it",
        ),
        rows=("S5",),
    ),
    Claim(
        "§8.3",
        "Fewer pods: less replica time than KEDA's scaler, on the same simulated traces.",
        ("penstock.scale.simulate",),
        ("bench.scale::replica-minutes",),
        rows=("S5",),
    ),
    Claim(
        "§8",
        "The same savings, measured on a Kubernetes cluster with KEDA.",
        rows=("S5",),
    ),
)
