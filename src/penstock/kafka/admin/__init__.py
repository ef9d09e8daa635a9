"""Kafka's admin APIs as short typed functions on a `Client`.

A function named like Kafka's operation sends the request to the right node and returns values. Calls
about many things return `{thing: result or error}`, because each may fail on its own; `outcomes` turns
the first error into an exception where one failure is the failure of all.

Modules:
  acls           create, describe and delete ACLs
  brokers        describe and unregister brokers, feature levels
  configs        configuration of topics, brokers, groups and loggers
  group_offsets  committed offsets of consumer groups, and their lag
  groups         list, describe and delete groups of every type
  log_dirs       log directories of brokers, sizes of replicas
  offsets        offsets of partitions, deleting records
  outcomes       results of calls in which each item may fail
  partitions     topic partitions, and calls to the leader of each
  quotas         Kafka's client quotas
  reassignments  move replicas, elect leaders
  share_groups   offsets of share groups (KIP-932)
  topics         create, delete and describe topics, add partitions
  transactions   transactions and producers: list, describe, fence, abort
  users          SCRAM users
"""
