"""The `penstock` command as a user runs it: a process of its own, or in this one where that is enough."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND_SECONDS_MAX = 200.0


@dataclass(frozen=True)
class Ran:
    """How a command went."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error of a command that was asked for JSON: the last line it said."""
        found: dict[str, Any] = json.loads(self.err.splitlines()[-1])["error"]
        return found


def clean_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without anybody's settings, and with this very source tree."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    if "PENSTOCK_CACHE" in os.environ:
        kept["PENSTOCK_CACHE"] = os.environ["PENSTOCK_CACHE"]
    # Most tests of `up` need Kafka alone; those that need the platform say so.
    settings = {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1", "PENSTOCK_FLEET_ONLY": "yes"}
    return kept | settings | dict(more or {})


@dataclass(frozen=True)
class Penstock:
    """The command with a home and a working directory of its own."""

    home: Path
    directory: Path

    def __call__(self, *words: str, env: Mapping[str, str] | None = None) -> Ran:
        """Run it to its end."""
        done = subprocess.run(
            self.words(*words),
            cwd=self.directory,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS_MAX,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start it and go on; whoever calls ends it."""
        return subprocess.Popen(
            self.words(*words),
            cwd=self.directory,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "penstock", *words]

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return clean_environment({"PENSTOCK_HOME": str(self.home)} | dict(more or {}))

    def end_everything(self) -> None:
        """Whatever still runs under this home: the supervisor first, or it would start nodes again."""
        from penstock.fleet.identity import read_identity

        for record in [self.home / "supervisor.lock", *self.home.glob("clusters/*/*/process.json")]:
            if (identity := read_identity(record)) is not None:
                identity.signal(signal.SIGKILL)
