"""Health of brokers: what the control plane concludes from probes, does about it, and reports to operators.

Modules:
  broker_states     what setting and clearing a broker's state changes in the registry
  findings          findings of the durability audit, of every physical cluster
  healing           modes of healing, and what the registry has of it
  healing_service   demotes a leader whose log has lost its beginning
  health_service    judges the brokers of every cluster, and acts on what is wrong
  health_settings   what setting modes, targets and holds changes in the registry
  health_situation  what the registry shows about a cluster whose brokers are judged
  incidents         what opens, continues and resolves an incident
  interventions     what may intervene in a physical cluster at the same time
  mitigating        carries out mitigations through the executor and the restarter
  mitigations       what a step, its outcome and its release change in the registry
  notification      notifies operators of incidents: webhook, command, log
  probe_tenants     the logical clusters of health checkers
"""
