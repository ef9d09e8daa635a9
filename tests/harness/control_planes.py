"""Control planes from files alone, as on different hosts: they share nothing but Kafka."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import trustme
import yaml

from penstock.fleet.credentials.passwords import PlatformKey
from tests.harness.command import clean_environment
from tests.harness.fleet import wait_for
from tests.harness.secured_kafka import CLIENT, CLIENT_SECRET

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.processes import Processes
    from tests.harness.secured_kafka import SecuredKafka

TOKEN = "root-token-of-this-test"
KEY = PlatformKey(b"k" * 32)


@dataclass
class Plane:
    process: subprocess.Popen[Any]
    log: Path
    trusted: ssl.SSLContext

    @property
    def text(self) -> str:
        return self.log.read_text()

    @property
    def url(self) -> str:
        wait_for(lambda: "control plane at" in self.text or self.ended, what="the control plane to listen")
        match = re.search(r'control plane at (https://[^\s"]+)', self.text)
        assert match, self.text
        return match[1]

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def get(self, path: str) -> dict[str, Any]:
        return self.call("GET", path)

    def call(self, method: str, path: str, body: Any = None, *, token: str = TOKEN) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = Request(f"{self.url}/v1{path}", data, headers, method=method)
        with urlopen(request, timeout=30, context=self.trusted) as response:
            return dict(json.load(response))

    def status(self) -> dict[str, Any]:
        try:
            return self.get("/status")
        except OSError:
            return {"role": "away"}

    def wait_for_role(self, role: str) -> None:
        wait_for(lambda: self.status()["role"] == role or self.ended, what=f"role {role}")
        assert not self.ended, self.text


@dataclass
class Planes:
    """Starts control planes from files, as on different hosts: they share nothing but Kafka."""

    kafka: SecuredKafka
    processes: Processes
    directory: Path
    authority: trustme.CA = field(default_factory=trustme.CA)
    started: list[Plane] = field(default_factory=list)

    def certificate(self, path: Path) -> trustme.LeafCert:
        leaf = self.authority.issue_cert("127.0.0.1")
        leaf.private_key_and_cert_chain_pem.write_to_path(path)
        return leaf

    def settings(self, **changes: Any) -> dict[str, Any]:
        login = {"mechanism": "OAUTHBEARER", "token_url": self.kafka.tokens.url, "client_id": CLIENT}
        home = {
            "bootstrap": self.kafka.fleet.bootstrap,
            "tls": {"ca": str(self.kafka.ca)},
            "login": login | {"client_secret_file": "secret"},
        }
        return {
            "home": home,
            "platform_key": "platform.key",
            "token_file": "token",
            "listen": "127.0.0.1:0",
            "tls": {"certificate": "control.pem"},
            "session_seconds": 1.5,
        } | changes

    def host(self, document: dict[str, Any], *, key: bytes = KEY.secret) -> Path:
        """The files of one host."""
        host = self.directory / f"host-{len(self.started)}"
        host.mkdir()
        (host / "secret").write_text(CLIENT_SECRET)
        (host / "token").write_text(TOKEN)
        (host / "platform.key").write_bytes(key)
        self.certificate(host / "control.pem")
        (host / "control.yaml").write_text(yaml.safe_dump(document))
        return host

    def start(self, document: dict[str, Any], *, key: bytes = KEY.secret) -> Plane:
        host = self.host(document, key=key)
        with (host / "log").open("wb") as log:
            process = self.processes.start(
                [sys.executable, "-m", "penstock", "control", "run", "--config", str(host / "control.yaml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=clean_environment({}),
                cwd=host,
            )
        trusted = ssl.create_default_context()
        self.authority.configure_trust(trusted)
        self.started.append(Plane(process, host / "log", trusted))
        return self.started[-1]
