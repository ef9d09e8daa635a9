"""Claims of the Kora paper (VLDB 2023), section 5: multi-tenancy."""

from __future__ import annotations

from typing import Final

from tests.paper.claim import Claim

CLAIMS: Final = (
    Claim(
        "§5.1",
        "A dedicated cluster is a multi-tenant cluster with one tenant.",
        ("penstock.control.decisions", "penstock.control.physical"),
        (
            "tests/control/test_physical.py::test_a_dedicated_cluster_gets_dedicated_brokers_and_releases_them",
            "tests/control/test_adopted.py::test_an_adopted_cluster_has_one_dedicated_tenant",
        ),
        rows=("K1", "K17"),
    ),
    Claim(
        "§5.1",
        "The health-check agent and other internal services use dedicated logical clusters.",
        rows=("K10", "K17"),
    ),
    Claim(
        "§5.1",
        "Authentication with API keys, authorisation and encryption isolate a tenant's data.",
        (
            "penstock.gateway.connection.login",
            "penstock.gateway.tenancy.tenant_provisioning",
            "penstock.fleet.credentials.certificates",
        ),
        (
            "tests/gateway/test_endurance.py::test_wrong_secrets_are_refused_and_too_many_lock_the_address_out",
            "tests/gateway/test_endurance.py::test_a_revoked_key_loses_its_connections_and_others_keep_theirs",
            "tests/gateway/test_tenant_provisioning.py::test_accounts_of_one_tenant_see_and_write_what_their_rights_allow",
            "tests/gateway/test_server.py::test_a_client_connects_by_tls",
            "tests/fleet/test_access.py::test_a_client_without_tls_cannot_connect",
        ),
        rows=("K17",),
    ),
    Claim(
        "§5.1",
        "Topics, groups, transactional ids and ACLs carry the logical cluster id inside Kafka.",
        (
            "penstock.gateway.tenancy.tenant_names",
            "penstock.gateway.tenancy.tenant_acls",
            "penstock.wire.field_rules",
        ),
        (
            "tests/gateway/test_slots.py::test_every_name_that_reaches_the_broker_has_the_tenants_prefix",
            "tests/gateway/test_groups.py::test_transactions_are_listed_and_described_to_their_own_tenant",
            "tests/gateway/test_platform_requests.py::test_a_tenant_sees_and_deletes_no_acl_of_another",
        ),
        rows=("K17",),
    ),
    Claim(
        "§5.1, Figure 8",
        "Namespaces are invisible to clients: two tenants use the same names.",
        ("penstock.gateway.tenancy.tenant_names", "penstock.gateway.tenancy.cluster_view"),
        (
            "tests/gateway/test_librdkafka.py::test_two_tenants_with_the_same_topic_name_have_separate_records",
            "tests/gateway/test_librdkafka.py::test_metadata_shows_only_the_tenants_topics_and_the_gateways_addresses",
        ),
        rows=("K17",),
    ),
    Claim(
        "§5.1, Figure 8",
        "A request can only access its tenant's resources, consumer offsets included.",
        (
            "penstock.gateway.connection.connection",
            "penstock.gateway.tenancy.topic_ids",
            "penstock.gateway.tenancy.name_patterns",
        ),
        (
            "tests/gateway/test_slots.py::test_no_field_of_any_api_and_version_reaches_another_tenant",
            "tests/gateway/test_attacks.py::test_another_tenants_names_reach_nothing_in_any_api",
            "tests/gateway/test_attacks.py::test_with_renaming_switched_off_the_broker_still_refuses",
            "tests/gateway/test_librdkafka.py::test_groups_are_listed_described_and_deleted_within_a_tenant",
        ),
        rows=("K17",),
    ),
    Claim(
        "§5.2",
        "A tenant beside greedy neighbours performs as on a dedicated cluster: its P99 latency at most doubles.",
        ("penstock.gateway.connection.throttle", "penstock.gateway.limits.throttle_queue"),
        (
            "bench.isolation::ingress-victim-p99-to-alone",
            "bench.isolation::egress-victim-p99-to-alone",
            "bench.isolation::storm-victim-p99-to-alone",
        ),
        rows=("K18",),
    ),
    Claim(
        "§5.2",
        "Quotas limit a tenant's ingress and egress bandwidth.",
        (
            "penstock.gateway.limits.tenant_quota",
            "penstock.gateway.connection.throttle",
            "penstock.quota.token_bucket",
        ),
        (
            "tests/gateway/test_tenant_quota.py::test_a_throttled_producer_loses_nothing_and_another_tenant_is_not_delayed",
            "tests/gateway/test_tenant_quota.py::test_a_throttled_consumer_reads_everything",
        ),
        rows=("K18",),
    ),
    Claim(
        "§5.2",
        "Quotas limit a tenant's CPU use: the time the broker spends on its requests.",
        (
            "penstock.gateway.limits.tenant_quota",
            "penstock.gateway.limits.calibration",
            "penstock.quota.calibration",
        ),
        (
            "tests/gateway/test_tenant_quota.py::test_responses_and_service_time_are_charged_likewise",
            "tests/gateway/test_calibration.py::test_tenants_are_charged_for_work_alone",
            "tests/gateway/test_calibration.py::test_a_brokers_factor_follows_its_handlers_and_is_shown_in_the_metrics",
        ),
        rows=("K18",),
    ),
    Claim(
        "§5.2",
        "Quotas limit a tenant's connections and connection attempts.",
        ("penstock.gateway.limits.admission", "penstock.gateway.limits.shared_counters"),
        (
            "tests/gateway/test_workers.py::test_a_tenants_connections_are_counted_over_both_workers_without_dead_ones",
            "tests/gateway/test_shared_counters.py::test_a_tenants_connections_and_rate_apply_to_both_workers_together",
        ),
        rows=("K18",),
    ),
    Claim(
        "§5.2",
        "Quotas limit behaviour that costs broker memory: request size, fetch size, fetch sessions.",
        ("penstock.gateway.tenancy.fetch_sessions", "penstock.gateway.limits.tenant_quota"),
        (
            "tests/gateway/test_tenant_quota.py::test_a_request_beyond_its_tenants_limit_closes_the_connection",
            "tests/gateway/test_tenant_quota.py::test_a_fetch_is_capped_at_a_fraction_of_a_second",
            "tests/gateway/test_fetch_sessions.py::test_one_tenant_cannot_take_all_of_a_brokers_fetch_sessions",
        ),
        rows=("K18",),
    ),
    Claim(
        "§5.2",
        "Quotas limit how many partitions a tenant has and how fast it creates and deletes them.",
        ("penstock.gateway.limits.partition_limits",),
        ("tests/gateway/test_tenant_quota.py::test_partitions_are_limited_in_number_and_rate_of_change",),
        rows=("K18",),
    ),
    Claim(
        "§5.2, Figure 9",
        "A tenant's quota is split over the brokers that serve it; each enforces its part independently.",
        ("penstock.quota.sharing", "penstock.quota.enforcement", "penstock.gateway.limits.quota_shares"),
        (
            "tests/quota/test_usage_reports.py::test_the_first_split_is_even",
            "tests/quota/test_enforcement.py::test_no_gateway_ever_enforces_more_than_the_whole_quota",
            "tests/quota/test_kills.py::test_limits_hold_and_counters_reconcile_while_gateways_and_coordinators_are_killed",
        ),
        rows=("K18",),
    ),
    Claim(
        "§5.2.1",
        "Broker-wide limits on ingress and connection rate back-pressure all tenants in proportion to their quotas.",
        ("penstock.gateway.limits.broker_pressure", "penstock.quota.auto_tuning"),
        (
            "tests/gateway/test_broker_pressure.py::test_tenants_share_a_brokers_limit_by_quota_and_the_metrics_show_the_reason",
            "tests/gateway/test_broker_pressure.py::test_logins_beyond_a_brokers_limit_are_refused_in_proportion_to_quotas",
            "bench.isolation::pressure-shares-off-quotas",
        ),
        rows=("K19",),
    ),
    Claim(
        "§5.2.1",
        "A broker-wide limit on egress does so too.",
        ("penstock.gateway.limits.broker_pressure",),
        rows=("K19",),
    ),
    Claim(
        "§5.2.1",
        "Request back pressure protects CPU: it starts when requests queue at the broker.",
        ("penstock.quota.auto_tuning", "penstock.quota.pressure", "penstock.gateway.limits.pressure_reports"),
        (
            "tests/gateway/test_broker_pressure.py::test_the_limit_falls_while_requests_wait_and_is_lifted_when_they_do_not",
            "tests/quota/test_auto_tuning.py::test_request_time_is_limited_while_requests_queue_and_freed_within_seconds",
        ),
        rows=("K19",),
    ),
    Claim(
        "§5.2.1",
        "Back pressure is temporary: tenants get their full quotas again when the pressure ends.",
        ("penstock.quota.auto_tuning",),
        (
            "tests/gateway/test_broker_pressure.py::test_limits_are_lifted_within_three_seconds_after_the_overload",
            "bench.isolation::pressure-recovery",
        ),
        rows=("K19",),
    ),
    Claim("§5.2.1", "Broker-wide limits come from benchmarks of brokers on each cloud.", rows=("K19",)),
    Claim(
        "§5.2.2, Figure 9",
        "Usage and throttling of each tenant are published periodically to quota coordinators.",
        ("penstock.gateway.limits.quota_shares", "penstock.quota.usage_reports"),
        (
            "tests/gateway/test_quota_shares.py::test_an_active_tenant_is_reported_every_other_second",
            "tests/gateway/test_quota_shares.py::test_a_report_includes_how_long_the_tenant_was_throttled",
        ),
        rows=("K20",),
    ),
    Claim(
        "§5.2.2, Figure 9",
        "Coordinators recompute the shares at intervals and distribute them; a successor continues when one dies.",
        ("penstock.quota.coordinator", "penstock.quota.tenant_usage", "penstock.quota.share_follower"),
        (
            "tests/quota/test_coordinator.py::test_a_tenant_at_one_gateway_gets_its_quota_within_three_intervals_and_keeps_it_when_its_coordinator_dies",
            "tests/quota/test_tenant_usage.py::test_a_successor_decides_as_its_predecessor_would_have",
        ),
        rows=("K20",),
    ),
    Claim(
        "§5.2.2",
        "Several coordinators share the tenants; hashing maps a tenant to one of them.",
        ("penstock.quota.topics", "penstock.kafka.membership"),
        (
            "tests/kafka/test_membership.py::test_two_members_share_the_partitions_and_one_takes_all_when_the_other_leaves",
            "tests/quota/test_kills.py::test_limits_hold_and_counters_reconcile_while_gateways_and_coordinators_are_killed",
        ),
        rows=("K20",),
    ),
    Claim(
        "§5.2.2",
        "Lazy throttling: a tenant is not throttled until its use of the whole cluster passes a threshold.",
        ("penstock.quota.sharing",),
        (
            "tests/quota/test_sharing.py::test_while_there_is_plenty_a_gateway_may_use_all_of_the_unused_quota",
            "tests/quota/test_sharing.py::test_lazy_limits_exceed_the_quota_by_at_most_the_documented_amount",
        ),
        rows=("K20",),
    ),
    Claim(
        "§5.2.2",
        "Tenants within 5 throttled minutes a week: 99 % with static shares, over 99.9 % with dynamic ones (simulated).",
        ("penstock.sim.quota_week", "penstock.sim.traffic"),
        (
            "bench.quotas::met-static",
            "bench.quotas::met-dynamic",
            "bench.quotas::met-dynamic-lazy",
            "tests/sim/test_quota_week.py::test_dynamic_shares_throttle_less_than_static_ones_and_lazy_ones_least",
        ),
        rows=("K20",),
    ),
    Claim(
        "§5.3, Figure 10",
        "A cell is a subset of brokers, evenly distributed over availability zones.",
        ("penstock.balance.cells",),
        ("tests/balance/test_cells.py::test_cells_take_equally_many_brokers_from_each_zone",),
        rows=("K21",),
    ),
    Claim(
        "§5.3",
        "A tenant's partitions are distributed over the brokers of its cell, and stay within it.",
        (
            "penstock.balance.replica_placement",
            "penstock.gateway.tenancy.request_rewriting",
            "penstock.control.checker",
        ),
        (
            "tests/gateway/test_decisions.py::test_partitions_are_spread_over_zones_and_brokers",
            "tests/control/test_checker.py::test_topics_of_unknown_tenants_and_replicas_outside_the_cell_are_reported",
            "tests/control/test_relief_service.py::test_a_full_cell_of_a_real_fleet_is_relieved_and_a_new_one_is_requested",
        ),
        rows=("K21",),
    ),
    Claim(
        "§5.3",
        "A cell supports at least the maximum of a single logical cluster; a larger one is refused.",
        ("penstock.balance.cells",),
        (
            "tests/balance/test_cells.py::test_a_tenant_too_large_for_any_cell_is_rejected_with_the_size_that_fits",
        ),
        rows=("K21",),
    ),
    Claim(
        "§5.3",
        "Cell load is the maximum of average broker load, replica utilisation and bandwidth utilisation.",
        ("penstock.balance.cell_load",),
        ("tests/balance/test_cells.py::test_the_load_of_a_cell_is_the_largest_of_its_three_parts",),
        rows=("K21",),
    ),
    Claim(
        "§5.3",
        "A new tenant goes to the less loaded of two random cells.",
        ("penstock.balance.cells", "penstock.control.cluster_placement"),
        (
            "tests/balance/test_cells.py::test_the_less_loaded_of_two_random_cells_gets_the_tenant",
            "tests/sim/test_cell_month.py::test_two_choices_fill_cells_more_evenly_than_random_placement",
            "bench.cells::hottest-to-mean-against-random",
        ),
        rows=("K21",),
    ),
    Claim(
        "§5.3",
        "When a cell is full, tenants move to a less loaded one, while their clients work.",
        ("penstock.balance.cell_relief", "penstock.control.load.relief_service"),
        (
            "tests/control/test_relief_service.py::test_a_full_cell_of_a_real_fleet_is_relieved_and_a_new_one_is_requested",
            "tests/control/test_physical.py::test_a_cluster_moves_to_another_cell_while_its_clients_work",
            "tests/sim/test_cell_month.py::test_moves_keep_cells_from_filling_up",
        ),
        rows=("K21",),
    ),
    Claim(
        "§5.3",
        "When no cell has room, a new one is requested; one command adds it.",
        ("penstock.control.load.relief_service", "penstock.control.size.resizing"),
        (
            "tests/control/test_relief_service.py::test_a_cluster_without_room_reports_the_cell_it_needs_until_there_is_room",
            "tests/platform/test_resize.py::test_a_cell_is_added_to_a_fleet_that_runs_and_tenants_move_into_it",
        ),
        rows=("K9", "K21"),
    ),
    Claim(
        "§5.3",
        "When no cell has room, the cluster expands by a cell without an operator.",
        rows=("K9", "K21"),
    ),
    Claim(
        "§5.3",
        "A failure affects only the tenants of one cell, and capacity grows linearly with cells.",
        rows=("K21",),
    ),
    Claim(
        "§5.3",
        "Cells reduce connections and improve batching: load falls from 73 % to 53 % in the paper, to 48 % in our model.",
        ("penstock.sim.cell_batching",),
        (
            "tests/sim/test_cell_batching.py::test_clients_connect_only_to_the_brokers_of_their_cell",
            "tests/sim/test_cell_batching.py::test_the_same_bytes_need_fewer_requests_in_cells",
            "tests/sim/test_cell_batching.py::test_load_falls_about_as_much_as_in_the_paper",
            "bench.cells::load-with-cells",
        ),
        rows=("K21",),
    ),
    Claim(
        "§5.3",
        "The same experiment on 24 running brokers: load 73 % without cells, 53 % with them.",
        rows=("K21",),
    ),
)
