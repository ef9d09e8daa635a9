"""Health as clients see it: probes, error budgets, which brokers are sick, and what to do about them.

What it is: a checker that probes every broker through the gateways as a tenant; the arithmetic of the service
level objective on those probes; and pure decisions, from probes to states to the next step of a mitigation.

What it is not: it changes no broker. The control plane carries out the steps (`control.mitigating`).

What it promises: latency counts from when a probe was due. Missing evidence is unknown, never healthy. A
stalled checker judges no broker. One broker is acted on at a time, and none while the whole cluster is
affected.

Modules:
  checker          probes every broker of one physical cluster, as a tenant
  detector         which brokers are sick, judged from the evidence of each tick
  directory_probe  writes, flushes and reads a file in a log directory, in a child process
  evidence         what the probes of one tick show about each broker
  history          writes and reads `_penstock.health`
  inner_probe      a request without data to a broker's own listener
  metrics          a checker's Prometheus metrics
  mitigation       the next step for a sick broker, or why not
  probe_topics     creates and repairs the probe topics
  process          runs checkers until a signal stops them
  schedule         which probe is due when, and on which partitions
  settings         the settings file of a checker that runs anywhere
  slo              error budgets and burn alerts, from probes as they come
"""
