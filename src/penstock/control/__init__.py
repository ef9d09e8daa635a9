"""The control plane: clusters, tenants, API keys and cells, stored in Kafka itself.

It is not on the data path. Gateways follow `_penstock.state` on their cluster, so tenants do not notice
whether a control plane is running.

It promises: a successful response means that the change is committed. One control plane writes at a
time, and a paused one cannot write after a takeover. Every effect outside the registry follows a
committed intent, is idempotent, and is finished by a successor. No secret is stored, logged or returned
a second time.

Modules:
  acls               ACLs of service accounts, and where each of them comes from
  api                the HTTP API
  audit_log          reads the audit topic in pages
  backups            state and plans of backups, and what is deleted from them
  call_batching      combines concurrent calls to Kafka into few
  capacity_units     capacity units: sizes, needs and quotas
  checker            compares the declared state with Kafka
  cluster_placement  which physical cluster and cell a new logical cluster gets
  decisions          what each request changes in the registry
  desired_state      a tenant's desired access in Kafka and its record for gateways
  effects            the effects of operation steps outside the registry
  gateways           registered gateways, what they get, and what is executed for them
  health             judges brokers, mitigates, and reports to operators
  home               the cluster that holds the registry, and what a new leadership term writes first
  kafka_access       writes and reads tenants' users, ACLs and client quotas
  leadership         one leadership term: fencing, committing decisions, running operations
  links              cluster links of the known clusters, and what operators request of them
  load               load of brokers, and the plans that balance it
  metrics            Prometheus metrics
  observation        reads a cluster's actual state
  operations         the steps of every operation
  physical           physical clusters: providers, access, and their gateways
  process            runs a control plane with its HTTP server
  reconnecting       connects a new leader to clusters that its predecessor provisioned
  registration       what a probe of a physical cluster changes in the registry
  registry           the registry in memory, folded from its topic
  registry_import    imports an export into an empty registry
  rolling            rolls of a cluster's nodes
  service            a control plane: follows the registry, and leads while it owns the group
  settings           the settings file of a control plane that runs anywhere
  size               growth, shrinking and controllers of physical clusters
  step_outcome       what a step of an operation returns
"""
