"""Seeded simulations of the platform's decisions at the size of a fleet, without a cluster.

Simulations call the functions that the services call (`penstock.balance`, `penstock.quota`) on generated
populations, and report the outcome. They do not predict milliseconds: each module documents what it
assumes, and every result compares policies on the same population. The same seed gives the same results
on any machine.

Modules:
  cell_batching  connections, requests and load with and without cells (the paper's experiment)
  cell_month     a month of placement: how evenly cells fill, and how many tenants must move
  plot           draws the result of `quota_week`
  rebalance      a month of balancing: hours of overload, and bytes copied to avoid them
  quota_week     a week of quotas: how many tenants meet the objective under each sharing scheme
  sizing         a quarter of sizing: cost and hours of overload, under four policies
  roll_batches   a roll of a large cluster: its time, and partitions below their minimum
  traffic        generates a week of tenants' traffic
"""
