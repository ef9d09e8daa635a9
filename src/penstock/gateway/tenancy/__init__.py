"""What makes a logical cluster of a physical one: names, ids, ACLs, and calls on the platform's identity.

Modules:
  apis                 what happens to each Kafka API and version, as one table
  cluster_view         what a tenant sees of the physical cluster
  fetch_sessions       how many fetch sessions a tenant holds on a broker
  name_patterns        adds the tenant's prefix to regular expressions
  platform_client      Kafka calls on the platform's identity
  platform_requests    client requests executed on the platform's identity: ACLs, log dirs, configs, quotas
  request_rewriting    rebuilds requests: metadata, topics, partitions, share sessions, configs
  telemetry            clients' own metrics (KIP-714)
  tenant_acls          translates a tenant's ACLs to Kafka's and back
  tenant_configs       the settings a tenant may change, with their ranges, and those it is shown
  tenant_names         renames topics, groups and ids in both directions
  tenant_provisioning  creates a tenant's users, ACLs and byte rates in Kafka
  topic_ids            which topic ids are a tenant's, and masks for the others
"""

from penstock.wire.compiled import prefer_compiled as _prefer_compiled

_prefer_compiled(__name__, __path__)
