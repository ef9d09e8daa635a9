"""The `penstock` command: nouns and verbs over the services, and nothing of its own.

Data goes to standard output, in the form `-o` asks for; everything else goes to standard error.
Errors come from the catalogue, with their hint, and end with the exit code that stands there.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point. A library user has no command line installed, and is told so."""
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
