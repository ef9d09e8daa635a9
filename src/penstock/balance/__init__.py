"""Where tenants live: cells of brokers, which tenant goes into which cell, and how a tenant is moved.

It never reads records and does not know quotas. It decides by measured load and never by the sum of
the quotas sold, because cells are oversubscribed on purpose.

It promises that a tenant's partitions are on its cell's brokers, with replicas in as many zones as
possible; that a move interrupted anywhere is finished by calling it again; and that no replication
throttle outlives its move.

All modules are pure decisions except `move_execution` and `replication_throttle`, which act on a cluster.

Modules:
  cell_load             how full a cell is, and which part of that each tenant causes
  cell_relief           when a full cell is relieved, and at which pace
  cells                 forming cells, placing a new tenant, choosing who leaves a full cell
  goals                 what a balanced cluster is: resources, targets, and what each goal accepts
  model                 a cluster as arrays: replicas, what they cost, what each broker carries
  move_execution        moves a tenant's partitions to another cell of a running cluster
  move_plan             which partitions move where, in which batches, and the next step of a move
  planner               which replicas and leaders move for a goal, and why others stay
  replica_placement     replica assignments for new partitions, in distinct zones
  replication_throttle  Kafka's replication throttles (KIP-73) for the duration of a move
"""
