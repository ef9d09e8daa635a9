"""The HTTP API of the control plane.

It checks requests, tokens and versions, and leaves every decision to `control.decisions`.

Modules:
  app                the FastAPI app: errors, authentication, idempotency, paging
  auth               operator tokens and their roles
  backup_routes      routes for backups: their state, topics and plans
  body_limits        token and size of a request, checked before its body is read
  broker_routes      routes for brokers and their states
  broker_schemas     requests and responses of those routes
  controller_routes  routes for the controllers of physical clusters
  finding_routes     routes for findings of the durability audit
  gateway_routes     the list of gateways, and the calls that they make
  healing_routes     routes for healing: its mode, and what it proposes
  health_routes      routes for health, error budgets, incidents and holds
  link_routes        routes for cluster links
  load_routes        routes for broker load and its profile
  plan_routes        routes for balancing plans
  plan_schemas       requests and responses of those routes
  quota_routes       routes for quotas and usage
  quota_schemas      requests and responses of those routes
  resize_routes      routes that grow and shrink physical clusters
  roll_routes        routes for rolls, and for what nodes run with
  roll_schemas       requests and responses of those routes
  routes             all other routes, by resource
  schemas            requests and responses of those routes
  sizing_routes      routes for hardware profiles, advice and cost
"""
