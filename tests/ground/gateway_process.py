"""Gateways as processes of their own, started by the command and found by what they say of themselves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import yaml

from penstock.control.gateways import free_ports
from penstock.gateway.running import running
from tests.ground.fleet import wait_for
from tests.ground.gateway import brokers_of, provisioned

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.gateway.config import Tenant
    from penstock.gateway.running import Running
    from tests.ground.fleet import Fleet
    from tests.ground.gateway import Access

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
    """A gateway's file, and those that run with it."""

    fleet: Fleet
    path: Path
    settings: dict[str, Any] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    def write(self, *accesses: Access) -> list[Access]:
        """Make them its tenants, in Kafka and in the file; they know the way in."""
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

    def start(self, workers: int | None = None) -> Running:
        """One more, which serves."""
        command = [sys.executable, "-m", "penstock", "gateway", "run", "--config", str(self.path)]
        more = [] if workers is None else ["--workers", str(workers)]
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

    def running(self) -> list[Running]:
        return running(self.path)

    def wait(self, one: Running) -> int:
        """Until it has ended; its exit code."""
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
