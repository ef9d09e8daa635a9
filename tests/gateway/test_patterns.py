"""Patterns below a prefix: the same names as in a cluster of one's own, and never another's."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.gateway.patterns import above, below

PREFIX = b"lkc-7hq2mz_"
NAMES = ("orders", "orders-1", "orders.eu", "a", "b", "(", "x^y", "")


@pytest.mark.parametrize(
    "pattern",
    [
        ".*",
        "orders",
        "^orders.*$",
        "orders-[0-9]+",
        "a|b",
        "(a|b)",
        r"orders\.eu",
        "(?i:ORDERS)",
        r"[\]a]+",
        "^a|b$",
        "a|^b",
        "a$|b",
        "(^a)|(^b$)",
        "(?:^(?:orders$|a$))",
        "(?P<x>a)",
        "(?i:ORDERS)|b",
    ],
)
def test_a_pattern_matches_what_it_would_match_alone(pattern: str) -> None:
    renamed = below(PREFIX, pattern.encode())

    assert renamed is not None
    for name in NAMES:
        alone = re.fullmatch(pattern, name) is not None
        assert (re.fullmatch(renamed.decode(), PREFIX.decode() + name) is not None) == alone
        assert re.fullmatch(renamed.decode(), "lkc-9xk4vt_" + name) is None


@pytest.mark.parametrize(
    "pattern",
    [
        "a)|(b",
        "a)|.*(?:",
        ")",
        "(",
        "[",
        "[]",
        "a[b",
        "\\",
        "a^b",
        "a$b",
        "^^a",
        "(^a)*",
        "(a$)+",
        "x(^a|b)",
        "(a|b$)x",
        "(?=a)",
        "a(?i)b",
        r"\Qa",
        r"\Aa",
        r"a\b",
        "[[:alpha:]]",
        r"a[\Q]\E",
    ],
)
def test_a_pattern_that_is_not_whole_by_itself_is_refused(pattern: str) -> None:
    assert below(PREFIX, pattern.encode()) is None


@pytest.mark.parametrize("pattern", [b"\xff", b"a" * 5000])
def test_a_pattern_that_is_no_text_or_too_long_is_refused(pattern: bytes) -> None:
    assert below(PREFIX, pattern) is None


def test_no_pattern_stays_none_and_a_foreign_one_is_not_shown() -> None:
    assert below(PREFIX, b"") == b""
    assert above(PREFIX, b"lkc-9xk4vt_(?:a)") == b""
    assert above(PREFIX, below(PREFIX, b"orders-.*") or b"") == b"orders-.*"


def test_flags_of_a_whole_pattern_end_with_it() -> None:
    assert below(PREFIX, b"(?i)^orders") == PREFIX + b"(?:(?i)orders)"


def test_a_dollar_that_is_escaped_is_no_anchor() -> None:
    assert below(PREFIX, rb"a\$") == PREFIX + rb"(?:a\$)"
    assert below(PREFIX, rb"a\\$") == PREFIX + rb"(?:a\\)"


@example("[+--]")
@given(st.text(st.sampled_from("ab()[]|^$\\.*?+{}-:QE")))
def test_whatever_is_let_through_matches_below_the_prefix_alone(pattern: str) -> None:
    renamed = below(PREFIX, pattern.encode())
    if not renamed:
        return
    try:
        with warnings.catch_warnings():
            # `[+--]`: Python may read it otherwise some day; brokers use RE2, which does not.
            warnings.simplefilter("ignore", FutureWarning)
            compiled = re.compile(renamed.decode())
    except re.error:
        return  # the broker says so itself
    for name in ("", "a", "b", "ab", "lkc-9xk4vt_a", "lkc-9xk4vt_orders"):
        assert compiled.fullmatch(name) is None
