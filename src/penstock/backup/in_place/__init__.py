"""Restores what a live topic has lost, while producers keep writing.

Modules:
  moves      the next move of such a restore
  partition  carries out the moves of one partition
  plan       what a restore in place does, and why it may not
  proof      compares replicas of a live topic
  restorer   restores what a live topic has lost
"""
