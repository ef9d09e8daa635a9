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
  audit_log           reads the audit topic in pages
  backups             state and plans of backups, and what is deleted from them
  balancing           balances physical clusters by themselves
  broker_states       what setting and clearing a broker's state changes in the registry
  call_batching       combines concurrent calls to Kafka into few
  capacity_units      capacity units: sizes, needs and quotas
  checker             compares the declared state with Kafka
  cluster_placement   which physical cluster and cell a new logical cluster gets
  controller_changes  lists and changes the controllers of physical clusters on request
  controller_steps    the steps that change the controllers of a local cluster
  controllers         what changing the controllers of a cluster changes in the registry
  decisions           what each request changes in the registry
  desired_state       a tenant's desired access in Kafka and its record for gateways
  effects             the effects of operation steps outside the registry
  findings            findings of the durability audit, of every physical cluster
  gateway_calls       executes for gateways what needs rights on the whole cluster
  gateway_directory   the gateways that have registered themselves, and whether they live
  gateway_follower    follows the gateways of every cluster, and their quota shares
  healing             modes of healing, and what the registry has of it
  healing_service     demotes a leader whose log has lost its beginning
  health_service      judges the brokers of every cluster, and acts on what is wrong
  health_settings     what setting modes, targets and holds changes in the registry
  health_situation    what the registry shows about a cluster whose brokers are judged
  home                the cluster that holds the registry, and what a new leadership term writes first
  incidents           what opens, continues and resolves an incident
  interventions       what may intervene in a physical cluster at the same time
  kafka_access        writes and reads tenants' users, ACLs and client quotas
  leadership          one leadership term: fencing, committing decisions, running operations
  links               cluster links of the known clusters, and what operators request of them
  load_history        the history of broker load on `_penstock.load`
  load_hours          hours of load on `_penstock.load-hours`, for sizing
  load_observation    measures the load of brokers, cells and tenants
  load_profile        stores the profile of a physical cluster's brokers
  metrics             Prometheus metrics
  mitigating          carries out mitigations through the executor and the restarter
  mitigations         what a step, its outcome and its release change in the registry
  notification        notifies operators of incidents: webhook, command, log
  observation         reads a cluster's actual state
  operations          the steps of every operation
  physical            physical clusters: providers, access, and their gateways
  plan_service        runs plans, and lets leaders return, in the active control plane
  plan_store          the plans in their topic
  planning            makes plans: reads a cluster, models it, and stores what the planner returns
  probe_tenants       the logical clusters of health checkers
  process             runs a control plane with its HTTP server
  reconnecting        connects a new leader to clusters that its predecessor provisioned
  registration        what a probe of a physical cluster changes in the registry
  registry            the registry in memory, folded from its topic
  registry_import     imports an export into an empty registry
  relief_service      relieves full cells automatically
  resize_steps        the steps of growing and shrinking a physical cluster
  resizer             grows and shrinks physical clusters on request
  resizing            what growing and shrinking a physical cluster changes in the registry
  roll_observation    reads what a roll needs to know of a running cluster
  roll_planning       checks a roll before it starts, and estimates it
  roll_service        runs rolls in the active control plane
  rolls               what starting, ordering, pausing and ending a roll changes in the registry
  service             a control plane: follows the registry, and leads while it owns the group
  settings            the settings file of a control plane that runs anywhere
  shrink_check        whether a physical cluster can do without some of its brokers
  sizing              advice on the size of physical clusters, and their cost
  state_publisher     publishes tenants' states to gateways
  step_outcome        what a step of an operation returns
"""
