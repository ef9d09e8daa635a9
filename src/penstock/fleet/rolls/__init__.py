"""Decisions of a roll. Pure.

Modules:
  quorum_changes  which controllers may come and go, decided from what the quorum shows
  roll_batches    which brokers may be down together, and how many
  rolling         the next step of a roll, decided from what the cluster shows
"""
