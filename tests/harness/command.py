"""Run the `penstock` command as a user does, in a separate process."""

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
class CommandResult:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error of a command with JSON output: the last line of its standard error."""
        error: dict[str, Any] = json.loads(self.err.splitlines()[-1])["error"]
        return error


def clean_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without PENSTOCK_ settings, and with this source tree."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    if "PENSTOCK_CACHE" in os.environ:
        environment["PENSTOCK_CACHE"] = os.environ["PENSTOCK_CACHE"]
    # Most tests of `up` need only Kafka; the others override this.
    settings = {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1", "PENSTOCK_FLEET_ONLY": "yes"}
    return environment | settings | dict(more or {})


@dataclass(frozen=True)
class Penstock:
    """The command with a separate home, working directory and profiles."""

    home: Path
    directory: Path

    def __call__(self, *words: str, env: Mapping[str, str] | None = None) -> CommandResult:
        """Run a command and wait for its end."""
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
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a command without waiting; the caller must end it."""
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
        own = {"PENSTOCK_HOME": str(self.home), "XDG_CONFIG_HOME": str(self.directory / ".config")}
        return clean_environment(own | dict(more or {}))

    def end_everything(self) -> None:
        """Kill everything that runs below this home; the supervisor first, or it would restart nodes."""
        from penstock.process_identity import read_identity

        for record in [self.home / "supervisor.lock", *self.home.glob("clusters/*/*/process.json")]:
            if (identity := read_identity(record)) is not None:
                identity.signal(signal.SIGKILL)
