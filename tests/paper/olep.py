"""Claims of "Online Event Processing" (Kleppmann, Beresford, Svingen; CACM 2019), by heading."""

from __future__ import annotations

from typing import Final

from tests.paper.claim import Claim

CLAIMS: Final = (
    Claim(
        "Figure 2",
        "Database, full-text index and cache subscribe to one log and apply the same writes in the same order.",
        ("penstock.olep.view.runner", "penstock.olep.view.fold", "penstock.olep.view.stores"),
        (
            "tests/olep/test_view_runner.py::test_all_stores_have_one_digest_whatever_their_batches",
            "tests/olep/test_view_contract.py::TestValkey",
            "tests/olep/test_view_contract.py::TestPostgres",
        ),
        rows=("O3",),
    ),
    Claim(
        "Polyglot persistence",
        "Operational data reaches a data warehouse in columnar form: a tenant's topic becomes a table.",
        ("penstock.pipeline.runner", "penstock.pipeline.lake", "penstock.pipeline.table_view"),
        (
            "tests/pipeline/test_tenant.py::test_a_tenant_reads_its_topic_through_the_gateway_and_its_group_shows_the_lag",
            "tests/pipeline/test_table_view.py::test_a_table_equals_the_replayed_log_at_its_position_and_at_earlier_ones",
            "tests/pipeline/test_append.py::test_every_record_is_in_the_table_once_over_several_runs",
        ),
        rows=("O3", "P1", "P2"),
    ),
    Claim(
        "Figure 2",
        "A subscriber that fails resumes with the events it has not processed; every event reaches every subscriber.",
        ("penstock.olep.view.runner", "penstock.olep.executor"),
        (
            "tests/olep/test_view_kill.py::test_a_view_killed_at_every_point_equals_the_replayed_log",
            "tests/olep/test_kill.py::test_an_executor_killed_at_any_fault_point_loses_and_doubles_nothing",
        ),
        rows=("O2", "O3"),
    ),
    Claim(
        "The log abstraction",
        "Durable and fault-tolerant: no event is lost when nodes fail.",
        ("penstock.olep.log", "penstock.fleet.supervisor"),
        (
            "tests/olep/test_chaos.py::test_no_cent_is_lost_while_brokers_are_killed_too",
            "tests/fleet/test_recovery.py::test_kill_9_of_any_process_loses_no_acknowledged_record_and_status_stays_right",
        ),
        rows=("O1",),
    ),
    Claim(
        "The log abstraction",
        "A subscriber reads from a given position and receives all later events in log order.",
        ("penstock.olep.log", "penstock.olep.position"),
        (
            "tests/olep/test_log.py::test_an_append_returns_the_position_right_after_it",
            "tests/olep/test_log.py::test_reading_up_to_a_token_gives_the_records_before_it",
        ),
        rows=("O1",),
    ),
    Claim(
        "The log abstraction",
        "Old events may be discarded: a truncated log starts later, and state that needs the lost start is refused.",
        ("penstock.olep.log", "penstock.olep.replay"),
        (
            "tests/olep/test_log.py::test_the_start_moves_when_records_are_deleted",
            "tests/olep/test_executor.py::test_an_executor_refuses_a_log_whose_start_was_deleted",
        ),
        rows=("O1",),
    ),
    Claim(
        "The log abstraction",
        "Old events may be discarded by key-based compaction, and views of a compacted log stay right.",
        ("penstock.olep.log",),
        rows=("O1",),
    ),
    Claim(
        "The log abstraction",
        "Partitioned: a key always goes to the same partition, and many logical logs share a partition.",
        ("penstock.olep.partitioner", "penstock.olep.event"),
        (
            "tests/olep/test_log.py::test_a_key_has_the_partition_that_other_clients_choose",
            "tests/olep/test_event.py::test_two_applications_on_one_partition_have_separate_streams",
        ),
        rows=("O1",),
    ),
    Claim(
        "Subscribers",
        "A subscriber's state survives crashes and is stored with the position it was computed at.",
        ("penstock.olep.store", "penstock.olep.partition_task"),
        (
            "tests/olep/test_store.py::test_a_committed_batch_is_there_when_the_store_is_opened_again",
            "tests/olep/test_executor.py::test_state_in_postgres_survives_a_kill",
            "tests/olep/test_executor.py::test_a_file_rolled_back_to_an_older_commit_loses_nothing",
        ),
        rows=("O2",),
    ),
    Claim(
        "Subscribers",
        "A subscriber may append events to any log, its input included.",
        ("penstock.olep.fold", "penstock.olep.outbox_sender"),
        (
            "tests/olep/test_fold.py::test_an_event_is_decided_and_emitted_events_have_derived_ids",
            "tests/olep/test_executor.py::test_a_pipeline_passes_events_from_log_to_log",
        ),
        rows=("O2",),
    ),
    Claim(
        "Subscribers",
        "A partition is processed sequentially with deterministic logic; impure decisions are detected.",
        ("penstock.olep.fold", "penstock.olep.purity"),
        (
            "tests/olep/test_replay.py::test_executor_state_equals_a_replay_under_other_hash_seeds",
            "tests/olep/test_executor.py::test_an_impure_program_is_stopped_with_nothing_applied",
            "tests/olep/test_executor.py::test_a_paused_executor_that_resumes_after_a_take_over_changes_nothing",
        ),
        rows=("O2",),
    ),
    Claim(
        "Exactly-once semantics",
        "Updates are idempotent: repeated events are recognised by their id and suppressed, in external stores too.",
        ("penstock.olep.deduplication", "penstock.olep.fold", "penstock.olep.view.fold"),
        (
            "tests/olep/test_fold.py::test_a_repeated_request_is_suppressed_and_its_first_offset_reported",
            "tests/olep/test_fold.py::test_derived_events_at_or_below_the_mark_are_suppressed",
            "tests/olep/test_view_fold.py::test_requests_and_derived_events_are_applied_once",
        ),
        rows=("O2",),
    ),
    Claim(
        "Figure 3, steps 1–2",
        "A payment starts as a request event with an id; the source account's executor checks balance and overdraft.",
        ("examples.payments.bank", "penstock.olep.executor"),
        (
            "tests/olep/test_bank.py::test_an_account_may_be_overdrawn_to_its_limit_and_no_further",
            "tests/examples/test_payments.py::test_the_bank_serves_http_and_survives_the_death_of_its_processes",
        ),
        rows=("O4",),
    ),
    Claim(
        "Figure 3, step 3",
        "A granted payment appends outgoing, incoming and fee events, all of which carry the original event id.",
        ("examples.payments.bank", "penstock.olep.event"),
        (
            "tests/olep/test_bank.py::test_a_payment_moves_money_and_is_on_both_statements",
            "tests/olep/test_bank.py::test_fees_go_to_the_fees_account_and_count_against_the_limit",
            "tests/olep/test_fold.py::test_an_emitted_event_carries_its_cause_and_request",
        ),
        rows=("O4",),
    ),
    Claim(
        "Figure 3, steps 4–5",
        "Duplicates are suppressed by the original event id, on every account.",
        ("penstock.olep.deduplication",),
        (
            "tests/olep/test_kill.py::test_a_caller_killed_around_its_append_repeats_the_request_and_is_charged_once",
            "tests/olep/test_money_conservation.py::test_no_interleaving_of_crashes_repeats_and_rollbacks_loses_or_doubles_a_cent",
        ),
        rows=("O4", "O5"),
    ),
    Claim(
        "Figure 3, step 6",
        "The server subscribes to the source-account log and returns the outcome to the waiting user.",
        ("penstock.olep.outcome",),
        (
            "tests/olep/test_outcome.py::test_a_caller_gets_the_outcome_of_its_request_and_of_a_repeat",
            "bench.olep::request-to-status-p50-1-in-flight",
        ),
        rows=("O4",),
    ),
    Claim(
        "Atomicity and enforcing constraints",
        "Executors crash and restart at any time without losing or doubling a payment.",
        ("penstock.olep.partition_task", "penstock.olep.outbox_sender"),
        (
            "tests/olep/test_kill.py::test_an_executor_killed_at_any_fault_point_loses_and_doubles_nothing",
            "tests/olep/test_chaos.py::test_no_cent_is_lost_while_brokers_are_killed_too",
            "tests/olep/test_money_conservation.py::test_no_interleaving_of_crashes_repeats_and_rollbacks_loses_or_doubles_a_cent",
        ),
        rows=("O5",),
    ),
    Claim(
        "Multipartition processing",
        "A decision over several logs is a pipeline of stages, each serialised with respect to one log.",
        ("penstock.olep.pipeline", "examples.payments.bank"),
        (
            "tests/olep/test_executor.py::test_a_pipeline_passes_events_from_log_to_log",
            "tests/olep/test_bank.py::test_a_destination_agrees_up_to_its_ceiling",
            "tests/olep/test_bank.py::test_a_refused_offer_gives_back_amount_and_fee",
        ),
        rows=("O4",),
    ),
    Claim(
        "Multipartition processing",
        "No partition waits for another: a hot account costs no more per payment than any other.",
        ("penstock.olep.executor",),
        ("bench.olep::flat-as-hot-share-grows", "bench.olep::flat-as-fee-share-grows"),
        rows=("O4",),
    ),
    Claim(
        "Multipartition processing",
        "Different executors handle different accounts, and hand them over while payments run.",
        ("penstock.olep.executor",),
        ("tests/olep/test_executor.py::test_two_executors_share_a_log_and_hand_over_in_the_middle",),
        rows=("O2", "O4"),
    ),
    Claim(
        "Multipartition processing",
        "The system scales linearly with partitions and executors.",
        ("penstock.olep.executor",),
        rows=("O1", "O4"),
    ),
    Claim(
        "Advantages",
        "New subscribers and views are added at any time and read the log from its beginning.",
        ("penstock.olep.view.rebuild", "examples.payments.spending"),
        (
            "tests/olep/test_bank.py::test_an_account_that_spends_beyond_the_limit_is_noticed_once_a_day",
            "tests/olep/test_view_rebuild.py::test_readers_and_the_writer_use_a_new_generation_after_the_swap",
            "tests/olep/test_view_kill.py::test_a_rebuild_killed_at_every_point_continues_and_swaps_once",
        ),
        rows=("O3",),
    ),
    Claim(
        "Advantages",
        "State is recomputed from the whole log at scale, on Spark, and executors continue from its exact position.",
        ("penstock.pipeline.olep_rebuild", "penstock.pipeline.olep_fold"),
        (
            "tests/pipeline/test_olep_rebuild.py::test_a_rebuild_equals_a_replay_and_an_executor_continues_from_it",
            "tests/pipeline/test_commands.py::test_rebuild_gives_the_state_of_a_replay",
        ),
        rows=("O3", "O4", "P2"),
    ),
    Claim(
        "Advantages",
        "Incorrect events are ignored, and views are recomputed once the program is corrected.",
        ("penstock.olep.rejected_events", "penstock.olep.view.rebuild"),
        (
            "tests/olep/test_executor.py::test_rejected_events_are_listed_and_retried_by_a_corrected_program",
            "tests/olep/test_view_runner.py::test_a_bad_event_is_skipped_and_listed_or_stops_the_view_by_policy",
            "tests/olep/test_view_rebuild.py::test_skipped_events_are_applied_by_the_corrected_projection",
        ),
        rows=("O3",),
    ),
    Claim(
        "Advantages",
        "Events can be replayed to diagnose what happened.",
        ("penstock.olep.replay",),
        (
            "tests/olep/test_replay.py::test_a_replay_stops_at_a_position_or_a_time",
            "tests/olep/test_replay.py::test_a_trace_shows_every_event_of_a_request_under_its_cause",
        ),
        rows=("O3",),
    ),
    Claim(
        "Advantages",
        "Subscribers progress independently: one that fails does not impede the others.",
        ("penstock.olep.view.runner",),
        (
            "tests/olep/test_view_runner.py::test_other_views_continue_while_a_store_is_down_and_it_catches_up",
        ),
        rows=("O3",),
    ),
    Claim(
        "Building upon event logs",
        "Applications that require it serialise reads through the log, and see their own writes.",
        ("penstock.olep.view.consistent_reads",),
        (
            "tests/olep/test_view_consistent_reads.py::test_a_read_through_the_log_is_as_of_its_appended_events",
            "tests/olep/test_view_consistent_reads.py::test_a_reader_sees_its_own_writes",
        ),
        rows=("O5",),
    ),
    Claim(
        "Disadvantages",
        "Left open by the paper, built here: snapshot isolation across data stores that are updated from a log.",
        ("penstock.olep.view.snapshot_reads", "penstock.olep.view.snapshot_position"),
        (
            "tests/olep/test_view_snapshot_reads.py::test_snapshots_of_a_running_bank_have_no_read_skew",
            "tests/olep/test_history_checker.py::test_random_histories_have_no_anomalies",
            "bench.views::snapshot-read-p50",
        ),
        rows=("O5",),
    ),
    Claim(
        "Case study: The New York Times",
        "The event that publishes an asset precedes those that reference it, in the one partition of all assets.",
        ("examples.newsroom.press", "examples.newsroom.settings"),
        (
            "tests/examples/test_newsroom.py::test_references_precede_referrers_whatever_the_order_of_submission",
            "tests/examples/test_newsroom.py::test_a_newspaper_is_published_read_searched_and_followed",
        ),
        rows=("O6",),
    ),
    Claim(
        "Case study: The New York Times",
        "The version published last is the latest version of an asset.",
        ("examples.newsroom.press", "examples.newsroom.site"),
        (
            "tests/examples/test_newsroom.py::test_a_later_version_replaces_a_parked_one",
            "tests/examples/test_newsroom.py::test_lists_by_tag_and_author_follow_the_latest_version_and_news_the_first",
        ),
        rows=("O6",),
    ),
    Claim(
        "Case study: The New York Times",
        "When an image or caption changes, every article that references it changes in caches and search indexes.",
        ("examples.newsroom.site",),
        (
            "tests/examples/test_newsroom.py::test_a_changed_caption_is_updated_on_every_page_and_in_the_search",
        ),
        rows=("O6",),
    ),
)
