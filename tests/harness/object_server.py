"""A small S3 server in memory, which can be slow, full, overloaded, or cut what it sends.

    with ObjectServer.start() as server:
        server.fault = Fault.OVERLOADED

It speaks what a store of segments needs: conditional puts, ranges, lists and multipart uploads. It does not
check signatures.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from types import TracebackType

SLOW_SECONDS = 0.3
RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class Fault(Enum):
    NONE = "none"
    OVERLOADED = "503 for every request"
    FULL = "507 for every write"
    SLOW = "each response comes late"
    SILENT = "no response until the fault ends"
    CUT = "every body ends half-way"


@dataclass
class ObjectServer:
    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    requests: int = 0
    writes_refused_if_present: int = 0
    _fault: Fault = Fault.NONE
    _healed: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def start(cls) -> Self:
        server = cls()
        server._healed.set()

        handler = type("Handler", (_Handler,), {"state": server})
        server._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server._http.daemon_threads = True
        server._thread = threading.Thread(target=server._http.serve_forever, daemon=True)
        server._thread.start()
        return server

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def fault(self) -> Fault:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        self._fault = fault
        self._healed.clear() if fault is Fault.SILENT else self._healed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.fault = Fault.NONE
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    _http: ThreadingHTTPServer = field(init=False, repr=False)
    _thread: threading.Thread = field(init=False, repr=False)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: ObjectServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Nothing is printed."""

    def handle_expect_100(self) -> bool:
        return True if self.state.fault is Fault.SILENT else super().handle_expect_100()

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("x-amz-content-sha256", "").startswith("STREAMING"):
            body = _unframed(body)
        if self._fails(writes=True):
            return
        key, query = self._place()
        if "uploadId" in query:
            self.state.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
            self._send(200, headers={"ETag": _tag(body)})
        else:
            self._create(key, body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self._fails(writes=True):
            return
        key, query = self._place()
        if "uploads" in query:
            upload = f"upload-{len(self.state.uploads)}-{self.state.requests}"
            self.state.uploads[upload] = {}
            self._send(200, _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>"))
            return
        upload = query["uploadId"][0]
        parts = self.state.uploads[upload]
        data = b"".join(parts[number] for number in sorted(parts))
        if self._create(key, data, _xml("CompleteMultipartUploadResult", f"<ETag>{_tag(data)}</ETag>")):
            del self.state.uploads[upload]

    def do_GET(self) -> None:
        if self._fails():
            return
        key, query = self._place()
        if "list-type" in query or not key:
            self._list(query)
        elif key not in self.state.objects:
            self._send(404, _xml("Error", "<Code>NoSuchKey</Code><Message>no such key</Message>"))
        else:
            data = self.state.objects[key]
            headers = {"ETag": _tag(data), "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
            if match := RANGE.match(self.headers.get("Range", "")):
                first, last = int(match[1]), min(int(match[2]), len(data) - 1)
                headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
                self._send(206, data[first : last + 1], headers)
            else:
                self._send(200, data, headers)

    def do_DELETE(self) -> None:
        if self._fails(writes=True):
            return
        key, query = self._place()
        if "uploadId" in query:
            self.state.uploads.pop(query["uploadId"][0], None)
        else:
            self.state.objects.pop(key, None)
        self._send(204)

    def _create(self, key: str, body: bytes, response: bytes = b"") -> bool:
        if self.headers.get("If-None-Match") == "*" and key in self.state.objects:
            self.state.writes_refused_if_present += 1
            self._send(412, _xml("Error", "<Code>PreconditionFailed</Code><Message>exists</Message>"))
            return False
        self.state.objects[key] = body
        self._send(200, response, {"ETag": _tag(body)})
        return True

    def _list(self, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        keys = sorted(key for key in self.state.objects if key.startswith(prefix))
        rows = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(self.state.objects[key])}</Size>"
            "<LastModified>2025-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in keys[: int(query.get("max-keys", ["1000"])[0])]
        )
        self._send(200, _xml("ListBucketResult", f"<IsTruncated>false</IsTruncated>{rows}"))

    def _place(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        key = unquote(parts.path).lstrip("/").partition("/")[2]
        return key, parse_qs(parts.query, keep_blank_values=True)

    def _fails(self, *, writes: bool = False) -> bool:
        """Whether a fault has responded already."""
        self.state.requests += 1
        fault = self.state.fault
        if fault is Fault.SILENT:
            self.state._healed.wait()
            self.close_connection = True
            return True
        if fault is Fault.SLOW:
            time.sleep(SLOW_SECONDS)
        elif fault is Fault.OVERLOADED:
            self._send(503, _xml("Error", "<Code>SlowDown</Code><Message>reduce your rate</Message>"))
        elif fault is Fault.FULL and writes:
            self._send(507, _xml("Error", "<Code>QuotaExceeded</Code><Message>full</Message>"))
        return fault is Fault.OVERLOADED or (fault is Fault.FULL and writes)

    def _send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.state.fault is Fault.CUT and status in (200, 206) and body:
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        else:
            self.wfile.write(body)


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _xml(name: str, inner: str) -> bytes:
    return f'<?xml version="1.0"?><{name}>{inner}</{name}>'.encode()


def _unframed(body: bytes) -> bytes:
    """The content of a body in signed chunks."""
    content, at = b"", 0
    while True:
        end = body.index(b"\r\n", at)
        length = int(body[at:end].partition(b";")[0], 16)
        if length == 0:
            return content
        content += body[end + 2 : end + 2 + length]
        at = end + 2 + length + 2
