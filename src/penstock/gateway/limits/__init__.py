"""What a client, a tenant and all of them together may use, and how that is counted.

Modules:
  ack_ranges        acknowledged offset ranges, merged into bounded evidence
  admission         whether a client may connect or log in: counts and rates
  breaches          slows down clients whose connections break limits
  broker_pressure   auto-tuning: tenants' shares of an overloaded broker
  calibration       corrects observed request time by brokers' own metrics
  client_zones      the zone of a client: its rack, or what its network is mapped to
  denial_log        which denials are logged, a few a second for each tenant
  frame_memory      memory for large requests and responses of all connections
  held_bytes        budgets for the bytes of unfinished frames
  intents           what clients intend to delete, for the durability audit
  metering          usage counters of each tenant
  partition_limits  limits on a tenant's partitions and their changes (KIP-599)
  partition_reservations  partitions that are being created, which count as well
  platform_turns    how many platform requests of one tenant run at once
  pressure_reports  observes brokers under pressure, and reports it to a topic
  quota_shares      reports usage, and follows the quota shares assigned to this gateway
  ready_queue       fair shares of the event loop's time among tenants
  share_sessions    how many share sessions a tenant holds on a broker
  shared_counters   counters in memory that all workers share
  tenant_quota      charges a tenant's quota, and writes throttle times into responses
  throttle_queue    connections that wait for a limit, first in, first out
  worker_quota      a file's quotas, enforced by all workers together
"""

from penstock.wire.compiled import prefer_compiled as _prefer_compiled

_prefer_compiled(__name__, __path__)
