"""Seeded simulations of the platform's decisions at the size of a fleet, without a cluster.

Simulations call the functions that the services call (of `penstock.balance`, `penstock.quota`,
`penstock.health` and `penstock.control`) on generated populations, and report the outcome. They do not
predict milliseconds: each module documents what it assumes, and every result compares policies on the same
population. The same seed gives the same results on any machine.

Modules:
  cell_batching   connections, requests and load with and without cells (the paper's experiment)
  cell_month      a month of placement: how evenly cells fill, and how many tenants must move
  incident_month  months of faults, scripted cases and calm days of `incidents`
  incidents       one cluster with faults and noise, judged and mitigated
  plot            draws the result of `quota_week`
  rebalance       a month of balancing: hours of overload, and bytes copied to avoid them
  quota_week      a week of quotas: how many tenants meet the objective under each sharing scheme
  sizing          a quarter of sizing: cost and hours of overload, under four policies
  roll_batches    a roll of a large cluster: its time, and partitions below their minimum
  sick_brokers    what faults of brokers do to probes and clients
  traffic         generates a week of tenants' traffic
"""
