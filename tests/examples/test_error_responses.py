"""Errors of the example services, as pages and as JSON."""

from __future__ import annotations

import json

from fastapi import Request

from examples.error_responses import error_response
from penstock.model.errors.olep import EventIdInvalid
from penstock.model.errors.views import ViewBehind

BEHIND = ViewBehind(view="<views>", seconds=1)


def http_request(accept: str, method: str = "GET") -> Request:
    headers = [(b"accept", accept.encode())]
    return Request({"type": "http", "method": method, "headers": headers})


def test_the_page_of_a_retriable_error_reloads_itself() -> None:
    response = error_response(http_request("text/html,*/*"), BEHIND, retriable_status=503)
    assert (response.status_code, response.headers["refresh"]) == (503, "1")
    assert "&lt;views&gt;" in bytes(response.body).decode()


def test_a_permanent_error_and_a_failed_write_do_not_reload() -> None:
    permanent = EventIdInvalid(value="=x", reason="why")
    responses = [
        error_response(http_request("text/html"), permanent, retriable_status=503),
        error_response(http_request("text/html", "POST"), BEHIND, retriable_status=503),
    ]
    assert [(each.status_code, "refresh" in each.headers) for each in responses] == [
        (400, False),
        (503, False),
    ]


def test_a_program_gets_the_code_and_whether_to_retry() -> None:
    response = error_response(http_request("*/*"), BEHIND, retriable_status=504)
    error = json.loads(bytes(response.body))["error"]
    assert (response.status_code, error["code"], error["retriable"]) == (504, "PEN-7110", True)
