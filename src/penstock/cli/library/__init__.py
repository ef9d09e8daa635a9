"""Commands for the libraries that applications use, and for simulations.

Modules:
  dead_letters  `consume dead-letters`: list and replay records that failed
  olep          `olep`: replay, trace, rejected events
  olep_view     `olep view`: run, inspect and rebuild views
  pipeline      `pipeline`: jobs on Spark
  scale         `scale`: the lag scaler for KEDA
  sim           `sim`: simulations of a fleet
  sim_health    `sim health`: faults of brokers, judged and mitigated
"""
