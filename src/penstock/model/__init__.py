"""The platform's vocabulary as values: ids, entities, events on internal topics, settings, errors.

Nothing here opens a connection or reads a clock; time and randomness are passed in. Two modules reach
outside: `settings_reader` reads files, and `fault_points` kills its own process when a test has armed it.
Every other package may import this one, and this one imports no other.

Modules:
  ack_evidence      reads ack evidence, and what of it is missing
  api_keys          API keys and operators' tokens, and the hash of their secrets
  backoff           how long to wait after repeated failures
  dead_letter       headers of a dead letter: where the record came from, and why it failed
  durability        records of `_penstock.durability`: what happened to logs, and findings
  entities          what the registry stores: clusters, accounts, keys, quotas
  errors            every error, with its code and the way out
  events            records of the internal topics, field by field
  fault_points      named places where a test can kill the process
  gateway_names     which gateway has which name, from their heartbeats
  ids               ids, and the form of a tenant's names inside Kafka
  key_names         names of log keys, metrics and internal topics
  metric_catalogue  every metric of every process: type, unit, labels, meaning
  offset_map        which records beyond a committed offset are done, as commit metadata
  plural            counts with their noun in singular or plural
  schema            events as JSON, and the rules for changing them
  settings_reader   typed values from YAML files; unknown keys are errors
  settings_table    every setting of a kind of file: type, default, unit, meaning
  shadow_ids        broker ids that are reserved for shadow brokers
  tenant_acls       what a tenant's roles, grants and ACLs are inside Kafka
  tenant_state      what a gateway needs to know about a tenant
  zone_traffic      how usage reports name bytes that cross zones
"""
