"""The control plane as commands call it: over its HTTP API, wherever the active one is.

A change carries an idempotency key, so it is sent again without fear when an answer was lost, when
the control plane moves, or when it is still starting.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from penstock.cli.output import plain, progress, tell
from penstock.cli.settings import RemoteOptions, setting
from penstock.control.addresses import ADDRESS_FILE, TOKEN_FILE, URL_DEFAULT
from penstock.fleet.layout import Layout
from penstock.model.errors import PenstockError, catalogue
from penstock.model.errors.control import (
    ControlUnreachable,
    OperationFailed,
    OperationSlow,
    ProblemAnswered,
    TokenRefused,
)
from penstock.model.errors.fleet import NotRunning

CALL_SECONDS: Final = 30.0
PATIENCE_SECONDS: Final = 15.0  # for a control plane that starts or changes hands
PAUSE_SECONDS: Final = 0.25
WAIT_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.1
_SAFE: Final = "/?=&%"  # of a path with its query, whose values are quoted already


def connected(options: RemoteOptions) -> Control:
    url, token = options.url or setting("url", ""), operator_token(options.layout)
    if not url and not token:
        raise NotRunning(home=options.layout.home)  # and never did: the first start makes a token
    return Control(url or local_url(options.layout), token)


def local_url(layout: Layout) -> str:
    return str(read_address(layout).get("url", URL_DEFAULT))


def read_address(layout: Layout) -> dict[str, Any]:
    """What `penstock up` says of its control plane: url, pid, demo; nothing before its first start."""
    path = layout.home / ADDRESS_FILE
    return dict(json.loads(path.read_text())) if path.exists() else {}


def operator_token(layout: Layout) -> str:
    """From the environment, or what the local platform made for whoever may read its secrets."""
    if given := os.environ.get("PENSTOCK_TOKEN"):
        return given
    path = layout.secrets / TOKEN_FILE
    return path.read_text().strip() if path.exists() else ""


@dataclass
class Control:
    url: str
    token: str

    def get(self, path: str, **query: str) -> Any:
        asked = {name: value for name, value in query.items() if value}
        return self._call("GET", path + (f"?{urllib.parse.urlencode(asked)}" if asked else ""))[0]

    def read(self, path: str) -> tuple[Any, str]:
        """With its ETag."""
        return self._call("GET", path)

    def every(self, path: str, **query: str) -> Iterator[Any]:
        """Through all pages."""
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

    def wait(self, operation: dict[str, Any], *, seconds: float = WAIT_SECONDS) -> dict[str, Any]:
        """Until it ends, with its progress; an operation that failed is an error."""
        deadline = time.monotonic() + seconds
        told = ""
        with progress(f"{operation['action']} ({operation['id']})"):
            while operation["state"] == "running":
                if time.monotonic() > deadline:
                    raise OperationSlow(id=operation["id"], seconds=seconds)
                said = (
                    f"step {operation['steps_done'] + 1} of {operation['steps_total']}: {operation['step']}"
                )
                said += f", {operation['detail']}" if operation["detail"] else ""
                if said != told and operation["detail"]:
                    tell(plain(said))
                told = said
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
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self._once(method, path, body, headers or {})
            except PenstockError as error:
                active = error.facts.get("active")
                if isinstance(active, str) and active.startswith("http"):
                    self.url = active
                if not error.retriable or time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _once(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[Any, str]:
        sent = {"Authorization": f"Bearer {self.token}", "Accept": "application/json", **headers}
        data = None
        if body is not None:
            data, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        if not self.url.startswith(("http://", "https://")):
            raise ControlUnreachable(url=self.url, reason="it is no http address")
        place = f"{self.url}/v1{urllib.parse.quote(path, safe=_SAFE)}"
        request = urllib.request.Request(place, data, sent, method=method)  # noqa: S310 - checked
        try:
            with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:  # noqa: S310 - checked
                return json.loads(answer.read() or b"null"), answer.headers.get("ETag", "")
        except urllib.error.HTTPError as refused:
            with refused:
                raise _answered(self.url, refused) from None
        except (OSError, ValueError, http.client.HTTPException) as failure:
            reason = getattr(failure, "reason", failure)
            raise ControlUnreachable(url=self.url, reason=reason) from failure


def _answered(url: str, refused: urllib.error.HTTPError) -> PenstockError:
    """The problem as the control plane told it, with the exit status that its code has here."""
    try:
        problem = json.loads(refused.read())
        error = ProblemAnswered(
            message=problem["detail"], advice=problem["hint"], active=problem.get("active")
        )
    except (ValueError, KeyError, TypeError):
        return ControlUnreachable(url=url, reason=f"it answered {refused.code} and is no control plane")
    known = catalogue().get(problem["code"])
    if known is not None:
        error.code, error.exit_code, error.fault = known.code, known.exit_code, known.fault  # type: ignore[misc]  # as told
    error.retriable = bool(problem["retriable"])  # type: ignore[misc] # as it was told
    return error
