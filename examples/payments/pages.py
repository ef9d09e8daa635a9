"""The bank's HTML: a search page with all balances, and a payment with both its accounts."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterable

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.2rem .6rem;"
    "border-bottom:1px solid #ddd}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".two{display:grid;grid-template-columns:1fr 1fr;gap:2rem}small{color:#666;overflow-wrap:anywhere}"
)


def search_page(text: str, payments: Iterable[dict[str, Any]], accounts: Iterable[tuple[str, int]]) -> str:
    results = _table(
        ("Payment", "From", "To", "Amount"),
        [
            (
                f'<a href="/payments/{quote(each["request"], safe="")}">{escape(each["request"])}</a>',
                escape(each["sender"]),
                escape(each["receiver"]),
                _cents(each["amount"]),
            )
            for each in payments
        ],
    )
    held = [*accounts]
    total = _cents(sum(cents for _, cents in held))
    balances = _table(("Account", "Balance"), [(escape(name), _cents(cents)) for name, cents in held])
    form = (
        f'<form><input name="q" value="{escape(text)}" placeholder="account or payment" autofocus>'
        "<button>Search</button></form>"
    )
    return _page("A bank that never loses a cent", f"{form}{results}<h2>All accounts: {total}</h2>{balances}")


def payment_page(request: str, payment: dict[str, Any] | None) -> str:
    if payment is None:
        return _page("No such payment", f"<p>No payment {escape(request)} has been made so far.</p>")
    sides = "".join(
        f"<section><h2>{escape(name)}: {_cents(each['balance'])}</h2>"
        + _table(
            ("Kind", "With", "Amount"),
            [
                (
                    _marked(escape(line["kind"]), line["request"] == request),
                    escape(line["counterparty"]),
                    _cents(line["amount"]),
                )
                for line in each["lines"]
            ],
        )
        + "</section>"
        for name, each in payment["accounts"].items()
    )
    summary = (
        f"<p>{escape(payment['sender'])} paid {escape(payment['receiver'])} {_cents(payment['amount'])}"
        f" (fee {_cents(payment['fee'])}).</p>"
    )
    moment = (
        f"<p><small>Three views as of one position, {payment['age_seconds']} s old: "
        f"{escape(payment['token'])}</small></p>"
    )
    return _page(f"Payment {request}", f'{summary}<div class="two">{sides}</div>{moment}')


def _marked(text: str, is_this: bool) -> str:
    return f"<b>{text}</b>" if is_this else text


def _cents(value: int) -> str:
    return f"{value / 100:.2f}"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    numbers = {"Amount", "Balance"}
    kinds = [' class="n"' if head in numbers else "" for head in heads]
    top = "".join(f"<th{kind}>{head}</th>" for head, kind in zip(heads, kinds))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{value}</td>" for value, kind in zip(row, kinds)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>" if body else ""


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>{body}</html>"
    )
