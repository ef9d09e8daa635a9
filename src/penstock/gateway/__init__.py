"""The gateway: any Kafka client connects with an API key and sees a Kafka cluster of its tenant alone.

It terminates TLS, authenticates, renames everything a client names, meters, throttles, and forwards to the
brokers as the service account's own Kafka user. Requests that need parsed values are rebuilt, the rest is
spliced with the plans of `penstock.wire`.

It is not the control plane: it decides no tenant's quota (`penstock.quota`, `penstock.control`) and keeps no
state that it cannot rebuild from its configuration. It writes usage and pressure reports to internal topics.

It promises: a tenant sees and touches only what is below its prefix; what is not understood is refused, never
passed on; no broker address reaches a client; memory is bounded under slow readers; connections of a revoked
key are closed.

Modules:
  admission            whether a client may connect or log in: counts and rates
  apis                 what happens to each Kafka API and version, as one table
  broker_pressure      auto-tuning: tenants' shares of an overloaded broker
  calibration          corrects observed request time by brokers' own metrics
  cluster_view         what a tenant sees of the physical cluster
  config               brokers, tenants and accounts as values; which connections a change closes
  config_source        where configurations come from, and the file that implements it
  connection_states    the states of a client connection, and why it is not read
  error_responses      error responses for any API
  fast_path            passes repeated Produce requests and plain fetches without parsing
  fetch_sessions       how many fetch sessions a tenant holds on a broker
  listener_sockets     sockets bound to the gateway's ports
  local_requests       requests the gateway handles itself: login, ApiVersions, refusals, rebuilding
  login                SASL/PLAIN authentication with an API key
  metering             usage counters and acknowledged offset ranges
  metrics              the gateway's Prometheus metrics
  name_patterns        adds the tenant's prefix to regular expressions
  partition_limits     limits on a tenant's partitions and their changes (KIP-599)
  platform_client      Kafka calls on the platform's identity
  platform_requests    client requests executed on the platform's identity: ACLs, log dirs, configs, quotas
  pressure_reports     observes brokers under pressure, and reports it to a topic
  process              runs a gateway from its file: assembles, supervises workers, serves metrics
  quota_shares         reports usage, and follows the quota shares assigned to this gateway
  request_rewriting    rebuilds requests: metadata, topics, partitions, share sessions, configs
  request_sampling     logs a sample of requests and connections
  routes               the table of `apis`, prepared for the data path
  run_file             which gateways run with a configuration file
  server               listeners, sessions, and periodic housekeeping
  session              one client connection, both directions
  settings             reads a gateway's YAML file
  shared_counters      counters in memory that all workers share
  sni_hosts            host names that select a tenant and a broker
  telemetry            clients' own metrics (KIP-714)
  tenant_acls          translates a tenant's ACLs to Kafka's and back
  tenant_names         renames topics, groups and ids in both directions
  tenant_provisioning  creates a tenant's users, ACLs and byte rates in Kafka
  tenant_quota         charges a tenant's quota, and writes throttle times into responses
  tenant_source        follows `_penstock.state` for the gateway's tenants
  throttle_queue       connections that wait for a limit, first in, first out
  throttled_session    a session whose tenant has limits
  topic_ids            which topic ids are a tenant's, and masks for the others
  upstream             the connection to the broker: dial, log in, hand over
  worker_quota         a file's quotas, enforced by all workers together
  worker_supervisor    starts, replaces and stops worker processes
"""

from penstock.wire.compiled import prefer_compiled as _prefer_compiled

_prefer_compiled(__name__, __path__)
