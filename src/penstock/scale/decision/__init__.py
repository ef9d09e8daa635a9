"""The scaling decision as pure functions: samples and a policy in, a verdict out.

What it is: everything that decides about replicas. One sample becomes a verdict in these steps:
`values`, `window`, `partition_facts`, `partition_state`, `group_rules` and `sizing`, `verdict`,
`hpa_metric`.

What it is not: it reads no clock, does no I/O and keeps no state.

What it promises: equal samples, policy and memory give an equal verdict, here and in the simulator.

Modules:
  group_rules      rules G1 to G10 about the group
  hpa_metric       the metric value that makes the HPA reach the requested count
  parameters       the trigger metadata as a table, for the CLI and the docs
  partition_facts  lag, rates and trends of each partition
  partition_state  rules P1 to P7: the state of a partition
  policy           the policy of a ScaledObject, parsed from its trigger metadata
  sizing           how many replicas a load needs
  values           samples, memory and verdicts
  verdict          `decide`: evaluate the rules in order
  window           the sample history of a group
"""
