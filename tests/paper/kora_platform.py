"""Claims of the Kora paper (VLDB 2023), sections 1 to 4: the platform."""

from __future__ import annotations

from typing import Final

from tests.paper.claim import Claim

_DAILY_AUDIT: Final = "tests/pipeline/test_durability.py"
_HEALING: Final = "tests/control/test_healing_with_kafka.py"
_LIVE_AUDIT: Final = "tests/audit/test_live_with_kafka.py"
CLAIMS: Final = (
    Claim(
        "§1, §5",
        "Users pay only for what they use: usage is metered to the byte.",
        (
            "penstock.gateway.limits.metering",
            "penstock.pipeline.jobs.metering",
            "penstock.pipeline.jobs.invoices",
        ),
        (
            "tests/pipeline/test_tenant.py::test_metered_usage_equals_the_gateway_s_counters_to_the_byte",
            "tests/pipeline/test_metering.py::test_late_repeated_and_lost_reports_never_count_twice",
        ),
        rows=("P2",),
    ),
    Claim(
        "§3.1",
        "No acknowledged record is lost when any process fails, and the process comes back.",
        ("penstock.fleet.supervisor", "penstock.fleet.node_watch"),
        (
            "tests/fleet/test_recovery.py::test_kill_9_of_any_process_loses_no_acknowledged_record_and_status_stays_right",
        ),
        rows=("K3", "K12"),
    ),
    Claim(
        "§3.2",
        "Users specify cluster requirements through the control plane's HTTP API.",
        ("penstock.control.api", "penstock.control.decisions"),
        ("tests/control/test_api.py::test_a_cluster_is_requested_in_terms_of_its_workload",),
        rows=("K1", "K5"),
    ),
    Claim(
        "§3.2",
        "The logical cluster is the unit of provisioning; a physical cluster hosts one or more of them.",
        ("penstock.control.decisions", "penstock.control.effects"),
        (
            "tests/control/test_service.py::test_a_new_cluster_has_its_user_acls_and_state",
            "tests/gateway/test_librdkafka.py::test_two_tenants_with_the_same_topic_name_have_separate_records",
        ),
        rows=("K1",),
    ),
    Claim(
        "§3.2",
        "The control plane allocates brokers for a dedicated cluster and releases them, as local processes.",
        ("penstock.control.physical.local", "penstock.control.physical.adopted"),
        (
            "tests/control/test_physical.py::test_a_dedicated_cluster_gets_dedicated_brokers_and_releases_them",
        ),
        rows=("K1",),
    ),
    Claim(
        "§3.2", "The control plane allocates cloud resources and places them with Kubernetes.", rows=("K1",)
    ),
    Claim(
        "§3.2",
        "Brokers and replicas are spread evenly across availability zones.",
        ("penstock.fleet.spec_file", "penstock.balance.replica_placement"),
        (
            "tests/fleet/test_spec_file.py::test_brokers_are_spread_over_the_zones",
            "tests/gateway/test_librdkafka.py::test_replicas_of_a_new_topic_are_in_distinct_zones",
        ),
        rows=("K1", "K16"),
    ),
    Claim(
        "§3.2",
        "Quotas and API keys reach the physical cluster over the Kafka protocol and are stored in internal topics.",
        (
            "penstock.control.gateways.state_publisher",
            "penstock.gateway.process.tenant_source",
            "penstock.model.tenant_state",
        ),
        (
            "tests/control/test_gateway_files.py::test_keys_reach_the_gateway_when_created_rotated_and_revoked",
            "tests/control/test_service.py::test_client_quotas_follow_the_quota_and_are_deleted_with_the_tenant",
        ),
        rows=("K1",),
    ),
    Claim(
        "§3.2",
        "Control plane and data plane are decoupled: tenants work and gateways start while no control plane runs.",
        ("penstock.gateway.process.tenant_source",),
        (
            "tests/control/test_gateway_files.py::test_gateways_start_and_serve_while_no_control_plane_runs",
            "tests/control/test_physical.py::test_tenants_work_and_gateways_start_while_home_cluster_and_control_plane_are_down",
        ),
        rows=("K1", "K2"),
    ),
    Claim(
        "§3.2",
        "Users use standard Kafka clients; the client APIs remain the same.",
        ("penstock.gateway.connection.connection", "penstock.gateway.tenancy.apis", "penstock.wire"),
        (
            "tests/gateway/test_java.py::test_java_clients_of_two_tenants_work_at_once_under_the_same_names",
            "tests/gateway/test_librdkafka.py::test_a_transaction_commits_records_and_offsets_or_neither",
            "tests/gateway/test_kafka_python.py::test_two_tenants_produce_and_consume_under_the_same_names",
            "tests/gateway/test_aiokafka.py::test_two_tenants_produce_and_consume_under_the_same_names",
            "tests/gateway/test_peer_go.py::test_franz_go_as_two_tenants_sees_each_its_own_cluster",
        ),
        rows=("K2", "K17"),
    ),
    Claim(
        "§3.2",
        "The proxy routes to individual brokers by SNI.",
        ("penstock.gateway.process.sni_hosts", "penstock.gateway.process.server"),
        ("tests/gateway/test_server.py::test_the_host_name_selects_tenant_and_broker",),
        rows=("K2",),
    ),
    Claim(
        "§3.2",
        "The proxy is stateless and scales separately from brokers.",
        ("penstock.gateway.process.run", "penstock.gateway.process.worker_supervisor"),
        (
            "tests/gateway/test_replacement.py::test_nothing_is_lost_while_gateways_are_replaced",
            "tests/gateway/test_drain.py::test_clients_with_default_settings_see_no_error_during_a_replacement",
            "tests/gateway/test_workers.py::test_two_workers_are_replaced_under_load_without_client_errors",
        ),
        rows=("K2",),
    ),
    Claim(
        "§3.2",
        "The proxy supports large clusters without running out of ports.",
        ("penstock.gateway.process.upstream",),
        rows=("K2",),
    ),
    Claim(
        "§3.2",
        "Network access rules and connection limits are enforced at the proxy before the broker authenticates.",
        ("penstock.gateway.limits.admission", "penstock.gateway.config"),
        (
            "tests/gateway/test_endurance.py::test_connections_beyond_the_limit_or_outside_the_networks_are_refused",
            "tests/gateway/test_decisions.py::test_deny_rules_come_first_and_ipv4_mapped_addresses_match",
            "tests/gateway/test_decisions.py::test_each_bound_has_a_denial_reason",
        ),
        rows=("K2",),
    ),
    Claim(
        "§3.2, §4.4",
        "Every component exposes telemetry for its key performance indicators.",
        (
            "penstock.metrics_server",
            "penstock.kafka.broker_metrics",
            "penstock.gateway.process.metrics",
            "penstock.gateway.tenancy.telemetry",
            "penstock.control.metrics",
            "penstock.quota.metrics",
        ),
        (
            "tests/kafka/test_broker_metrics.py::test_a_real_broker_counts_what_was_produced",
            "tests/kafka/test_broker_metrics.py::test_a_real_controller_reports_the_number_of_active_brokers",
            "tests/gateway/test_server.py::test_metrics_are_served_with_bounded_labels",
            "tests/gateway/test_telemetry.py::test_client_metrics_show_for_their_tenant_alone",
            "tests/control/test_api.py::test_metrics_and_health_need_no_token",
            "tests/quota/test_metrics.py::test_use_and_grants_of_a_tenant_are_summed_over_all_gateways",
            "tests/consume/test_metrics.py::test_metrics_show_finished_running_and_waiting_records",
            "tests/olep/test_metrics.py::test_an_executor_exports_its_counters_and_the_position_of_its_partitions",
            "tests/scale/test_external_scaler.py::test_metrics_of_a_watch_are_exported_until_it_expires",
            "tests/pipeline/test_metrics.py::test_metrics_label_a_job_with_its_consumer_group",
        ),
        rows=("K10",),
    ),
    Claim(
        "§3.3",
        "Cluster metadata is in an internal topic with a Raft-based protocol (KRaft), not in ZooKeeper.",
        ("penstock.fleet.kafka_properties", "penstock.kafka.quorum"),
        (
            "tests/kafka/test_quorum.py::test_the_metadata_log_holds_every_change_in_order",
            "tests/kafka/test_quorum.py::test_the_whole_log_can_be_read_from_its_start",
        ),
        rows=("K3",),
    ),
    Claim(
        "§3.3",
        "Controllers run in processes separate from brokers.",
        ("penstock.fleet.spec", "penstock.fleet.spec_file"),
        (
            "tests/fleet/test_spec_file.py::test_by_default_a_cluster_has_one_controller_and_three_brokers_in_three_zones",
            "tests/kafka/test_quorum.py::test_brokers_and_controllers_describe_the_same_quorum",
        ),
        rows=("K3",),
    ),
    Claim(
        "§3.3",
        "Standby controllers follow the metadata log and take over at once when the active one fails.",
        rows=("K3",),
    ),
    Claim("§3.3", "All brokers can be rolled while the controller stays stable.", rows=("K3", "K16")),
    Claim(
        "§3.4",
        "New data is on local disks; as it ages, it moves to an object store and is removed locally.",
        ("penstock.tier", "penstock.fleet.tier_properties"),
        (
            "tests/tier/test_tiered_topics.py::test_records_read_back_from_the_store",
            "tests/tier/test_plugin_contract.py::test_the_stored_objects_are_format_1",
        ),
        rows=("K4",),
    ),
    Claim(
        "§3.4", "Tier metadata is published to an internal topic, which every replica follows.", rows=("K4",)
    ),
    Claim(
        "§3.4",
        "Reads outside the local data are served from the object store.",
        ("penstock.tier", "penstock.fleet.tier_properties"),
        (
            "tests/tier/test_tiered_topics.py::test_records_read_back_from_the_store",
            "tests/tier/test_plugin_contract.py::test_all_readers_share_one_get_of_a_chunk",
        ),
        rows=("K4",),
    ),
    Claim(
        "§3.4", "Rebalancing moves only the active set, and local disks do not limit retention.", rows=("K4",)
    ),
    Claim(
        "§4.1",
        "A capacity unit (CKU) states maximum ingress, egress, request rate, connections, connection rate, partitions.",
        ("penstock.control.capacity_units",),
        (
            "tests/control/test_capacity_units.py::test_the_units_cover_the_needs_and_one_less_would_not",
            "tests/control/test_capacity_units.py::test_the_scarcest_dimension_decides",
        ),
        rows=("K5",),
    ),
    Claim(
        "§4.1",
        "The unit is the minimum size of a cluster, and the step by which a logical cluster grows or shrinks.",
        ("penstock.control.capacity_units", "penstock.control.decisions"),
        (
            "tests/control/test_capacity_units.py::test_without_needs_a_cluster_has_one_unit",
            "tests/cli/test_tenants.py::test_clusters_are_listed_shown_changed_moved_and_deleted",
        ),
        rows=("K5",),
    ),
    Claim(
        "§4.1",
        "Clusters with equal units perform comparably for the same workload on three clouds.",
        rows=("K5",),
    ),
    Claim(
        "§4.1",
        "A cluster's load, that of its most loaded broker, is shown to users.",
        ("penstock.balance.broker_load", "penstock.control.api.load_routes", "penstock.cli.operator.balance"),
        (
            "tests/balance/test_broker_load.py::test_the_load_of_a_cluster_is_that_of_its_most_loaded_broker",
            "tests/control/test_load_api.py::test_the_load_of_a_cluster_is_shown_with_its_brokers",
            "tests/cli/test_balance.py::test_the_load_of_brokers_is_shown_with_what_it_is_made_of",
        ),
        rows=("K6",),
    ),
    Claim(
        "§4.1.1",
        "Broker load at low utilisation: the share of time its network and request threads are busy.",
        ("penstock.balance.broker_load", "penstock.kafka.broker_metrics"),
        (
            "tests/balance/test_broker_load.py::test_utilisation_decides_at_low_load_and_waits_at_high_load",
            "tests/control/test_load_observation.py::test_the_load_of_real_brokers_is_measured_published_and_restored",
        ),
        rows=("K6",),
    ),
    Claim(
        "§4.1.1",
        "Broker load at high utilisation: Kingman's formula on a 1-minute decaying average of queue waits (G/G/1).",
        ("penstock.balance.broker_load", "penstock.kafka.broker_metrics"),
        (
            "tests/balance/test_broker_load.py::test_kingmans_formula_is_inverted",
            "tests/balance/test_broker_load.py::test_averages_do_not_depend_on_the_distance_of_scrapes",
            "tests/balance/test_broker_load.py::test_load_grows_with_the_offered_load_where_waits_explode",
        ),
        rows=("K6",),
    ),
    Claim(
        "Figure 3", "Broker load tracks CPU use linearly while latency grows far more steeply.", rows=("K6",)
    ),
    Claim(
        "§4.2.1",
        "Lower bounds rule out hardware.",
        ("penstock.balance.sizing", "penstock.balance.profiles"),
        (
            "tests/balance/test_sizing.py::test_each_bound_decides_where_it_is_the_scarce_one",
            "tests/control/test_sizing.py::test_profiles_are_listed_and_checked",
        ),
        rows=("K7",),
    ),
    Claim(
        "§4.2.1",
        "Performance tests judge the hardware that is left, and its roll-out is staged.",
        rows=("K7",),
    ),
    Claim(
        "§4.2",
        "Measured load and prices decide a cluster's size, with its cost by driver.",
        (
            "penstock.balance.advice",
            "penstock.balance.cost",
            "penstock.control.size.sizing",
            "penstock.control.size.automatic",
        ),
        (
            "tests/control/test_sizing.py::test_advice_has_its_number_and_what_would_change_it",
            "tests/control/test_automatic_with_kafka.py::test_rising_work_grows_a_cluster_and_falling_work_shrinks_it_once",
            "tests/balance/test_cost.py::test_each_driver_is_charged_for_what_it_is",
            "bench.sizing::cost-to-oracle",
        ),
        rows=("K7",),
    ),
    Claim("§4.2.1", "Right-sizing improved the fleet's P99 latency by a factor of 3.", rows=("K7",)),
    Claim(
        "§4.2.2, §3.2",
        "A cheaper single-zone option keeps all of a cluster's brokers in one zone.",
        ("penstock.control.cluster_placement",),
        ("tests/control/test_decisions.py::test_a_single_zone_cluster_stays_in_its_zone",),
        rows=("K7",),
    ),
    Claim(
        "§4.2.2",
        "Brokers choose a follower in the client's zone for fetches: their replica selector is rack-aware.",
        ("penstock.fleet.kafka_properties",),
        ("tests/fleet/test_kafka_properties.py::test_the_properties_the_platform_needs_are_set",),
        rows=("K7",),
    ),
    Claim(
        "§4.2.2",
        "A tenant's consumer is served by a follower in its own zone, through the proxy.",
        rows=("K7",),
    ),
    Claim(
        "§4.2.3",
        "Supporting services share the broker's machine, about 80 % of which is reserved for it, in sizing.",
        ("penstock.balance.sizing",),
        ("tests/balance/test_sizing.py::test_services_share_machines_with_brokers_if_they_fit",),
        rows=("K7",),
    ),
    Claim(
        "§4.3",
        "Replicas move between brokers while clients keep working.",
        (
            "penstock.balance.executing",
            "penstock.balance.execute",
            "penstock.balance.replication_throttle",
        ),
        (
            "tests/balance/test_execute.py::test_clients_work_through_a_move_and_lose_nothing",
            "tests/balance/test_execute.py::test_a_killed_move_is_resumed_by_calling_it_again",
            "bench.cells::move-client-errors",
        ),
        rows=("K8", "K9"),
    ),
    Claim(
        "§4.3.1",
        "A blend of ingress, egress, disk use and broker load is balanced over brokers.",
        ("penstock.balance.planner", "penstock.control.load.planning", "penstock.control.load.balancing"),
        (
            "tests/balance/test_planner.py::test_a_skewed_cluster_becomes_even",
            "tests/balance/test_plans.py::test_a_skewed_topic_is_planned_run_and_balanced",
            "tests/control/test_balancing.py::test_auto_runs_the_plan_and_reports_it",
        ),
        rows=("K8",),
    ),
    Claim(
        "§4.3.1",
        "Balancing between cells weighs reactivity against stability: brief peaks move nothing, moves are bounded.",
        ("penstock.balance.cell_relief",),
        (
            "tests/balance/test_cell_relief.py::test_a_brief_load_peak_moves_no_tenant",
            "tests/balance/test_cell_relief.py::test_the_number_of_moves_per_hour_is_bounded",
            "tests/balance/test_cell_relief.py::test_rounds_come_to_rest_and_fill_no_cell",
        ),
        rows=("K8", "K21"),
    ),
    Claim(
        "§4.3.1",
        "Prioritised goals: a move must be accepted by all goals of higher priority.",
        ("penstock.balance.goals", "penstock.balance.planner"),
        ("tests/balance/test_planner.py::test_a_plan_breaks_no_hard_goal_and_worsens_no_soft_one",),
        rows=("K8",),
    ),
    Claim(
        "§4.3.1",
        "Triggering goals start a round; balancing goals are best effort.",
        ("penstock.balance.goals", "penstock.balance.rounds", "penstock.control.load.balancing"),
        (
            "tests/balance/test_planner.py::test_violations_of_triggering_goals_start_a_round",
            "tests/balance/test_rounds.py::test_a_violation_must_last_before_a_plan_is_made",
            "tests/control/test_balancing.py::test_advice_is_one_plan_that_waits",
            "tests/control/test_planning.py::test_what_cannot_be_reached_is_reported",
        ),
        rows=("K8",),
    ),
    Claim(
        "§4.3.1",
        "A broker's load is attributed by other metrics: to tenants, by their bytes.",
        ("penstock.control.load.relief_service", "penstock.control.observation"),
        ("tests/control/test_relief_service.py::test_handler_time_is_attributed_to_tenants_by_their_bytes",),
        rows=("K8",),
    ),
    Claim(
        "§4.3.1",
        "A broker's load is attributed to replicas, by topic and broker metrics, for hundreds of thousands of them.",
        rows=("K8",),
    ),
    Claim("Figure 5", "Rebalancing quickly removes a large latency skew between brokers.", rows=("K8",)),
    Claim(
        "§4.3.2",
        "Brokers are added to a running cluster, and tenants can use them.",
        ("penstock.control.size.resizing", "penstock.control.size.resize_steps", "penstock.fleet.resize"),
        (
            "tests/platform/test_resize.py::test_a_cell_is_added_to_a_fleet_that_runs_and_tenants_move_into_it",
            "tests/platform/test_resize.py::test_a_fleet_grows_and_shrinks_under_load_without_errors_or_restarts",
        ),
        rows=("K9",),
    ),
    Claim(
        "§4.3.2",
        "An expansion is complete when every new broker carries a fair share of the load.",
        ("penstock.balance.planner", "penstock.control.size.resize_steps"),
        ("tests/balance/test_planner.py::test_only_joining_brokers_receive_and_no_more_than_their_share",),
        rows=("K9",),
    ),
    Claim(
        "§4.3.2",
        "Replicas with the largest contribution move first, since a few cause most of the load.",
        ("penstock.balance.planner",),
        ("tests/balance/test_planner.py::test_joining_brokers_get_the_replicas_that_carry_most_first",),
        rows=("K9",),
    ),
    Claim(
        "§4.3",
        "A cluster shrinks: brokers are drained and removed.",
        (
            "penstock.control.size.resizing",
            "penstock.control.size.shrink_check",
            "penstock.control.size.resize_steps",
        ),
        (
            "tests/platform/test_resize.py::test_a_fleet_grows_and_shrinks_under_load_without_errors_or_restarts",
            "tests/control/test_resizing.py::test_shrinking_without_room_on_disk_is_refused_with_the_number_of_brokers_missing",
        ),
        rows=("K9",),
    ),
    Claim(
        "§4.4.1",
        "A health-check agent outside the network probes brokers through the proxy.",
        ("penstock.health.checker",),
        rows=("K10",),
    ),
    Claim(
        "§4.4.2",
        "100 produce and 100 consume probes each minute for each broker, on partitions that stay with it.",
        ("penstock.health.schedule", "penstock.health.checker"),
        (
            "tests/health/test_schedule.py::test_each_broker_gets_100_evenly_spaced_probes_a_minute",
            "tests/health/test_schedule.py::test_whatever_brokers_come_and_go_each_has_its_partitions",
        ),
        rows=("K10",),
    ),
    Claim(
        "§4.4.2",
        "Latency SLO: each minute's worst broker P99, the week's P99 per cluster, median and P90 over the fleet.",
        ("penstock.pipeline.jobs.slo", "penstock.health.slo"),
        (
            "tests/pipeline/test_slo.py::test_cluster_and_fleet_metrics_follow_the_paper_s_definition",
            "tests/pipeline/test_slo.py::test_the_live_budget_and_spark_agree_to_the_last_digit",
        ),
        rows=("K11", "P2"),
    ),
    Claim(
        "§4.4.2",
        "The fleet's P99 of the latency SLO.",
        ("penstock.pipeline.jobs.slo",),
        ("tests/pipeline/test_slo.py::test_cluster_and_fleet_metrics_follow_the_paper_s_definition",),
        rows=("K11",),
    ),
    Claim(
        "§4.4.2",
        "Availability of each cluster, by the same method.",
        ("penstock.pipeline.jobs.slo",),
        ("tests/pipeline/test_slo.py::test_cluster_and_fleet_metrics_follow_the_paper_s_definition",),
        rows=("K11", "P2"),
    ),
    Claim(
        "Figure 6",
        "The fleet's SLO is tracked week over week.",
        ("penstock.pipeline.jobs.slo_report",),
        ("tests/pipeline/test_story.py::test_reports_come_from_the_tables_of_platform_jobs",),
        rows=("K11",),
    ),
    Claim(
        "§4.5.3",
        "A broker that stops responding has a distinct state.",
        ("penstock.fleet.status", "penstock.fleet.node_watch"),
        (
            "tests/fleet/test_recovery.py::test_a_frozen_node_is_unresponsive_and_ready_again_when_it_continues",
        ),
        rows=("K12",),
    ),
    Claim(
        "§4.5.3",
        "A broker without probes and client traffic has lost its network, and is demoted.",
        ("penstock.health.detector", "penstock.control.health.mitigating"),
        (
            "tests/control/test_health_service.py::test_a_broker_that_is_cut_off_is_demoted_at_once_and_released_when_it_is_healthy",
        ),
        rows=("K12",),
    ),
    Claim(
        "§4.5.3",
        "A broker without storage progress is restarted, and fenced until its storage works.",
        rows=("K12",),
    ),
    Claim(
        "§4.5.3",
        "A broker slower than the rest of its cluster leaves the ISR and keeps replicating.",
        rows=("K12",),
    ),
    Claim(
        "§4.5.3",
        "An operator is notified when automatic mitigation does not work.",
        ("penstock.control.health.incidents", "penstock.control.health.notification"),
        (
            "tests/control/test_notification.py::test_a_webhook_is_signed_and_retried_after_errors_and_redirects",
            "tests/control/test_health_service.py::test_advice_is_an_incident_and_no_action",
        ),
        rows=("K12",),
    ),
    Claim(
        "§4.5.3",
        "12 degradations handled in 30 days; the uptime SLA rose from 99.95 % to 99.99 %.",
        rows=("K12",),
    ),
    Claim(
        "§4.6.1",
        "Cluster linking replicates the records of topics to another cluster, byte for byte.",
        ("penstock.link.mirror", "penstock.shadow.broker", "penstock.shadow.responses"),
        (
            "tests/link/test_with_kafka.py::test_a_mirror_is_identical_survives_a_crash_and_is_promoted",
            "tests/link/test_source_failures.py::test_a_mirror_follows_a_truncated_source_and_survives_its_loss",
        ),
        rows=("K13",),
    ),
    Claim(
        "§4.6.1",
        "Topic configs, ACLs, quotas and group offsets follow to the other cluster.",
        ("penstock.link.metadata_service", "penstock.link.metadata_sync", "penstock.link.group_sync"),
        (
            "tests/link/test_source_failures.py::test_a_mirror_follows_a_truncated_source_and_survives_its_loss",
            "tests/link/test_metadata_sync.py::test_an_acl_is_removed_only_if_the_link_has_copied_it",
        ),
        rows=("K13",),
    ),
    Claim(
        "§4.6.1",
        "After a failover consumers continue from their commits, also if the source is gone.",
        ("penstock.link.promotion", "penstock.link.runner"),
        (
            "tests/link/test_with_kafka.py::test_a_mirror_is_identical_survives_a_crash_and_is_promoted",
            "tests/link/test_source_failures.py::test_a_mirror_follows_a_truncated_source_and_survives_its_loss",
        ),
        rows=("K13",),
    ),
    Claim(
        "§4.6.1",
        "Failover repoints clients: users and keys are on the other cluster, and clients move by themselves.",
        rows=("K13",),
    ),
    Claim(
        "§4.6.2",
        "Tiered data and metadata are kept for N days; a deleted prefix can be restored.",
        ("penstock.backup", "penstock.backup.expiry", "penstock.tier.sweep"),
        (
            "tests/backup/test_expiry.py::test_nothing_that_a_time_of_the_window_needs_is_deleted",
            "tests/backup/test_with_kafka.py::test_deleted_topics_come_back_at_their_offsets",
            "tests/backup/test_in_place_with_kafka.py::test_a_deleted_prefix_returns_while_producers_keep_writing",
            "tests/tier/test_sweep.py::test_whatever_goes_fulfils_all_conditions",
        ),
        rows=("K14",),
    ),
    Claim(
        "§4.6.3",
        "Every operation of the control plane is recorded as an audit event, with its actor.",
        ("penstock.control.leadership", "penstock.model.events"),
        ("tests/control/test_service.py::test_the_audit_log_has_actors_and_operations_and_no_secret",),
        rows=("K15",),
    ),
    Claim(
        "§4.6.3",
        "Every change of partitions, configurations, log starts and tier metadata is recorded as an event.",
        ("penstock.audit.service", "penstock.audit.metadata_history", "penstock.audit.sweep"),
        (
            f"{_LIVE_AUDIT}::test_incidents_are_reported_with_their_offsets_and_legal_changes_are_not",
            "tests/audit/test_metadata_history.py::test_a_new_topic_has_a_policy_and_a_placement",
        ),
        rows=("K15",),
    ),
    Claim(
        "§4.6.3",
        "A batch job checks the audit events of each subject with a small set of static rules.",
        ("penstock.pipeline.jobs.durability", "penstock.audit.rules"),
        (
            f"{_DAILY_AUDIT}::test_a_planted_violation_is_the_only_finding_among_clean_histories",
            f"{_DAILY_AUDIT}::test_daily_increments_one_full_run_and_the_live_engine_give_the_same_findings",
        ),
        rows=("K15", "P2"),
    ),
    Claim(
        "§4.6.3",
        "Log-start increments are compared with the retention policy, and a violation raises an alert.",
        ("penstock.audit.rules.log_start", "penstock.audit.alerts"),
        (
            "tests/audit/test_log_start_rules.py::test_records_older_than_retention_expire_legally",
            "tests/audit/test_log_start_rules.py::test_size_retention_that_leaves_too_few_bytes_is_reported",
            "tests/audit/test_live.py::test_findings_with_one_cause_are_one_alert",
        ),
        rows=("K15",),
    ),
    Claim(
        "Table 1",
        "Caught: storage corruption at the leader that trims a prefix of the log.",
        ("penstock.audit.rules.log_start", "penstock.balance.leader_fitness", "penstock.audit.healing"),
        (
            f"{_LIVE_AUDIT}::test_incidents_are_reported_with_their_offsets_and_legal_changes_are_not",
            f"{_HEALING}::test_a_corrupt_replica_is_not_elected_and_its_demotion_is_proposed",
        ),
        rows=("K15",),
    ),
    Claim(
        "Table 1",
        "Caught: tier metadata that diverges between leader and followers.",
        ("penstock.audit.rules.tier", "penstock.audit.evidence"),
        (
            "tests/audit/test_tier_rules.py::test_delete_states_that_another_program_wrote_are_reported_once",
            "tests/audit/test_scrub_with_kafka.py::test_damage_of_replicas_and_tier_is_reported_by_the_running_audit",
        ),
        rows=("K15",),
    ),
    Claim(
        "Table 1",
        "Caught: a spurious change of a topic's retention.",
        ("penstock.audit.rules.log_start",),
        (f"{_LIVE_AUDIT}::test_incidents_are_reported_with_their_offsets_and_legal_changes_are_not",),
        rows=("K15",),
    ),
    Claim(
        "Table 1",
        "Caught: a race in updating the log start offset.",
        ("penstock.audit.rules.log_start",),
        (
            "tests/audit/test_log_start_rules.py::test_a_log_start_raised_by_a_false_leader_is_reported",
            f"{_LIVE_AUDIT}::test_incidents_are_reported_with_their_offsets_and_legal_changes_are_not",
        ),
        rows=("K15",),
    ),
    Claim(
        "§4.7",
        "A roll proceeds zone by zone, with a bounded number of brokers of one zone at once.",
        ("penstock.fleet.rolls.rolling", "penstock.fleet.rolls.roll_batches"),
        (
            "tests/fleet/test_rolling.py::test_a_roll_finishes_and_never_takes_two_zones_the_minimum_isr_or_the_majority",
            "tests/fleet/test_rolling.py::test_one_broker_at_a_time_and_a_tenth_of_a_zone_from_ten_on",
        ),
        rows=("K16",),
    ),
    Claim(
        "§4.7",
        "The next brokers roll only when the previous ones are in sync; roll time is bounded.",
        ("penstock.fleet.rolls.rolling", "penstock.control.rolling.roll_service"),
        (
            "tests/fleet/test_rolling.py::test_the_next_batch_waits_until_every_replica_is_in_sync",
            "tests/fleet/test_rolling.py::test_more_at_once_if_the_roll_would_take_too_long",
        ),
        rows=("K16",),
    ),
    Claim("§4.7", "Upgrades are staged, with few active versions in the fleet.", rows=("K16",)),
)
