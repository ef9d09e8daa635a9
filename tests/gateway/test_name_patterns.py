"""Prefixed patterns match the same names as in a dedicated cluster, and never another tenant's."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.gateway.tenancy.name_patterns import add_prefix, remove_prefix

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
def test_a_prefixed_pattern_matches_the_same_names(pattern: str) -> None:
    renamed = add_prefix(PREFIX, pattern.encode())

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
def test_an_incomplete_pattern_is_refused(pattern: str) -> None:
    assert add_prefix(PREFIX, pattern.encode()) is None


@pytest.mark.parametrize("pattern", [b"\xff", b"a" * 5000])
def test_a_pattern_that_is_not_text_or_too_long_is_refused(pattern: bytes) -> None:
    assert add_prefix(PREFIX, pattern) is None


def test_an_empty_pattern_stays_empty_and_another_tenants_is_not_shown() -> None:
    assert add_prefix(PREFIX, b"") == b""
    assert remove_prefix(PREFIX, b"lkc-9xk4vt_(?:a)") == b""
    assert remove_prefix(PREFIX, add_prefix(PREFIX, b"orders-.*") or b"") == b"orders-.*"


def test_flags_of_a_whole_pattern_end_with_it() -> None:
    assert add_prefix(PREFIX, b"(?i)^orders") == PREFIX + b"(?:(?i)orders)"


def test_a_dollar_that_is_escaped_is_no_anchor() -> None:
    assert add_prefix(PREFIX, rb"a\$") == PREFIX + rb"(?:a\$)"
    assert add_prefix(PREFIX, rb"a\\$") == PREFIX + rb"(?:a\\)"


@example("[+--]")
@given(st.text(st.sampled_from("ab()[]|^$\\.*?+{}-:QE")))
def test_accepted_patterns_match_only_names_with_the_prefix(pattern: str) -> None:
    renamed = add_prefix(PREFIX, pattern.encode())
    if not renamed:
        return
    try:
        with warnings.catch_warnings():
            # `[+--]`: a later Python may read it differently; brokers use RE2, which does not.
            warnings.simplefilter("ignore", FutureWarning)
            compiled = re.compile(renamed.decode())
    except re.error:
        return  # the broker refuses it itself
    for name in ("", "a", "b", "ab", "lkc-9xk4vt_a", "lkc-9xk4vt_orders"):
        assert compiled.fullmatch(name) is None
