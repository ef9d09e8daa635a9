"""The `penstock` command: it reads flags, calls the packages below, and prints.

What it is: one module for each noun, with its verbs as functions. Data goes to standard output in the
form that `-o` selects, everything else to standard error.

What it is not: it assembles and runs no service. `penstock.platform` and the services do.

What it promises: an error comes from the catalogue, with its hint and its exit code; a misspelt
setting is an error, whichever the command; a command imports only what it needs.

Modules:
  app       the command tree, and the exit code of a run
  config    `config`: check, print and explain settings
  control   `control`: run a control plane, check it, export
  debug     `debug`: an archive for fault analysis
  doctor    `doctor`, `version`, `completion`: the installation
  flags     flags and confirmations that several commands share
  library   commands of the libraries for applications, and of simulations
  local     `up`, `down`, `status`, `logs`, `reset`: the local platform
  operator  commands for operators of physical clusters
  output    tables, JSON, YAML, progress and errors on the terminal
  profile   `profile`, `login`: platforms on other machines
  remote    finds the control plane or a logical cluster, and shows how operations progress
  settings  the settings file, the environment, and the flags of every command
  tail      the end of log files, and following them
  tenant    commands for tenants: clusters, topics, groups, records
  token     `token`: operators' tokens
  up        what `up` reads from its flags and shows while it runs
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
