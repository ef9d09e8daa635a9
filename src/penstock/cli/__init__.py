"""The `penstock` command: it reads flags, calls the packages below, and prints.

What it is: one module for each noun, with its verbs as functions. Data goes to standard output in the
form that `-o` selects, everything else to standard error.

What it is not: it assembles and runs no service. `penstock.platform` and the services do.

What it promises: an error comes from the catalogue, with its hint and its exit code; a misspelt
setting is an error, whichever the command; a command imports only what it needs.

Modules:
  app               the command tree, and the exit code of a run
  audit             `audit`: what operators changed, and the durability audit
  audit_healing     `audit healing`: what is done about a corrupt leader
  audit_report      `audit report`: one day of the durability audit
  audit_stores      the object stores of audited clusters
  backup            `backup`: run, restore, verify and drill backups
  backup_expire     `backup expire`: delete what no restore needs any more
  backup_remote     `backup status` and `backup list` through the control plane
  balance           `balance`: broker load
  balance_plans     `balance`: plans that move replicas and leaders
  broker            `broker`: brokers and their states
  client_settings   settings with which a Kafka client logs in
  cluster           `cluster`: logical clusters
  config            `config`: check, print and explain settings
  control           `control`: run a control plane, check it, export
  controllers       `fleet controllers`: the KRaft controllers of a physical cluster
  dead_letters      `consume dead-letters`: list and replay records that failed
  debug             `debug`: an archive for fault analysis
  doctor            `doctor`, `version`, `completion`: the installation
  durability        `audit run` and others: the durability audit
  durability_scrub  `audit scrub`: read every copy of a log, and compare
  flags             flags and confirmations that several commands share
  fleet             `fleet`: jars, connections, adoption, size
  fleet_roll        `fleet roll`: restart nodes without interrupting clients
  gateway           `gateway`: run, status, drain, provision
  group             `group`: a tenant's consumer groups
  health            `health`: brokers, error budgets, modes, holds, a checker
  health_drill      `health drill`: a fault on purpose
  health_incidents  `health incidents`: list, show, ack, resolve, bundle
  link              byte-identical mirrors of topics on another cluster
  local             `up`, `down`, `status`, `logs`, `reset`: the local platform
  manifests         `apply`: logical clusters and accounts from a file
  olep              `olep`: replay, trace, rejected events
  olep_view         `olep view`: run, inspect and rebuild views
  output            tables, JSON, YAML, progress and errors on the terminal
  physical          `physical`: physical clusters, and which features are off
  pipeline          `pipeline`: jobs on Spark
  profile           `profile`, `login`: platforms on other machines
  quota             `quota`, `usage`: quotas, use, and coordinators
  records           `produce`, `consume`: a tenant's records
  remote            finds the control plane or a logical cluster, and shows how operations progress
  resize            `fleet grow`, `fleet shrink`, `cell grow`, `cell add`
  scale             `scale`: the lag scaler for KEDA
  settings          the settings file, the environment, and the flags of every command
  sim               `sim`: simulations of a fleet
  sim_health        `sim health`: faults of brokers, judged and mitigated
  sizing            `fleet advise`, `cost`, `profiles`, `set`: size, hardware and cost
  tail              the end of log files, and following them
  tenants           `account`, `key`, `acl`, `operation`, `cell`
  tier              `tier`: segments in an object store
  tier_sweep        `tier sweep`: delete what Kafka deleted long enough ago
  token             `token`: operators' tokens
  topic             `topic`: a tenant's topics
  up                what `up` reads from its flags and shows while it runs
"""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point. Without the packages of the command line it names the extra to install."""
    try:
        from penstock.cli.app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("penstock"):
            raise
        from penstock.model.errors.settings import ExtraMissing

        missing = ExtraMissing(what="the penstock command", module=error.name, extra="platform")
        print(f"error: {missing}\n  {missing.advice}", file=sys.stderr)
        sys.exit(missing.exit_code)
    sys.exit(run())
