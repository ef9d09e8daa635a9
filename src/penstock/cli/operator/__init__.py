"""Commands for operators of physical clusters: size, balance, health, audit, backup.

Modules:
  audit             `audit`: what operators changed, and the durability audit
  audit_healing     `audit healing`: what is done about a corrupt leader
  audit_report      `audit report`: one day of the durability audit
  audit_stores      the object stores of audited clusters
  backup            `backup`: run, restore, verify and drill backups
  backup_expire     `backup expire`: delete what no restore needs any more
  backup_remote     `backup status` and `backup list` through the control plane
  balance           `balance`: broker load
  balance_plans     `balance`: plans that move replicas and leaders
  broker            `broker`: brokers and their states
  controllers       `fleet controllers`: the KRaft controllers of a physical cluster
  durability        `audit run` and others: the durability audit
  durability_scrub  `audit scrub`: read every copy of a log, and compare
  fleet             `fleet`: jars, connections, adoption, size
  fleet_roll        `fleet roll`: restart nodes without interrupting clients
  gateway           `gateway`: run, status, drain, provision
  health            `health`: brokers, error budgets, modes, holds, a checker
  health_drill      `health drill`: a fault on purpose
  health_incidents  `health incidents`: list, show, ack, resolve, bundle
  link              byte-identical mirrors of topics on another cluster
  physical          `physical`: physical clusters, and which features are off
  resize            `fleet grow`, `fleet shrink`, `cell grow`, `cell add`
  sizing            `fleet advise`, `cost`, `profiles`, `set`: size, hardware and cost
  tier              `tier`: segments in an object store
  tier_sweep        `tier sweep`: delete what Kafka deleted long enough ago
"""
