"""Turns an error into a response of an example service: JSON for programs, a page for people.

The page of a retriable error reloads itself: a view that is behind or starting catches up in a moment.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from fastapi.responses import HTMLResponse, JSONResponse, Response

from penstock.model.errors import Fault

if TYPE_CHECKING:
    from fastapi import Request

    from penstock.model.errors import PenstockError

RELOAD_SECONDS = 1


def error_response(request: Request, error: PenstockError, *, retriable_status: int) -> Response:
    """`retriable_status` is the HTTP status of an error that may go away."""
    status = 400 if error.fault is Fault.CALLER else retriable_status if error.retriable else 500
    if "text/html" in request.headers.get("accept", ""):
        reloads = error.retriable and request.method == "GET"
        page = (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>One moment</title>'
            f"<p>{escape(error.message)} ({error.code})</p><p>{escape(error.advice)}</p></html>"
        )
        return HTMLResponse(page, status, headers={"refresh": str(RELOAD_SECONDS)} if reloads else None)
    body = {"code": error.code, "message": error.message, "hint": error.advice, "retriable": error.retriable}
    return JSONResponse({"error": body}, status)
