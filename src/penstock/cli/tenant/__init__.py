"""Commands for tenants: their clusters, topics, groups and records.

Modules:
  client_settings  settings with which a Kafka client logs in
  cluster          `cluster`: logical clusters
  group            `group`: a tenant's consumer groups
  manifests        `apply`: logical clusters and accounts from a file
  quota            `quota`, `usage`: quotas, use, and coordinators
  records          `produce`, `consume`: a tenant's records
  tenants          `account`, `key`, `acl`, `operation`, `cell`
  topic            `topic`: a tenant's topics
"""
