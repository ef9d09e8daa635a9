"""Keys, passwords and certificates of a local fleet, and the credentials of gateways.

Modules:
  certificate_rotation  replace the certificates of running nodes
  certificates          the platform's key, its CA, and node certificates
  gateway_credentials   the tenants' key of a cluster, as a file for its gateways
  passwords             the platform's Kafka users and their derived passwords
"""
