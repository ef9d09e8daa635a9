"""Load of brokers, and the plans that balance it.

Modules:
  balancing         balances physical clusters by themselves
  load_history      the history of broker load on `_penstock.load`
  load_hours        hours of load on `_penstock.load-hours`, for sizing
  load_observation  measures the load of brokers, cells and tenants
  load_profile      stores the profile of a physical cluster's brokers
  plan_service      runs plans, and lets leaders return, in the active control plane
  plan_store        the plans in their topic
  planning          makes plans: reads a cluster, models it, and stores what the planner returns
  relief_service    relieves full cells automatically
"""
