"""The bank's HTTP service: appends a request to the log and responds with its outcome.

    POST /payments   {"from": "ann", "to": "bob", "amount": 1200}     Idempotency-Key: any id
      200 {"state": "paid" …}   409 {"state": "declined", "reason": …}
      504 the outcome is not known yet: repeat the request with the same key

The response carries a token; a read with `?after=<token>` includes the payment.

    GET /payments/r-17?after=…     the payment and both its accounts, from three views as of one position
    GET /search?q=ann              GET / (a page)

The service writes to no database: it can be killed at any time, and run several times in parallel.
"""

from __future__ import annotations

import time
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Header, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from examples.error_responses import error_response
from examples.payments.bank import ACCOUNT_LENGTH_MAX, AMOUNT_MAX, OUTCOME_TYPES
from examples.payments.pages import payment_page, search_page
from examples.payments.queries import BankQueries
from examples.payments.statements import balance, statement
from penstock.model.errors import PenstockError
from penstock.olep.event import Event, request
from penstock.olep.outcome import Outcomes
from penstock.olep.position import Position

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from examples.payments.settings import Settings

OUTCOME_SECONDS = 10.0
_STATUS = {"payment.outgoing": 200, "account.opened": 201}

IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key")]
Name = Annotated[str, Field(min_length=1, max_length=ACCOUNT_LENGTH_MAX)]
Cents = Annotated[int, Field(ge=0, le=AMOUNT_MAX, strict=True)]


class NewAccount(BaseModel):
    model_config = ConfigDict(extra="forbid")
    account: Name
    deposit: Cents = 0
    overdraft: Cents = 0
    ceiling: Cents | None = None


class Payment(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    source: Annotated[Name, Field(alias="from")]
    to: Name
    amount: Annotated[int, Field(gt=0, le=AMOUNT_MAX, strict=True)]
    agreement: bool = False  # whether the destination must agree


def service(settings: Settings) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with Outcomes(settings.accounts_log(), OUTCOME_TYPES) as outcomes, BankQueries(settings) as queries:
            app.state.outcomes = outcomes
            app.state.queries = queries
            yield

    app = FastAPI(title="A bank that never loses a cent", lifespan=lifespan)

    @app.exception_handler(PenstockError)
    async def failed(request: Request, error: PenstockError) -> Response:
        return error_response(request, error, retriable_status=504)

    async def outcome_of(account: str, event: Event) -> JSONResponse:
        outcomes: Outcomes = app.state.outcomes
        final = await outcomes.ask_async(account, event, timeout=OUTCOME_SECONDS)
        state = {"payment.outgoing": "paid", "account.opened": "opened"}.get(final.type, "declined")
        token = Position.at(outcomes.log.topic_id, final.partition, final.offset + 1).token()
        body = {"id": event.id, "state": state, "event": final.id, "token": token, **final.payload}
        return JSONResponse(body, _STATUS.get(final.type, 409))

    @app.post("/accounts")
    async def open_account(body: NewAccount, idempotency_key: IdempotencyKey = None) -> JSONResponse:
        payload = body.model_dump(exclude={"account"})
        return await outcome_of(body.account, _request(idempotency_key, "account.open", payload))

    @app.post("/payments")
    async def pay(body: Payment, idempotency_key: IdempotencyKey = None) -> JSONResponse:
        kind = "payment.offered" if body.agreement else "payment.requested"
        payload = {"to": body.to, "amount": body.amount}
        return await outcome_of(body.source, _request(idempotency_key, kind, payload))

    @app.get("/accounts/{account}")
    def show(account: str) -> JSONResponse:
        row = balance(settings, account)
        if row is None:
            return JSONResponse({"error": {"message": f"no account {account}"}}, 404)
        return JSONResponse({"account": account, "balance": row.balance, "overdraft": row.overdraft})

    @app.get("/accounts/{account}/statement")
    def lines(account: str, lines: int = 50) -> list[dict[str, Any]]:
        return [line._asdict() for line in statement(settings, account, lines=lines)]

    _add_view_reads(app)
    return app


def _add_view_reads(app: FastAPI) -> None:
    """Reads of the views."""

    @app.get("/payments/{payment}", response_model=None)
    def paid(payment: str, request: Request, after: str | None = None) -> JSONResponse | HTMLResponse:
        queries: BankQueries = app.state.queries
        shown = queries.payment(payment, after)
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(payment_page(payment, shown), 200 if shown else 404)
        if shown is None:
            return JSONResponse({"error": {"message": f"no payment {payment}"}}, 404)
        return JSONResponse(shown)

    @app.get("/search")
    def search(q: str, after: str | None = None) -> list[dict[str, Any]]:
        queries: BankQueries = app.state.queries
        return queries.search(q, after)

    @app.get("/", response_class=HTMLResponse)
    def page(q: str = "") -> HTMLResponse:
        queries: BankQueries = app.state.queries
        return HTMLResponse(search_page(q, queries.search(q, None) if q else [], queries.accounts()))


def _request(request_id: str | None, kind: str, payload: dict[str, Any]) -> Event:
    return request(request_id or str(uuid.uuid4()), kind, payload, time=time.time_ns() // 1_000_000)
