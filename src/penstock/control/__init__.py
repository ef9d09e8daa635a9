"""The control plane: clusters, tenants, API keys and cells, stored in Kafka itself.

It is not on the data path. Gateways follow `_penstock.state` on their cluster, so tenants do not notice
whether a control plane is running.

It promises: a successful response means that the change is committed. One control plane writes at a
time, and a paused one cannot write after a takeover. Every effect outside the registry follows a
committed intent, is idempotent, and is finished by a successor. No secret is stored, logged or returned
a second time.

Modules:
  acls                ACLs of service accounts, and where each of them comes from
  api                 the HTTP API
  call_batching       combines concurrent calls to Kafka into few
  capacity_units      capacity units: sizes, needs and quotas
  certificate_reload  loads the HTTP API's certificate again when its files change
  checker             compares the declared state with Kafka
  cluster_placement   which physical cluster and cell a new logical cluster gets
  decisions           what each request changes in the registry
  desired_state       a tenant's desired access in Kafka and its record for gateways
  effects             the effects of operation steps outside the registry
  kafka_access        writes and reads tenants' users, ACLs and client quotas
  leadership          one leadership term: fencing, committing decisions, running operations
  metrics             Prometheus metrics
  observation         reads a cluster's actual state, and measures the load of its cells
  operations          the steps of every operation
  physical            physical clusters: providers, access, and their gateways
  process             runs a control plane with its HTTP server
  registry            the registry in memory, folded from its topic
  registry_import     imports an export into an empty registry
  relief_service      relieves full cells automatically
  service             a control plane: follows the registry, and leads while it owns the group
  settings            the settings file of a control plane that runs anywhere
  state_publisher     publishes tenants' states to gateways
"""
