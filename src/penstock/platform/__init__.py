"""The local platform: what `penstock up` starts, and how a command finds it again.

What it is: the fleet of this machine with its control plane, quota coordinator, gateways and demo
tenant, started, watched, stopped and expanded together; a client of the control plane's HTTP API; and
the API keys that are saved on this machine.

What it is not: it prints nothing and reads no flags, which `penstock.cli` does. Single services run
from their own packages (`gateway.process`, `control.process`, `quota.process`).

What it promises: a start that fails ends what it started and nothing else; a supervisor that dies
leaves the brokers running, and the next one takes them over; processes started beside the fleet end
with it.

Modules:
  checker_tenant      the health checker's logical cluster, its key, and the clusters that it probes
  companions          the processes beside the fleet: control plane, coordinator, gateways, checker
  control_client      calls the control plane's HTTP API, and waits for operations
  debug_bundle        versions, settings, state, logs and metrics in one archive, without secrets
  drill_guard         makes a process stand still, and lets it continue whatever happens
  demo_tenant         a logical cluster with one topic and a record a second
  keyring             API keys saved on this machine
  local_platform      starts, supervises, stops and deletes the local platform
  profiles            platforms on other machines, in the user's configuration directory
  reachability        whether something listens at an address, found out at once
  services            the state of the platform's services and of the pipeline's jobs
  supervisor_metrics  the supervisor's metrics, and whether all that it runs is ready
"""
