"""Claims of "A .NET parallel Kafka consumer proof of concept" (João Antunes, 2024), by heading."""

from __future__ import annotations

from typing import Final

from tests.paper.claim import Claim

CLAIMS: Final = (
    Claim(
        "Intro",
        "One consumer hands its records to many runners, so parallelism is not limited by the number of partitions.",
        ("penstock.consume.consumer", "penstock.consume.schedule", "penstock.consume.async_runners"),
        (
            "tests/consume/test_kafka.py::test_the_demo_of_the_paper_ten_runners_take_a_tenth_of_the_time",
            "tests/consume/test_consumer.py::test_plain_functions_run_concurrently_on_threads",
        ),
        rows=("C1",),
    ),
    Claim(
        "Base system design and flow",
        "Orchestrator, client proxy, offset controller, parallelism coordinator and runners exchange messages; no interleaving of them loses or reorders a record.",
        (
            "penstock.consume.orchestrator",
            "penstock.consume.client_proxy",
            "penstock.consume.messages",
            "penstock.consume.core",
        ),
        (
            "tests/consume/test_core.py::TestKeyOrder",
            "tests/consume/test_core.py::test_thousands_of_interleavings",
        ),
        rows=("C4",),
    ),
    Claim(
        "Base system design and flow",
        "A record is fetched only when runners and buffer have room.",
        ("penstock.consume.back_pressure", "penstock.consume.client_proxy"),
        (
            "tests/consume/test_back_pressure.py::test_a_partition_over_its_share_is_paused_only_after_a_delay",
            "tests/consume/test_back_pressure.py::test_records_on_their_way_to_the_orchestrator_count",
            "tests/consume/test_consumer.py::test_memory_stays_within_its_bound",
        ),
        rows=("C3",),
    ),
    Claim(
        "Committing offsets",
        "Only the contiguous prefix of finished records is committed: 34 done before 33 waits for 33.",
        ("penstock.consume.offset_controller",),
        (
            "tests/consume/test_offset_controller.py::test_finishing_34_commits_nothing_until_33_is_finished",
            "tests/consume/test_kafka.py::test_a_transaction_killed_with_34_done_and_33_not",
        ),
        rows=("C2",),
    ),
    Claim(
        "Committing offsets",
        "Every record is handled at least once; none is lost.",
        ("penstock.consume.offset_controller", "penstock.consume.consumer"),
        (
            "tests/consume/test_kill.py::test_members_killed_in_a_loop_lose_nothing",
            "tests/consume/test_kafka.py::test_nothing_is_lost_while_the_broker_restarts",
        ),
        rows=("C2", "C4"),
    ),
    Claim(
        "Committing offsets",
        "Commits are batched: one follows a number of finished records, or a few seconds.",
        ("penstock.consume.orchestrator", "penstock.consume.settings"),
        (
            "tests/consume/test_failures.py::test_records_are_committed_by_count",
            "tests/consume/test_failures.py::test_records_are_committed_by_time",
        ),
        rows=("C2",),
    ),
    Claim(
        "Cons of using Kafka like this",
        "Beyond the paper: records finished behind a slow one do not run again after a restart, because the finished offsets are stored with the commit.",
        ("penstock.model.offset_map", "penstock.consume.offset_controller"),
        (
            "tests/consume/test_consumer.py::test_records_finished_behind_a_slow_one_do_not_run_again_after_a_restart",
        ),
        rows=("C2",),
    ),
    Claim(
        "Coordinating parallel record handling",
        "Per partition or per key, records run in order and never overlap; unordered, they run without restriction.",
        ("penstock.consume.schedule",),
        (
            "tests/consume/test_consumer.py::test_records_of_one_key_or_partition_run_in_order_and_never_overlap",
            "tests/consume/test_schedule.py::test_queue_key_by_order",
        ),
        rows=("C1",),
    ),
    Claim(
        "Coordinating parallel record handling",
        "At most the configured number of records runs at once.",
        ("penstock.consume.schedule", "penstock.consume.runner"),
        ("tests/consume/test_kafka.py::test_the_demo_of_the_paper_ten_runners_take_a_tenth_of_the_time",),
        rows=("C1",),
    ),
    Claim(
        "Coordinating parallel record handling",
        "The number of records in memory besides those being handled is limited.",
        ("penstock.consume.back_pressure",),
        (
            "tests/consume/test_consumer.py::test_memory_stays_within_its_bound",
            "tests/consume/test_consumer.py::test_large_records_stay_within_buffer_bytes",
        ),
        rows=("C3",),
    ),
    Claim(
        "Coordinating parallel record handling",
        "Beyond the paper: a hot key does not leave runners idle while other partitions have work.",
        ("penstock.consume.back_pressure", "penstock.consume.schedule"),
        ("tests/consume/test_consumer.py::test_a_hot_key_does_not_delay_other_partitions",),
        rows=("C3",),
    ),
    Claim(
        "Handling errors",
        "Any unhandled error escalates to the root, and the whole consumer restarts with back-off; no record is lost.",
        ("penstock.consume.consumer", "penstock.consume.orchestrator"),
        (
            "tests/consume/test_consumer.py::test_a_broken_client_is_replaced_and_nothing_is_lost",
            "tests/consume/test_consumer.py::test_without_a_dead_letter_topic_the_consumer_restarts_and_loses_nothing",
        ),
        rows=("C4",),
    ),
    Claim(
        "Handling errors",
        "Left to the user there, built in here: retries, dead letters and filters.",
        ("penstock.consume.retry", "penstock.consume.completion", "penstock.consume.dead_letter"),
        (
            "tests/consume/test_consumer.py::test_a_failing_record_is_retried_before_its_followers",
            "tests/consume/test_consumer.py::test_a_poison_record_is_dead_lettered_with_failure_headers_and_the_rest_continues",
            "tests/consume/test_consumer.py::test_filter_and_deserializers_run_before_the_handler",
        ),
        rows=("C6",),
    ),
    Claim(
        "Outro",
        "The demo: 1,000 records of 100 ms, per key, parallelism 10, take 10 s instead of 100 s.",
        ("penstock.consume",),
        ("bench.consume::paper-demo",),
        rows=("C5",),
    ),
)
