"""Gateways in the control plane: which ones live, and the calls that they may not do themselves.

Modules:
  gateway_calls      executes for gateways what needs rights on the whole cluster
  gateway_directory  the gateways that have registered themselves, and whether they live
  gateway_follower   follows the gateways of every cluster, and their quota shares
  state_publisher    publishes tenants' states to gateways
"""
