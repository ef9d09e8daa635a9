"""Physical clusters: who provides them, how they are reached, and the gateways in front of them.

It knows addresses and secrets, which the registry does not. It makes no decisions about tenants.

Modules:
  addresses           default URL, file names and root token of a local control plane
  adopted             dedicated clusters on adopted brokers that run elsewhere
  backup_file         the settings file of a local cluster's backup
  cluster_access      how physical clusters are reached: addresses, secrets, clients
  configured          clusters that the control plane's settings name
  gateway_files       the settings file of a cluster's gateways, and free ports
  gateway_supervisor  keeps gateways of provided clusters running
  local               clusters of local processes
  local_controllers   the controllers of a local cluster, and how they come and go
  local_nodes         restarting the nodes of a local fleet, and their log directories
  provider            chooses the provider of a cluster
  roll_nodes          the nodes of a cluster for a roll, and what restarts them
"""
