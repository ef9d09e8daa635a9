"""How the example services say that something failed: JSON to programs, a page to people.

What can be tried again is tried again by the page itself: a snapshot that would be too old, or a view
that is starting, is there a moment later.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from fastapi.responses import HTMLResponse, JSONResponse, Response

from penstock.model.errors import Fault

if TYPE_CHECKING:
    from fastapi import Request

    from penstock.model.errors import PenstockError

AGAIN_SECONDS = 1


def failure(request: Request, error: PenstockError, *, later: int) -> Response:
    """`later` is the status for what may go well at another try."""
    status = 400 if error.fault is Fault.CALLER else later if error.retriable else 500
    if "text/html" in request.headers.get("accept", ""):
        again = error.retriable and request.method == "GET"
        page = (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>A moment</title>'
            f"<p>{escape(error.message)} ({error.code})</p><p>{escape(error.advice)}</p></html>"
        )
        return HTMLResponse(page, status, headers={"refresh": str(AGAIN_SECONDS)} if again else None)
    body = {"code": error.code, "message": error.message, "hint": error.advice, "retriable": error.retriable}
    return JSONResponse({"error": body}, status)
