"""What a service says when it cannot answer."""

from __future__ import annotations

import json

from fastapi import Request

from examples.answers import failure
from penstock.model.errors.olep import EventIdInvalid
from penstock.model.errors.views import ViewBehind

BEHIND = ViewBehind(view="<views>", seconds=1)


def asked(accept: str, method: str = "GET") -> Request:
    headers = [(b"accept", accept.encode())]
    return Request({"type": "http", "method": method, "headers": headers})


def test_a_reader_is_shown_a_page_that_tries_again_by_itself() -> None:
    answer = failure(asked("text/html,*/*"), BEHIND, later=503)
    assert (answer.status_code, answer.headers["refresh"]) == (503, "1")
    assert "&lt;views&gt;" in bytes(answer.body).decode()


def test_what_will_not_get_better_or_writes_is_not_tried_again() -> None:
    wrong = EventIdInvalid(value="=x", reason="why")
    found = [
        failure(asked("text/html"), wrong, later=503),
        failure(asked("text/html", "POST"), BEHIND, later=503),
    ]
    assert [(each.status_code, "refresh" in each.headers) for each in found] == [(400, False), (503, False)]


def test_a_program_gets_the_code_and_whether_to_try_again() -> None:
    answer = failure(asked("*/*"), BEHIND, later=504)
    told = json.loads(bytes(answer.body))["error"]
    assert (answer.status_code, told["code"], told["retriable"]) == (504, "PEN-7110", True)
