"""Clusters that run elsewhere: what they allow, and how their nodes are restarted.

Modules:
  adoption          adopt a cluster that runs elsewhere: probe it and record what it allows
  capabilities      what an adopted cluster allows, as a table of capabilities
  capability_probe  probe what a cluster allows, without changing anything on it
  restart_commands  restart nodes that run elsewhere: by a command, or by hand
  rights            the rights that the platform's Kafka user needs, and how to grant them
"""
