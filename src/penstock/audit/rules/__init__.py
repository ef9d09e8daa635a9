"""The rules of the durability audit: pure folds over the history of one subject.

Modules:
  case       what a rule gets to judge
  catalogue  the table of rules: name, invariant, evidence, operator action
  facts      how the facts of an event change the state
  finding    a violated rule, with a stable id
  fold       folds events into state and findings, whatever their order
  log_start  rules about the start of a log and its policies
  replicas   rules about positions, ends, sizes, epochs and the ISR
  reports    rules about scrubs, groups, links, backups and collectors
  state      what is remembered of a subject
  tier       rules about tiered storage
"""
