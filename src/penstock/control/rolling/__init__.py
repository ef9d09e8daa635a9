"""Rolls in the control plane: restarts of a cluster's nodes that clients do not notice.

Modules:
  roll_observation  reads what a roll needs to know of a running cluster
  roll_planning     checks a roll before it starts, and estimates it
  roll_service      runs rolls in the active control plane
  rolls             what starting, ordering, pausing and ending a roll changes in the registry
"""
