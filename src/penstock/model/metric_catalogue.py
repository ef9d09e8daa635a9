"""The metric catalogue: every metric of every process, with its type, unit, labels and meaning.

Collectors are built from these tables (`penstock.metric_families`), so none exports a metric that is not
listed here. `docs/metrics.md` is generated from them. A label's bound is the number of values that one
process exports.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.model import key_names

if TYPE_CHECKING:
    from collections.abc import Mapping

TENANTS_SHOWN_MAX: Final = 2_000  # of one process


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Label:
    name: str
    bound: int | None  # values at most; None: the bound of `values`
    values: str


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `name` is as Prometheus shows it, except for the `_total` of counters."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[Label, ...]
    help: str
    buckets: tuple[float, ...] = ()  # of a histogram

    @property
    def shown_name(self) -> str:
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


@dataclass(frozen=True, slots=True)
class Table:
    """The metrics of one component, by their name without its prefix."""

    title: str
    prefix: str
    metrics: Mapping[str, Metric]

    def part(self, *names: str) -> Table:
        """Some of them: for a component whose metrics several collectors export."""
        return Table(self.title, self.prefix, {name: self.metrics[name] for name in names})

    def without(self, other: Table) -> Table:
        return self.part(*(name for name in self.metrics if name not in other.metrics))


Row = tuple[str, Kind, str, tuple[Label, ...], str]


def _table(
    title: str, prefix: str, *rows: Row, buckets: Mapping[str, tuple[float, ...]] | None = None
) -> Table:
    made = {
        name: Metric(prefix + name, kind, unit, labels, text, (buckets or {}).get(name, ()))
        for name, kind, unit, labels, text in rows
    }
    assert len(made) == len(rows), f"{title}: each metric once"
    return Table(title, prefix, made)


C, G, H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

TENANT: Final = Label(
    key_names.TENANT, TENANTS_SHOWN_MAX + 1, "logical cluster ids; sums over the rest are under `other`"
)
DRIVER: Final = Label("driver", 6, "drivers of cost")
DIMENSION: Final = Label("dimension", 9, "dimensions of a quota")
BROKER: Final = Label(key_names.BROKER, 1_000, "ids of the cluster's brokers")
CLUSTER: Final = Label(key_names.CLUSTER, 1_000, "clusters that the settings or the registry name")
CELL: Final = Label(key_names.CELL, 10_000, "cells of the cluster")
CONNECTION_STATE: Final = Label("state", 6, "states of a connection")
DENIAL: Final = Label("reason", 26, "reasons of a denial")
AUDIT_RULE: Final = Label("rule", 23, "rules of the durability audit")
THROTTLE: Final = Label("reason", 2, "`own_quota`, `broker_pressure`")
CLIENT_METRIC: Final = Label("metric", 4, "client metrics that the gateway subscribes to (KIP-714)")
REGISTERED: Final = Label("gateway", 1_000, "gateways that have registered themselves")
NODE: Final = Label("node", 1_000, "nodes of the fleet")
SERVICE: Final = Label("service", 1_000, "control plane, coordinator, and a gateway for each cluster")
VERSION: Final = Label("version", 1, "the release")
KAFKA: Final = Label("kafka", 10, "versions of Kafka")
PHASE: Final = Label("phase", 5, "`stop`, `start`, `recovery`, `catch-up`, `leaders`")
GROUP: Final = Label(key_names.GROUP, None, "consumer groups of this process")
TOPIC: Final = Label(key_names.TOPIC, None, "topics that this process reads")
PARTITION: Final = Label(key_names.PARTITION, None, "partitions that are assigned to this process")
VIEW: Final = Label("view", None, "views that this process writes")
SCALED_OBJECT: Final = Label("scaled_object", None, "ScaledObjects that KEDA asks this instance about")
SCALED_GROUP: Final = Label(key_names.GROUP, None, "consumer groups of the ScaledObjects")
LINK_NAME: Final = Label("link", 1, "the link that this process runs")
LINK_STATE: Final = Label("state", 10, "states of a link")
MIRROR_TOPIC: Final = Label(key_names.TOPIC, None, "topics that the link mirrors")
BROKER_ZONE: Final = Label("zone", 20, "the broker's")
CLIENT_ZONE: Final = Label("client_zone", 22, "a zone with brokers, `other`, `unknown`")
WAY: Final = Label("way", 2, "`in`: from clients, `out`: to clients")
DIRECTION: Final = Label("direction", 2, "`up`, `down`")
RULE: Final = Label("rule", 20, "rules of the decision")
PARTITION_STATE: Final = Label("state", 7, "states of a partition")
CALL: Final = Label(key_names.API, 4, "calls of KEDA's protocol")
CODE: Final = Label(key_names.ERROR, 100, "gRPC status codes; empty without an error")
ROUND_ERROR: Final = Label(key_names.ERROR, 500, "error codes of Penstock")
ROLE: Final = Label("role", 10, "what a probe shows, such as `path` or `alone`")
PROBE_ERROR: Final = Label(key_names.ERROR, 300, "errors of Kafka and Penstock, by name or code")
HEALTH_STATE: Final = Label("state", 10, "states of a broker's health")
ACTION: Final = Label("action", 6, "steps of a mitigation, and `release`")
WINDOW: Final = Label("window", 6, "burn windows, such as `5m`")
_WATCH: Final = (SCALED_OBJECT, CLUSTER, SCALED_GROUP)
_GROUP_PARTITION: Final = (GROUP, TOPIC, PARTITION)

PROCESS: Final = _table(
    "Every process", "",
    ("penstock_build_info", G, "", (VERSION,), "1, with the release as a label."),
    ("penstock_ready", G, "", (), "1 while `/readyz` responds with 200."),
    ("process_virtual_memory_bytes", G, "bytes", (), "Virtual memory."),
    ("process_resident_memory_bytes", G, "bytes", (), "Resident memory."),
    ("process_start_time_seconds", G, "seconds", (), "Unix time at which the process started."),
    ("process_cpu_seconds", C, "seconds", (), "User and system processor time."),
    ("process_open_fds", G, "file descriptors", (), "Open file descriptors."),
    ("process_max_fds", G, "file descriptors", (), "Most file descriptors that may be open."),
)  # fmt: skip

CONTROL: Final = _table(
    "Control plane", "penstock_control_",
    ("active", G, "", (), "1 if this control plane is the active one."),
    ("registry_position_offsets", G, "offsets", (), "Offset up to which the registry has been read."),
    ("registry_lag_offsets", G, "offsets", (), "Records of the registry that remain to be read."),
    ("clusters", G, "logical clusters", (), "Logical clusters."),
    ("operations_running", G, "operations", (), "Operations in progress."),
    ("cell_load_ratio", G, "ratio", (CLUSTER, CELL), "Load of a cell, 0 to 1."),
    ("cell_needed_brokers", G, "brokers", (CLUSTER,),
     "Brokers that a physical cluster needs for a new cell; 0 if none is needed."),
    ("gateway_live", G, "0 or 1", (CLUSTER, REGISTERED),
     "1 while heartbeats of a gateway that has registered itself arrive."),
    ("swept_objects", C, "objects", (CLUSTER,),
     "Objects that this control plane has deleted from the stores of a tier and a backup."),
    ("sweep_seconds", G, "seconds", (CLUSTER,),
     "Unix time of the last sweep by this control plane that nothing refused and that did not fail."),
    ("missing_segments", G, "segments", (CLUSTER,),
     "Segments that Kafka knows and the store of the tier did not have at the last sweep."),
)  # fmt: skip

BALANCE: Final = _table(
    "Balancing, in the control plane", "penstock_balance_",
    ("broker_load_ratio", G, "ratio", (CLUSTER, BROKER),
     "Load of a broker, 0 to 1; without a sample if it is unknown."),
    ("imbalance_ratio", G, "ratio", (CLUSTER,),
     "The highest broker load of a physical cluster, relative to the mean."),
    ("moves", C, "moves", (CLUSTER,),
     "Moves that plans have finished since this control plane became active."),
    ("bytes", C, "bytes", (CLUSTER,),
     "Bytes that plans have copied since this control plane became active."),
    ("under_way", G, "moves", (CLUSTER,), "Partitions that plans are copying now."),
    ("plan_seconds", G, "seconds", (CLUSTER,), "How long making the last plan took."),
    ("blocked", G, "0 or 1", (CLUSTER,), "1 if the cluster should be balanced and something blocks it."),
)  # fmt: skip

SIZING: Final = _table(
    "Sizing, in the control plane", "penstock_",
    ("cost_month", G, "currency of the price file", (CLUSTER, DRIVER),
     "Cost of a physical cluster a month, at the traffic of the last week."),
    ("advice_brokers", G, "brokers", (CLUSTER,), "Brokers that a physical cluster should have."),
)  # fmt: skip

ROLLS: Final = _table(
    "Rolls, in the control plane", "penstock_fleet_",
    ("nodes_behind", G, "nodes", (CLUSTER,),
     "Nodes of a local cluster that do not run what the fleet file describes."),
    ("version_nodes", G, "nodes", (CLUSTER, KAFKA), "Nodes of a local cluster that run this version."),
    ("roll_nodes_done", G, "nodes", (CLUSTER,), "Nodes that the last roll has restarted."),
    ("roll_seconds", G, "seconds", (CLUSTER,), "How long the last roll has taken so far, or took."),
    ("roll_paused", G, "0 or 1", (CLUSTER,), "1 while a roll waits for an operator."),
    ("restart_seconds", G, "seconds", (CLUSTER, PHASE),
     "How long a phase of a restart took in the last roll, as the median of its nodes."),
)  # fmt: skip

GATEWAY: Final = _table(
    "Gateway", "penstock_gateway_",
    ("received_bytes", C, "bytes", (TENANT,),
     "Bytes received from clients: of large requests as they arrive, of others in whole frames."),
    ("sent_bytes", C, "bytes", (TENANT,), "Bytes sent to clients, as brokers sent them."),
    ("requests", C, "requests", (TENANT,), "Requests, including refused ones."),
    ("logins", C, "logins", (TENANT,), "Successful logins, admitted or not."),
    ("logins_delayed", C, "logins", (TENANT,),
     "Logins that waited because connections of the same key had been closed for breaking limits."),
    ("processor_seconds", C, "seconds", (TENANT,),
     "Time the event loop worked for a tenant: its frames, its logins, its platform requests."),
    ("slices_queued", C, "waits", (TENANT,),
     "How often a connection waited for its tenant's next slice of the event loop's time."),
    ("held_pauses", C, "waits", (TENANT,),
     "How often a tenant was not read because its unfinished frames exceeded their budget."),
    ("request_waits", C, "waits", (TENANT,), "How often a large request waited for memory of its broker."),
    ("response_waits", C, "waits", (TENANT,), "How often a large response waited for memory."),
    ("service_seconds", C, "seconds", (TENANT,), "Time brokers took, without long polls and acks=all waits."),
    ("zone_bytes", C, "bytes", (BROKER_ZONE, CLIENT_ZONE, WAY),
     "Bytes between clients and brokers, by the zones of both."),
    ("held_bytes", G, "bytes", (TENANT,), "Bytes of frames that are unfinished or wait."),
    ("throttled_seconds", C, "seconds", (TENANT, DIMENSION, THROTTLE),
     "Time clients were throttled, by dimension and reason."),
    ("logins_refused", C, "logins", (TENANT, DENIAL), "Successful logins that were not admitted."),
    ("granted", G, "of the dimension, per second", (TENANT, DIMENSION),
     "The part of a quota in force here, per second."),
    ("tuned_level", G, "ratio", (BROKER, DIMENSION),
     "Share of their quotas that tenants keep on a broker; 1 is all."),
    ("request_time_factor", G, "ratio", (BROKER,),
     "Part of the observed request time that is the broker's own work."),
    ("connections", G, "connections", (CONNECTION_STATE,), "Open connections."),
    ("in_flight", G, "requests", (BROKER,), "Requests in flight to a broker, without long polls."),
    ("oldest_in_flight_seconds", G, "seconds", (BROKER,), "Age of the oldest of them."),
    ("denials", C, "denials", (DENIAL,), "Connections and requests refused."),
    ("client_worst", G, "of the client's metric", (TENANT, CLIENT_METRIC),
     "The worst value reported by a tenant's clients."),
    ("client_pushes", C, "pushes", (TENANT,), "Accepted pushes of client metrics."),
    ("client_pushes_refused", C, "pushes", (TENANT,), "Refused pushes of client metrics."),
    ("log_lines_dropped", C, "lines", (TENANT,), "Sampled log lines dropped beyond the limit a second."),
    ("tenants", G, "logical clusters", (), "Tenants configured."),
    ("state_age_seconds", G, "seconds", (),
     "Time since the tenants' configuration was last known to be current."),
    ("ack_ranges_lost", C, "ranges", (), "Acknowledged ranges without evidence, for lack of room."),
    ("intents_lost", C, "intents", (),
     "Deletions and changes by clients that the durability audit will not know of, for lack of room."),
    ("ack_ranges_open", G, "ranges", (), "Acknowledged ranges that are still merged."),
    ("ack_ranges_written", C, "ranges", (), "Acknowledged ranges written as evidence."),
    ("ack_evidence_bytes", C, "bytes", (), "Bytes of that evidence, before compression."),
    ("ack_evidence_waiting_bytes", G, "bytes", (), "Evidence that waits for its topic."),
)  # fmt: skip

QUOTA: Final = _table(
    "Quota coordinator", "penstock_quota_",
    ("used", G, "of the dimension, per second", (TENANT, DIMENSION), "Use per second."),
    ("demand", G, "of the dimension, per second", (TENANT, DIMENSION), "Estimated demand per second."),
    ("granted", G, "of the dimension, per second", (TENANT, DIMENSION),
     "Sum of all gateways' shares per second."),
    ("throttled_ratio", G, "ratio", (TENANT, DIMENSION), "Share of time throttled, summed over gateways."),
    ("partitions_owned", G, "partitions", (CLUSTER,), "Partitions of the usage topic owned."),
    ("decisions", C, "decisions", (CLUSTER,), "Shares published."),
    ("decide_seconds", C, "seconds", (CLUSTER,), "Processor time spent on decisions."),
)  # fmt: skip

HEALTH: Final = _table(
    "Health", "penstock_health_",
    ("probe_seconds", H, "seconds", (CLUSTER, BROKER, ROLE), "Latency of probes that succeeded."),
    ("probe_failures", C, "probes", (CLUSTER, ROLE, PROBE_ERROR), "Probes that failed."),
    ("probes_due", C, "probes", (CLUSTER,), "Probes that were due."),
    ("probes_sent", C, "probes", (CLUSTER,), "Probes that were sent."),
    ("probes_disturbed", C, "probes", (CLUSTER,), "Probes without a result, as the checker itself stalled."),
    ("probes_lost", C, "records", (CLUSTER,), "Records that were acknowledged and not delivered."),
    ("probe_duplicates", C, "records", (CLUSTER,), "Records that were delivered more than once."),
    ("probes_unwritten", G, "probes", (CLUSTER,), "Results that wait to be written."),
    ("checker_stalled", C, "stalls", (CLUSTER,), "How often the checker's own loop was late by a second."),
    ("state", G, "0 or 1", (CLUSTER, BROKER, HEALTH_STATE), "1 for the state that a broker is in."),
    ("budget_ratio", G, "ratio", (CLUSTER,), "What is left of the month's error budget."),
    ("burn_ratio", G, "ratio", (CLUSTER, WINDOW), "How fast the budget is used up; 1 uses it up exactly."),
    ("actions", C, "actions", (CLUSTER, ACTION),
     "Steps taken since this control plane became active."),
    ("detect_seconds", G, "seconds", (CLUSTER,), "From the first bad probe to the last finding."),
    ("incidents", G, "incidents", (CLUSTER,), "Incidents that are not resolved."),
    buckets={"probe_seconds": (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)},
)  # fmt: skip
HEALTH_CHECKER: Final = HEALTH.part(
    "probe_failures", "probes_due", "probes_sent", "probes_disturbed", "probes_lost", "probe_duplicates",
    "probes_unwritten", "checker_stalled",
)  # fmt: skip
HEALTH_CONTROL: Final = HEALTH.part(
    "state", "budget_ratio", "burn_ratio", "actions", "detect_seconds", "incidents"
)

AUDIT: Final = _table(
    "Durability audit", "penstock_audit_",
    ("active", G, "", (CLUSTER,), "1 while this process is the active auditor."),
    ("events", C, "events", (CLUSTER,), "Events written to `_penstock.durability`."),
    ("folded", C, "events", (CLUSTER,), "Events that the rules have processed."),
    ("unreadable", C, "records", (CLUSTER,), "Records of `_penstock.durability` that are no events."),
    ("subjects", G, "subjects", (CLUSTER,), "Partitions, topics, brokers and collectors with a state."),
    ("findings_open", G, "findings", (CLUSTER, AUDIT_RULE), "Open findings; not those that only inform."),
    ("dropped", G, "suspicions", (CLUSTER,), "Suspicions that a second observation resolved."),
    ("unseen_partitions", G, "partitions", (CLUSTER,), "Partitions without any replica that responded."),
    ("collector_age_seconds", G, "seconds", (CLUSTER,), "Time since everything was last collected."),
    ("scrub_age_seconds", G, "seconds", (CLUSTER,),
     "Since the last scrub of the partition that was scrubbed longest ago."),
    ("unscrubbed_partitions", G, "partitions", (CLUSTER,), "Partitions that no scrub has read."),
)  # fmt: skip

FLEET: Final = _table(
    "Supervisor of `penstock up`", "penstock_fleet_",
    ("node_ready", G, "", (NODE,), "1 while the node is ready."),
    ("node_restarts", C, "restarts", (NODE,), "Restarts of the node by this supervisor."),
    ("service_running", G, "", (SERVICE,), "1 while the service's process runs."),
    ("service_restarts", C, "restarts", (SERVICE,), "Restarts of the service by this supervisor."),
)  # fmt: skip

SCALE: Final = _table(
    "Scaler", "penstock_scale_",
    ("call_seconds", H, "seconds", (CALL, CODE), "Calls from KEDA."),
    ("sampler_up", G, "", (), "1 while the sampler process runs."),
    ("sampler_exits", C, "exits", (), "Unexpected exits of the sampler process."),
    ("changes", C, "changes", (*_WATCH, DIRECTION, RULE), "Scale-ups and scale-downs requested."),
    ("round_seconds", H, "seconds", (CLUSTER,), "One sampling round over a cluster."),
    ("round_failures", C, "rounds", (CLUSTER, ROUND_ERROR), "Sampling rounds that failed."),
    ("replicas", G, "replicas", _WATCH, "Replicas requested."),
    ("lag_records", G, "records", _WATCH, "Waiting records, all partitions."),
    ("lag_seconds", G, "seconds", _WATCH,
     "Age of the oldest waiting record in partitions that are not stuck."),
    ("active", G, "", _WATCH, "1 while there is work, 0 while the workload may scale to zero."),
    ("replica_capacity_records_per_second", G, "records per second", _WATCH,
     "Records a second that one replica handles."),
    ("partitions", G, "partitions", (*_WATCH, PARTITION_STATE), "Partitions by state."),
    ("sample_failing", G, "", _WATCH, "1 while the group cannot be sampled."),
    ("watches", G, "ScaledObjects", (), "ScaledObjects watched."),
    buckets={
        "call_seconds": (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 1.0),
        "round_seconds": (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    },
)  # fmt: skip
SCALE_CALLS: Final = SCALE.part("call_seconds", "sampler_up", "sampler_exits")
SCALE_ROUNDS: Final = SCALE.part("changes", "round_seconds", "round_failures")
SCALE_WATCHES: Final = SCALE.without(SCALE_CALLS).without(SCALE_ROUNDS)

CONSUME: Final = _table(
    "Parallel consumer", "penstock_consume_",
    ("received_records", C, "records", (GROUP,), "Records received from Kafka."),
    ("received_bytes", C, "bytes", (GROUP,), "Bytes of keys and values received."),
    ("skipped_records", C, "records", (GROUP,),
     "Records skipped because the offset map lists them as done."),
    ("finished_records", C, "records", (GROUP,), "Records handled, filtered out or dead-lettered."),
    ("failed_attempts", C, "calls", (GROUP,), "Handler calls that failed."),
    ("dead_letter_records", C, "records", (GROUP,), "Records written to the dead-letter topic."),
    ("delayed_records", C, "records", (GROUP,), "Records written to a delayed-retry topic."),
    ("filtered_records", C, "records", (GROUP,), "Records the filter rejected."),
    ("late_results", C, "results", (GROUP,),
     "Results that arrived after their partition was revoked or lost."),
    ("abandoned_records", C, "records", (GROUP,),
     "Records started here that no commit covers; they run again."),
    ("commits", C, "commits", (GROUP,), "Commits or transactions that succeeded."),
    ("commit_failures", C, "commits", (GROUP,), "Commits that Kafka refused; they are retried."),
    ("restarts", C, "restarts", (GROUP,), "Restarts of the consumer after a failure."),
    ("unfinished_records", G, "records", _GROUP_PARTITION, "Records in memory that are not finished."),
    ("running_records", G, "records", _GROUP_PARTITION, "Records being handled."),
    ("queued_behind_key_records", G, "records", _GROUP_PARTITION,
     "Records waiting behind another of the same key."),
    ("retrying_records", G, "records", _GROUP_PARTITION, "Records waiting for their next attempt."),
    ("waiting_for_map_records", G, "records", _GROUP_PARTITION,
     "Records waiting because the offset map is full."),
    ("offset_map_chars", G, "characters", _GROUP_PARTITION,
     "Characters of the offset map in the next commit."),
    ("committed_offset", G, "offset", _GROUP_PARTITION, "Offset that Kafka stores for the group."),
    ("paused_partitions", G, "partitions", (GROUP,), "Partitions paused by back pressure."),
    ("memory_bytes", G, "bytes", (GROUP,), "Bytes of keys and values in memory."),
    ("handler_seconds", H, "seconds", (GROUP,), "Time in the handler."),
)  # fmt: skip

OLEP: Final = _table(
    "OLEP executor", "penstock_olep_",
    ("decided_events", C, "events", (GROUP, TOPIC), "Events decided and applied."),
    ("repeated_events", C, "events", (GROUP, TOPIC), "Repeated events, suppressed."),
    ("rejected_events", C, "events", (GROUP, TOPIC), "Events rejected: listed and not applied."),
    ("sent_events", C, "events", (GROUP, TOPIC),
     "Events emitted by decisions and queued in the Kafka client."),
    ("commits", C, "commits", (GROUP, TOPIC), "Transactions committed to the stores."),
    ("position_offset", G, "offset", _GROUP_PARTITION, "Next offset to apply, as stored."),
    ("unacknowledged_events", G, "events", _GROUP_PARTITION,
     "Emitted events that no broker has acknowledged."),
    ("suspended_partitions", G, "partitions", (GROUP, TOPIC),
     "Partitions that wait because their store or their leader is unavailable."),
)  # fmt: skip

OLEP_VIEW: Final = _table(
    "OLEP view", "penstock_olep_view_",
    ("records", C, "records", (VIEW, TOPIC), "Records read since the start."),
    ("applied_events", C, "events", (VIEW, TOPIC), "Events applied to the view."),
    ("skipped_events", C, "events", (VIEW, TOPIC), "Events that the projection could not apply."),
    ("lag_offsets", G, "offsets", (VIEW, TOPIC), "Offsets between the view and the end of its log."),
    ("generation", G, "", (VIEW, TOPIC), "The generation that is written; 0 before it is claimed."),
    ("failing", G, "", (VIEW, TOPIC), "1 while the view cannot continue, and is tried again."),
)  # fmt: skip

PIPELINE: Final = _table(
    "Pipeline jobs", "penstock_pipeline_",
    ("running", G, "", (GROUP,), "1 while a run of the job is under way."),
    ("failed", G, "", (GROUP,), "1 if the last run failed or was killed."),
    ("lag_offsets", G, "offsets", (GROUP,), "Offsets between the job's position and the end of its topic."),
    ("run_records", G, "records", (GROUP,), "Records read by the last run."),
    ("run_rejected_records", G, "records", (GROUP,), "Records that the last run rejected."),
    ("updated_seconds", G, "seconds", (GROUP,), "Unix time of the last status update."),
)  # fmt: skip

# Exported by the brokers' JMX agents, by the rules in `fleet/jmx.yaml`.
TIER: Final = _table(
    "Tiered storage (brokers)", "penstock_tier_",
    ("copies", C, "segments", (), "Segments copied to the store."),
    ("copied_bytes", C, "bytes", (), "Bytes of segments copied to the store."),
    ("copy_failures", C, "copies", (), "Failed copies; the broker repeats each under another segment id."),
    ("copies_blocked", G, "partitions", (), "Partitions whose next segment is damaged on this broker."),
    ("copy_lag_bytes", G, "bytes", (), "Bytes of closed segments that are not in the store yet."),
    ("copy_lag_segments", G, "segments", (), "Closed segments that are not in the store yet."),
    ("gets", C, "requests", (), "Reads of the store."),
    ("read_bytes", C, "bytes", (), "Bytes read from the store."),
    ("get_failures", C, "requests", (), "Reads of the store that failed."),
    ("cache_hits", C, "reads", (), "Reads that memory or another reader's request served."),
    ("prefetches", C, "requests", (), "Reads of the store ahead of a consumer."),
    ("damaged_reads", C, "requests", (), "Reads whose bytes had a wrong CRC; each is repeated once."),
    ("tombstones", C, "segments", (), "Segments that the broker deleted: marked, and still in the store."),
    ("broker_copy_errors", C, "errors", (), "Kafka's count of failed copies."),
    ("broker_read_errors", C, "errors", (), "Kafka's count of failed reads of tiered data."),
)  # fmt: skip

LINK: Final = _table(
    "Cluster link", "penstock_link_",
    ("state", G, "", (LINK_NAME, LINK_STATE), "1 for the state that the link is in."),
    ("lag_offsets", G, "offsets", (LINK_NAME, MIRROR_TOPIC),
     "Offsets of the source that are not on every in-sync replica here."),
    ("failed_partitions", G, "partitions", (LINK_NAME,), "Partitions that stopped, with a reason."),
    ("truncations", C, "truncations", (LINK_NAME,), "Truncations of mirrors after the source truncated."),
    ("groups", G, "groups", (LINK_NAME,), "Groups whose offsets follow."),
    ("clamped_group_offsets", G, "offsets", (LINK_NAME,),
     "Group offsets that are not mirrored yet, and clamped to the end of the mirror."),
    ("problems", G, "duties", (LINK_NAME,), "Duties that failed in the last round."),
    ("window_bytes", G, "bytes", (LINK_NAME,), "Records in memory that not every in-sync replica has."),
)  # fmt: skip

SHADOW: Final = _table(
    "Shadow broker", "penstock_shadow_",
    ("led_partitions", G, "partitions", (), "Partitions that the shadow leads."),
    ("followers_behind", G, "replicas", (), "Replicas of these partitions that are not in sync."),
    ("guarded_refusals", C, "responses", (), "Responses withheld from followers. Must be 0."),
    ("fenced", G, "", (), "1 while the controllers have fenced the shadow."),
)  # fmt: skip

BACKUP: Final = _table(
    "Backup", "penstock_backup_",
    ("partitions", G, "partitions", (), "Partitions that are archived."),
    ("lag_offsets", G, "offsets", (), "Offsets below the high watermarks that are not stored yet."),
    ("lag_offsets_max", G, "offsets", (), "The same, of the partition that has most."),
    ("failing_partitions", G, "partitions", (), "Partitions that the last round could not store."),
    ("segments", C, "segments", (), "Segments stored since the start."),
    ("bytes", C, "bytes", (), "Bytes of log stored since the start."),
    ("gaps", C, "gaps", (), "Gaps recorded: data that retention deleted before it was archived."),
    ("failures", C, "failures", (), "Failed rounds, fetches and uploads; each is repeated."),
    ("round_seconds", G, "seconds", (), "Unix time of the last round that stored everything due."),
    ("catalogue_seconds", G, "seconds", (), "Unix time of the last entry of the catalogue."),
    ("drill_seconds", G, "seconds", (), "Unix time of the last successful drill before the start; 0: none."),
)  # fmt: skip

TABLES: Final = (
    PROCESS, CONTROL, BALANCE, SIZING, ROLLS, GATEWAY, QUOTA, HEALTH, AUDIT, FLEET, TIER, BACKUP, SCALE,
    CONSUME, OLEP, OLEP_VIEW, PIPELINE, LINK, SHADOW,
)  # fmt: skip
