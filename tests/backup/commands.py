"""`penstock backup` as separate processes, against a test fleet."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import yaml

from penstock.fleet.credentials.passwords import NODE_USER, PLATFORM_USER, SCRAM_MECHANISM
from penstock.fleet.spec import Listener
from tests.harness.command import ROOT, clean_environment

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.fleet import Fleet

COMMAND_SECONDS_MAX = 300.0


def write_settings(fleet: Fleet, directory: Path, **more: Any) -> Path:
    """A settings file of a backup of this fleet, which has no TLS."""
    cluster = fleet.local.clusters[0].cluster
    document = {
        "cluster": {
            "bootstrap": fleet.bootstrap,
            "controllers": cluster.spec.bootstrap(Listener.CONTROLLER),
            "login": {
                "mechanism": SCRAM_MECHANISM,
                "user": PLATFORM_USER,
                "password": fleet.local.access.credentials.platform,
            },
        },
        "store": {"directory": "store", "prefix": "east"},
        "archive": {"interval_seconds": 0.2, "catalogue_seconds": 1},
        "shadow": {"directory": "shadow", "host": "127.0.0.1", "admitted": [NODE_USER, PLATFORM_USER]},
    }
    path = directory / "backup.yaml"
    path.write_text(yaml.safe_dump(document | more))
    return path


def start(*words: str, fault: str = "") -> subprocess.Popen[str]:
    environment = clean_environment({"PENSTOCK_FAULT": fault} if fault else {})
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", *words],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*words: str, fault: str = "") -> tuple[int, str]:
    """The exit code and everything that was printed."""
    process = start(*words, fault=fault)
    try:
        out, err = process.communicate(timeout=COMMAND_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"{words} did not end:\n{out}\n{err}") from None
    return process.returncode, out + err
