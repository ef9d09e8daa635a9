"""Gateways as separate processes, started with the command and found by their run files."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import yaml

from penstock.control.physical.gateway_files import free_ports
from penstock.gateway.process.run_file import running
from tests.harness.fleet import wait_for
from tests.harness.gateway import brokers_of, provisioned

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.gateway.config import Tenant
    from penstock.gateway.process.run_file import RunFile
    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access

START_SECONDS = 120.0
STOP_SECONDS = 60.0


def _rows(tenant: Tenant) -> dict[str, Any]:
    limits = tenant.limits
    return {
        "id": tenant.id,
        "accounts": [{"id": account} for account in tenant.accounts],
        "keys": [
            {"id": key.id, "secret_sha256": key.secret_sha256.hex(), "account": key.account}
            for key in tenant.keys
        ],
        "limits": {
            "connections_max": limits.connections_max,
            "connection_attempts_per_second": limits.connection_attempts_per_second,
        },
        "quota": {f"{dimension}_per_second": rate for dimension, rate in tenant.quota.items()},
    }


@dataclass
class GatewayFile:
    """A gateway's settings file, and the gateways that run with it."""

    fleet: Fleet
    path: Path
    settings: dict[str, Any] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    def write(self, *accesses: Access) -> list[Access]:
        """Provision these tenants in Kafka and write the file; returns them with their bootstrap address."""
        asyncio.run(provisioned(self.fleet, [access.tenant for access in accesses]))
        brokers = brokers_of(self.fleet)
        self.ports = self.ports or free_ports(len(brokers))
        document = {
            "gateway": "gw-1",
            "cluster": "pkc-000001",
            "platform_key": str(self.fleet.local.layout.secrets / "platform.key"),
            "metrics_port": 0,
            "brokers": [
                {"id": int(b.id), "zone": b.zone, "address": f"{b.host}:{b.port}", "port": port}
                for b, port in zip(brokers, self.ports, strict=True)
            ],
            "tenants": [_rows(access.tenant) for access in accesses],
            **self.settings,
        }
        if document.get("tenants_from") == "state":
            del document["tenants"]
        scratch = self.path.with_suffix(".new")
        scratch.write_text(yaml.safe_dump(document))
        scratch.rename(self.path)
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return [replace(access, bootstrap=bootstrap) for access in accesses]

    def start(self, workers: int | None = None, *, descriptors: int | None = None) -> RunFile:
        """Start another gateway, with at most so many descriptors, and wait until it serves."""
        command = [sys.executable, "-m", "penstock", "gateway", "run", "--config", str(self.path)]
        more = [] if workers is None else ["--workers", str(workers)]
        if descriptors is not None:
            command = ["prlimit", f"--nofile={descriptors}:{descriptors}", *command]
        with self.path.with_suffix(".log").open("ab") as log:
            process = subprocess.Popen(
                [*command, *more, "--until-stdin-ends"], stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        self.started.append(process)

        def serves() -> bool:
            assert process.poll() is None, self.path.with_suffix(".log").read_text()[-4000:]
            return any(one.pid == process.pid for one in self.running())

        wait_for(serves, what="the gateway to serve", seconds=START_SECONDS)
        return next(one for one in self.running() if one.pid == process.pid)

    def running(self) -> list[RunFile]:
        return running(self.path)

    def wait(self, one: RunFile) -> int:
        """Wait for its end; returns its exit code."""
        (process,) = [process for process in self.started if process.pid == one.pid]
        self.started.remove(process)
        with suppress(BrokenPipeError):
            process.communicate(timeout=STOP_SECONDS)
        return process.returncode

    def stop(self) -> None:
        for process in self.started:
            with suppress(BrokenPipeError, subprocess.TimeoutExpired):
                process.communicate(timeout=STOP_SECONDS)  # its standard input ends
            process.kill()
            process.wait()
        self.started.clear()
