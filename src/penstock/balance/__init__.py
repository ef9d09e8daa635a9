"""Where tenants live: cells of brokers, which tenant goes into which cell, and how a tenant is moved.

It never reads records and does not know quotas. It decides by measured load and never by the sum of
the quotas sold, because cells are oversubscribed on purpose.

It promises that a tenant's partitions are on its cell's brokers, with replicas in as many zones as
possible; that a move interrupted anywhere is finished by calling it again; and that no replication
throttle outlives its move.

All modules are pure decisions except `cluster_observation`, `execute`, `load_calibration` and
`replication_throttle`, which read and change a cluster.

Modules:
  actions               what a plan consists of: request, actions with reasons, what remains undone
  advice                is a cluster too small, too large, or on the wrong hardware?
  broker_load           how loaded a broker is: waiting times at high load, utilisation at low load
  cell_load             how full a cell is, and which part of that each tenant causes
  cell_relief           when a full cell is relieved, and at which pace
  cells                 forming cells, placing a new tenant, choosing who leaves a full cell
  cluster_model         builds the model from replicas, log sizes, traffic and broker load
  cluster_observation   reads what the executor needs to know of a running cluster
  cost                  what a cluster costs a month, by driver, from the user's prices
  execute               executes moves: the only code that reassigns, elects or throttles
  executing             the next actions of all moves on a cluster, within one budget
  goals                 what a balanced cluster is: resources, targets, and what each goal accepts
  leader_fitness        compares the logs of replicas before one of them is elected
  leader_return         which leaders return to their preferred brokers, and when
  load_calibration      drives a broker at known rates and measures it
  load_cost             what traffic costs of a broker's load, by hardware
  load_fit              fits the profile of broker load to such measurements
  load_hours            hours of a cluster's load, folded from observations
  model                 a cluster as arrays: replicas, what they cost, what each broker carries
  plan_document         a plan as a durable document, and what changed since it was made
  plan_job              jobs for the executor: a plan, and leaders that return
  plan_state            a plan in the making: what brokers carry, which steps are allowed
  planner               which replicas and leaders move for a goal, and why others stay
  profiles              hardware profiles: declared and measured values of a kind of machine
  replica_placement     replica assignments for new partitions, in distinct zones
  replication_throttle  Kafka's replication throttles (KIP-73) for the duration of a move
  rounds                when a cluster is balanced: bounds on pace, and what blocks it
  sizing                the smallest fleet that carries a demand, for every profile at once
  tenant_move           a tenant's move to another cell, as moves of its partitions
"""
