"""One archive for fault analysis: versions, settings, state, logs and metrics of a home, without secrets.

Only files named here are read. Every text is redacted twice: each secret of the home by its value, wherever
it occurs, and each value whose key is named like a secret.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import time
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.request import Request

from penstock.atomic_files import write_atomically
from penstock.fleet.layout import SECRET_FILE_MODE
from penstock.http_calls import open_url
from penstock.model.errors import PenstockError
from penstock.platform.control_client import connect, read_address
from penstock.platform.local_platform import service_logs
from penstock.platform.services import control_plane_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from penstock.fleet.layout import Layout
    from penstock.fleet.local_fleet import LocalFleet
    from penstock.fleet.status import FleetStatus

LOG_BYTES_MAX: Final = 1 << 20  # of each log, from its end
METRICS_SECONDS: Final = 3.0
SECRET_CHARACTERS_MIN: Final = 8  # a shorter text would be found by chance
HIDDEN: Final = "[redacted]"
_PATHS: Final = ("/status", "/clusters", "/physical-clusters", "/cells", "/operations")
# `password=x`, `"secret": "x"`, `token: x`, and whatever follows `jaas.config=`.
_NAMED: Final = re.compile(
    r"(?im)((?:password|secret|token|jaas\.config|credential)[\w.-]*[\"']?\s*[=:]\s*)"
    r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s,}\]][^\n,}\]]*)"
)


def write_bundle(
    to: Path, fleet: LocalFleet, status: FleetStatus, documents: Mapping[str, Any], lines: Iterable[str] = ()
) -> list[str]:
    """Write the archive, readable by this user alone; the names of its files.

    `documents` are further JSON documents by name; `lines` are further secrets.
    """
    layout = fleet.layout
    secrets = [*home_secrets(layout), *lines]
    credentials = fleet.access.credentials
    secrets += [credentials.node, credentials.platform]
    texts = {f"{name}.json": json.dumps(data, indent=2, default=str) for name, data in documents.items()}
    texts |= _settings(fleet) | _logs(fleet) | _metrics(layout, status) | _state(layout)
    root = f"penstock-debug-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in sorted(texts.items()):
            content = redacted(text, secrets).encode()
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(content))
    write_atomically(to, data.getvalue(), mode=SECRET_FILE_MODE)
    return sorted(texts)


def redacted(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, and without the values of keys that are named like secrets."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= SECRET_CHARACTERS_MIN:
            text = text.replace(secret, HIDDEN)
    return _NAMED.sub(rf"\g<1>{HIDDEN}", text)


def home_secrets(layout: Layout) -> list[str]:
    """Every text below the home's secrets, by line and by JSON value, and the token of the environment."""
    texts = [os.environ.get("PENSTOCK_TOKEN", "")]
    paths = [path for path in layout.secrets.rglob("*") if path.is_file()]
    for path in [*paths, *layout.adopted.glob("*.json")]:
        content = path.read_bytes()
        texts.append(content.hex())
        text = content.decode(errors="ignore")
        if path.suffix == ".json":
            document = json.loads(text)
            named = [value for key, value in document.items() if "secret" in key or "password" in key]
            texts += [value for value in named if isinstance(value, str)]
        elif "BEGIN CERTIFICATE" not in text or "PRIVATE KEY" in text:
            texts += [line.strip() for line in text.splitlines()]
    return [text for text in texts if text]


def _settings(fleet: LocalFleet) -> dict[str, str]:
    layout = fleet.layout
    paths = [layout.fleet_file, *(layout.home / "clusters").glob("*/gateway.yaml")]
    paths += [node.layout.properties for node in fleet.nodes]
    return {
        f"settings/{path.relative_to(layout.home)}": path.read_text(errors="replace")
        for path in paths
        if path.exists()
    }


def _logs(fleet: LocalFleet) -> dict[str, str]:
    files = {fleet.shown_name(node).replace("/", "-"): node.layout.log for node in fleet.nodes}
    texts = {}
    for name, path in (files | service_logs(fleet)).items():
        if path.exists():
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - LOG_BYTES_MAX))
                if size > LOG_BYTES_MAX:
                    file.readline()  # what is left of a line
                texts[f"logs/{name}.log"] = file.read().decode(errors="replace")
    return texts


def log_name(service: str) -> str:
    """What `penstock logs` calls a service: `control`, `gateway-home`."""
    return service.removesuffix(" plane").replace(" of ", "-")


def _metrics(layout: Layout, status: FleetStatus) -> dict[str, str]:
    """What each component serves, or why it does not."""
    urls = {f"{node.cluster}-{node.node}": f"http://{node.metrics}/metrics" for node in status.nodes}
    for service, address in read_address(layout).get("metrics", {}).items():
        urls[log_name(service)] = f"http://{address}/metrics"
    texts = {}
    for name, url in urls.items():
        try:
            with open_url(Request(url), timeout=METRICS_SECONDS) as response:  # noqa: S310 - of this home
                texts[f"metrics/{name}.txt"] = response.read().decode(errors="replace")
        except (OSError, HTTPException) as failure:
            texts[f"metrics/{name}.txt"] = f"# {url}: {failure}\n"
    return texts


def _state(layout: Layout) -> dict[str, str]:
    """What the control plane reports, or why it does not."""
    url = control_plane_url(layout)
    if not url:
        return {}
    texts = {}
    for path in _PATHS:
        try:
            document: Any = connect(layout, url).get(path)
        except PenstockError as error:
            document = {"error": error.message, "code": error.code}
        texts[f"state{path}.json"] = json.dumps(document, indent=2)
    return texts
