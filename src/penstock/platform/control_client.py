"""Calls the control plane over its HTTP API, wherever the active one is.

A change carries an idempotency key. So it is sent again when a response was lost, when another
control plane became active, or when the control plane is still starting.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.control.physical.addresses import ADDRESS_FILE, TOKEN_FILE, URL_DEFAULT
from penstock.http_calls import leaves_tls, open_url
from penstock.kafka.security import tls_context
from penstock.model.errors import PenstockError, catalogue
from penstock.model.errors.control import (
    ControlUnreachable,
    ControlUntrusted,
    OperationFailed,
    OperationSlow,
    ProblemResponse,
    TokenRefused,
)
from penstock.model.errors.fleet import NotRunning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from penstock.fleet.layout import Layout

CALL_SECONDS: Final = 30.0
RETRY_SECONDS_MAX: Final = 15.0  # while a control plane starts or another becomes active
RETRY_SECONDS_BETWEEN: Final = 0.25
WAIT_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.1
_SAFE: Final = "/?=&%"  # in a path with its query, whose values are quoted already


def connect(layout: Layout, url: str = "", *, token: str = "", ca: Path | None = None) -> ControlClient:
    """A client of the control plane at `url`, else of the one that `penstock up` started."""
    token = token or operator_token(layout)
    if not url and not token:  # the first start makes a token
        raise NotRunning(home=layout.home)
    urls = [each.strip().rstrip("/") for each in (url or local_url(layout)).split(",")]
    tls = tls_context(ca) if any(each.startswith("https://") for each in urls) else None
    return ControlClient(urls[0], token, urls=urls, tls=tls)


def local_url(layout: Layout) -> str:
    return str(read_address(layout).get("url", URL_DEFAULT))


def read_address(layout: Layout) -> dict[str, Any]:
    """What the supervisor published: `url`, its `pid`, the `demo`. Empty before the first start."""
    path = layout.home / ADDRESS_FILE
    return dict(json.loads(path.read_text())) if path.exists() else {}


def operator_token(layout: Layout) -> str:
    """The token in the environment, else the one that the local platform saved; empty if neither."""
    if token := os.environ.get("PENSTOCK_TOKEN"):
        return token
    path = layout.secrets / TOKEN_FILE
    return path.read_text().strip() if path.exists() else ""


@dataclass
class ControlClient:
    url: str
    token: str
    urls: Sequence[str] = ()  # of every control plane; one that does not respond is followed by the next
    tls: ssl.SSLContext | None = None

    def get(self, path: str, **query: str) -> Any:
        parameters = {name: value for name, value in query.items() if value}
        return self._call("GET", path + (f"?{urllib.parse.urlencode(parameters)}" if parameters else ""))[0]

    def read(self, path: str) -> tuple[Any, str]:
        """The entity and its ETag."""
        return self._call("GET", path)

    def every(self, path: str, **query: str) -> Iterator[Any]:
        """The items of all pages."""
        cursor = ""
        while True:
            page = self.get(path, cursor=cursor, **query)
            yield from page["items"]
            cursor = page.get("cursor") or ""
            if not cursor:
                return

    def change(self, method: str, path: str, body: Any = None, *, version: str | None = None) -> Any:
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        if version is not None:
            headers["If-Match"] = version
        return self._call(method, path, body, headers)[0]

    def wait(
        self,
        operation: dict[str, Any],
        *,
        seconds: float = WAIT_SECONDS,
        until: str = "",
        on_step: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """The operation once it has ended, or is at the step `until`.

        Raises if it fails or takes longer than `seconds`.
        """
        deadline = time.monotonic() + seconds
        previous = ""
        while operation["state"] == "running" and operation["step"] != until:
            if time.monotonic() > deadline:
                raise OperationSlow(id=operation["id"], seconds=seconds)
            step = f"step {operation['steps_done'] + 1} of {operation['steps_total']}: {operation['step']}"
            step += f", {operation['detail']}" if operation["detail"] else ""
            if on_step is not None and step != previous and operation["detail"]:
                on_step(step)
            previous = step
            time.sleep(POLL_SECONDS)
            operation = self.get(f"/operations/{operation['id']}")
        if operation["state"] == "failed":
            raise OperationFailed(
                id=operation["id"],
                action=operation["action"],
                step=operation["step"],
                reason=operation["error"],
            )
        return operation

    def _call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[Any, str]:
        if not self.token:
            raise TokenRefused
        deadline = time.monotonic() + RETRY_SECONDS_MAX
        while True:
            try:
                return self._once(method, path, body, headers or {})
            except PenstockError as error:
                active = error.facts.get("active")
                if isinstance(active, str) and active.startswith("http"):
                    if leaves_tls(self.url, active):
                        reason = f"it refers to {active}, where the token would be sent without TLS"
                        raise ControlUnreachable(url=self.url, reason=reason) from error
                    self.url = active
                elif isinstance(error, ControlUnreachable):
                    self.url = self._next_url()
                if not error.retriable or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_SECONDS_BETWEEN)

    def _next_url(self) -> str:
        urls = [*self.urls] or [self.url]
        return urls[(urls.index(self.url) + 1) % len(urls)] if self.url in urls else urls[0]

    def _once(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[Any, str]:
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json", **headers}
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        if not self.url.startswith(("http://", "https://")):
            raise ControlUnreachable(url=self.url, reason="it is no http address")
        address = f"{self.url}/v1{urllib.parse.quote(path, safe=_SAFE)}"
        request = urllib.request.Request(address, data, headers, method=method)  # noqa: S310 - checked
        try:
            with open_url(request, timeout=CALL_SECONDS, tls=self.tls) as response:
                return json.loads(response.read() or b"null"), response.headers.get("ETag", "")
        except urllib.error.HTTPError as refusal:
            with refusal:
                raise _problem(self.url, refusal) from None
        except (OSError, ValueError, http.client.HTTPException) as failure:
            reason = getattr(failure, "reason", failure)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise ControlUntrusted(url=self.url, reason=reason.verify_message) from failure
            raise ControlUnreachable(url=self.url, reason=reason) from failure


def _problem(url: str, refusal: urllib.error.HTTPError) -> PenstockError:
    """The problem document as an error, with the exit code that the catalogue has for its code."""
    try:
        problem = json.loads(refusal.read())
        error = ProblemResponse(
            message=problem["detail"], advice=problem["hint"], active=problem.get("active")
        )
    except (ValueError, KeyError, TypeError):
        return ControlUnreachable(url=url, reason=f"it answered {refusal.code} and is no control plane")
    known = catalogue().get(problem["code"])
    if known is not None:
        error.code, error.exit_code, error.fault = known.code, known.exit_code, known.fault  # type: ignore[misc]  # of this error alone
    error.retriable = bool(problem["retriable"])  # type: ignore[misc]  # of this error alone
    return error
