"""The simulator: plays load traces through a consumer group, an HPA and a scaler.

What it is: a deterministic, seeded model in steps of one second. It runs the same decision functions
that serve KEDA, and KEDA's own kafka scaler as the baseline.

What it is not: a model of Kafka. A partition is just a queue of waiting records.

What it promises: the HPA follows the rules Kubernetes documents, and is tested with its examples. The
baseline follows KEDA's code, including its cap bug. No scaler sees more than it would in production.

Modules:
  group   a consumer group: members, assignment, work, commits, rebalances
  hpa     the horizontal pod autoscaler
  keda    KEDA's kafka scaler, the baseline
  plot    plot the results of one trace
  run     play one trace with one scaler
  score   scale events, flaps, replica-minutes and lateness of a result
  traces  load traces, generated or from a CSV file
"""
