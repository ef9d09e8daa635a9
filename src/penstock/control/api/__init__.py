"""The HTTP API of the control plane.

It checks requests, tokens and versions, and leaves every decision to `control.decisions`.

Modules:
  app            the FastAPI app: errors, authentication, idempotency, paging
  auth           operator tokens and their roles
  body_limits    token and size of a request, checked before its body is read
  quota_routes   routes for quotas and usage
  quota_schemas  requests and responses of those routes
  routes         all other routes, by resource
  schemas        requests and responses of those routes
"""
