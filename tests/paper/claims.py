"""From claim to evidence: a test as `file::name`, a line of a bench as `bench.area::line`.

The names of the claims are those of the paper's own sections or examples.
"""

from __future__ import annotations

from typing import Final

CONSUMER: Final = "A parallel Kafka consumer on the actor model"
OLEP: Final = "Online event processing"

CLAIMS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    CONSUMER: {
        "the demo: 1,000 records of 100 ms, per key, ten at a time, in ten seconds instead of a hundred": (
            "tests/consume/test_kafka.py::test_the_demo_of_the_paper_ten_lanes_make_a_hundred_seconds_ten",
            "bench.consume::demo-of-the-paper",
        ),
        "parallel per partition, per key, or without order": (
            "tests/consume/test_consumer.py::test_order_is_kept_and_nothing_of_one_lane_overlaps",
            "tests/consume/test_schedule.py::test_lanes_by_order",
        ),
        "offset 34 done before 33 is not committed before 33 is done": (
            "tests/consume/test_offsets.py::test_34_before_33_is_held_back_and_33_releases_both",
            "tests/consume/test_kafka.py::test_a_transaction_killed_with_34_done_and_33_not",
        ),
        "back pressure: no more is fetched than there is room for": (
            "tests/consume/test_consumer.py::test_memory_stays_within_its_bound",
            "tests/consume/test_consumer.py::test_large_records_stay_within_the_bytes",
        ),
        "any failure restarts the whole, and nothing is lost": (
            "tests/consume/test_consumer.py::test_a_broken_client_is_replaced_and_nothing_is_lost",
            "tests/consume/test_kill.py::test_members_killed_in_a_loop_lose_nothing",
        ),
        "left to the reader there: retries, dead letters, filters": (
            "tests/consume/test_consumer.py::test_a_failing_record_is_retried_before_its_followers",
            (
                "tests/consume/test_consumer.py::"
                "test_a_poison_record_goes_to_the_dead_letters_with_its_story_and_the_rest_flows"
            ),
            "tests/consume/test_consumer.py::test_filters_and_deserialisers_come_before_the_handler",
        ),
    },
    OLEP: {
        "atomicity without distributed transactions: a payment happens whole or not at all": (
            (
                "tests/olep/test_money.py::"
                "test_no_interleaving_of_crashes_repeats_and_rollbacks_loses_or_doubles_a_cent"
            ),
            "tests/olep/test_chaos.py::test_no_cent_is_lost_while_brokers_are_killed_too",
        ),
        "an executor that fails starts again from its last position and applies nothing twice": (
            "tests/olep/test_kill.py::test_an_executor_killed_at_work_loses_and_doubles_nothing",
            "tests/olep/test_executor.py::test_a_file_rolled_back_to_an_older_commit_costs_nothing",
        ),
        "a hot account is an account like any other: no lock is held for it": (
            "bench.olep::flat-as-hot-share-grows",
        ),
        "a subscriber is added later and starts at the log's beginning": (
            "tests/olep/test_bank.py::test_an_account_that_spends_beyond_the_limit_is_noticed_once_a_day",
        ),
        "decisions over several logs by a pipeline of stages": (
            "tests/olep/test_executor.py::test_a_pipeline_hands_events_from_log_to_log",
        ),
    },
}
