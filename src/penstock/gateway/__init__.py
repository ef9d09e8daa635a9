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
  config      brokers, tenants and accounts as values; which connections a change closes
  connection  one client's connection, without I/O
  limits      what clients and tenants may use, and how it is counted
  process     a gateway as a process: sockets, configuration, workers, metrics
  settings    reads a gateway's YAML file
  tenancy     what makes a logical cluster of a physical one
"""
