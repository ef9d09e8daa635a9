"""A schema registry for tests: Confluent's HTTP API, as far as readers and producers use it."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NOT_FOUND = 404


@dataclass
class RegistryServer:
    """Subjects with versions; `failures` makes the next requests fail with a server error."""

    url: str = ""
    schemas: list[dict[str, Any]] = field(default_factory=list)  # id − 1 → entry
    subjects: dict[str, list[int]] = field(default_factory=dict)  # → ids, by version
    requests: list[str] = field(default_factory=list)
    failures: int = 0

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: Any = ()) -> int:
        """Adds a version; returns the schema's id. A registry names no type for Avro."""
        entry: dict[str, Any] = {"schema": schema} | ({} if kind == "AVRO" else {"schemaType": kind})
        if references:
            entry["references"] = list(references)
        if entry not in self.schemas:
            self.schemas.append(entry)
        schema_id = self.schemas.index(entry) + 1
        self.subjects.setdefault(subject, []).append(schema_id)
        return schema_id

    def find(self, path: str) -> Mapping[str, Any] | None:
        match [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]:
            case ["schemas", "ids", number] if 0 < int(number) <= len(self.schemas):
                return self.schemas[int(number) - 1]
            case ["subjects", subject, "versions", version] if subject in self.subjects:
                versions = self.subjects[subject]
                at = len(versions) if version == "latest" else int(version)
                schema_id = versions[at - 1]
                return {"subject": subject, "version": at, "id": schema_id, **self.schemas[schema_id - 1]}
        return None


@contextmanager
def registry_server() -> Iterator[RegistryServer]:
    registry = RegistryServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.requests.append(self.path)
            entry = registry.find(self.path)
            status = 200 if entry is not None else NOT_FOUND
            if registry.failures:
                registry.failures -= 1
                status, entry = 503, None
            content = json.dumps(entry or {"error_code": status * 100 + 3, "message": "not found"}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
