"""Penstock: stock Apache Kafka as a cloud-native, multi-tenant event-streaming platform.

Imports point downwards, from `cli` to `model`; `pyproject.toml` has the contract.

Modules:
  atomic_files        replaces a file as a whole
  audit               the durability audit: detects data loss while the data can still be saved
  backup              topics in a second store, restored at their original offsets
  balance             cells, placement and moves of tenants
  cancellation        keeps a cancellation that arrives together with an error
  certificate_reload  loads a server's certificate again when its files change
  cli                 the `penstock` command
  cluster_services    a service for each cluster, until a signal stops the process
  consume             the parallel consumer, for any Kafka
  control             the control plane: registry, provisioning, operations, HTTP API
  fleet               the Kafka clusters underneath: jars, local processes, adoption
  gateway             the proxy that gives each tenant its own Kafka cluster
  gc_tuning           fewer searches for cyclic garbage
  health              probes, error budgets, which brokers are sick and what to do about it
  http_calls          calls with a secret: no redirects, no proxy to this host
  kafka               an async Kafka client for admin calls, offsets and internal topics
  link                byte-identical mirrors of topics on another cluster
  log_lines           log lines of a service: JSON or text
  metric_families     Prometheus metrics from the catalogue in `model`
  metrics_server      serves /metrics, /livez and /readyz of a process
  model               ids, entities, events, errors: values only
  olep                online event processing: logs, executors, views, for any Kafka
  pipeline            PySpark jobs: topics to tables, metering, SLO, audit
  platform            the local platform that `penstock up` starts
  process_identity    processes by pid and start time, in records and locks
  quota               sharing a tenant's quota over gateways; token buckets, auto-tuning
  scale               the persistent-lag scaler for KEDA, for any Kafka
  shadow              a broker-shaped process that leads partitions on stock brokers
  sim                 simulations that run the platform's decisions from a seed
  stop_signals        signals as a request to stop
  tier                old segments of topics in an object store: the brokers' plugin
  timed_wait          waits for an event, but not for ever
  wire                Kafka's protocol: codec, and splicing of tenants' bytes
"""

__version__ = "0.1.0"
