"""A tenant's regular expressions, below its prefix.

Brokers hold a pattern against whole names (RE2, `matches`), and names begin with the tenant's prefix.
So `orders-.*` becomes `lkc-7hq2mz_(?:orders-.*)`. That is right only for a pattern that is whole by
itself: one that closes the group it is put in, such as `a)|(b`, would reach past the prefix. What
is not plainly whole is refused, with the error that Kafka has for patterns that cannot be.

Anchors at the two ends of a whole name say nothing, and are dropped: those of `^orders.*$`, and those
inside of groups that begin or end there, as librdkafka makes of several patterns: `(^a.*)|(^b.*)`.
Anywhere else they would be held against the name with its prefix, so such patterns are refused, too.
"""

from __future__ import annotations

import re
from typing import Final

PATTERN_BYTES_MAX: Final = 1024  # an anchor in it costs a look at all of it
_OPEN: Final = "(?:"
_CLOSE: Final = ")"
_GROUP: Final = re.compile(r"\((?:\?(?:P?<[A-Za-z_][A-Za-z0-9_]*>|[ims-]*:))?(?!\?)")
_FLAGS: Final = re.compile(r"\(\?[is]+\)")  # of the whole pattern; they end with the group it is put in
_REPEATS: Final = "*+?{"
# Escapes that speak of a place rather than a character.
_PLACES: Final = frozenset("AbBGzZQE")


def below(prefix: bytes, pattern: bytes) -> bytes | None:
    """The pattern as the broker is to know it; None if it cannot be."""
    if not pattern:
        return pattern  # no pattern any more
    if len(pattern) > PATTERN_BYTES_MAX:
        return None
    try:
        text = pattern.decode()
    except UnicodeDecodeError:
        return None
    flags = _FLAGS.match(text)
    start = flags.end() if flags is not None else 0
    whole = _pieces(text[start:])
    inner = None if whole is None else _unanchored(whole)
    return None if inner is None else prefix + "".join((_OPEN, text[:start], *inner, _CLOSE)).encode()


def above(prefix: bytes, pattern: bytes) -> bytes:
    """What a tenant is shown of a pattern that `below` has made; nothing of any other."""
    start = prefix + _OPEN.encode()
    if pattern.startswith(start) and pattern.endswith(_CLOSE.encode()):
        return pattern[len(start) : -len(_CLOSE)]
    return b""


def _pieces(pattern: str) -> list[str] | None:
    """Characters, escapes, classes and the beginnings of groups; None if they do not open and close."""
    found: list[str] = []
    depth = at = 0
    while at < len(pattern):
        sign = pattern[at]
        end = at + 1
        if sign == "\\":
            if end >= len(pattern) or pattern[end] in _PLACES:
                return None
            end += 1
        elif sign == "[":
            end = _class_end(pattern, at)
            if end < 0:
                return None
        elif sign == "(":
            started = _GROUP.match(pattern, at)
            if started is None:
                return None
            end = started.end()
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            return None
        found.append(pattern[at:end])
        at = end
    return found if depth == 0 else None


def _unanchored(pieces: list[str]) -> list[str] | None:
    """Without the anchors that say nothing; None if there are others."""
    edge = [True]  # does the alternative at hand begin where the name does? for each group around it
    dropped = [False]  # an anchor, in this group: it must not be repeated then
    kept: list[str] = []
    for place, piece in enumerate(pieces):
        behind = pieces[place - 1] if place else ""
        if piece == "^":
            if not edge[-1] or not (place == 0 or behind == "|" or behind[:1] == "("):
                return None
            dropped[-1] = True
            continue
        if piece == "$":
            if not _ends_here(pieces, place):
                return None
            dropped[-1] = True
            continue
        if piece[0] == "(":
            first = place == 0 or behind == "|" or behind[:1] in "(^"
            edge.append(edge[-1] and first)
            dropped.append(False)
        elif piece == ")":
            edge.pop()
            had = dropped.pop()
            after = pieces[place + 1][:1] if place + 1 < len(pieces) else ""
            if had and after and after in _REPEATS:
                return None
            dropped[-1] = dropped[-1] or had
        kept.append(piece)
    return kept


def _ends_here(pieces: list[str], place: int) -> bool:
    """Does nothing of the name follow: the end, or the end of groups and alternatives that end there?"""
    for behind in range(place + 1, len(pieces)):
        if pieces[behind] == "|":
            depth = 0  # the rest is another alternative: pass over it to the end of this group
            for later in range(behind, len(pieces)):
                depth += (pieces[later][0] == "(") - (pieces[later] == ")")
                if depth < 0:
                    return _ends_here(pieces, later)
            return True
        if pieces[behind] != ")":
            return False
    return True


def _class_end(pattern: str, at: int) -> int:
    """Behind the class that begins at `at`; −1 if it does not end, or is not plain.

    A bracket inside, such as in `[]a]` and `[[:alpha:]]`, is read differently by different engines:
    it has to be escaped.
    """
    at += 2 if pattern.startswith("[^", at) else 1
    first = at
    while at < len(pattern):
        sign = pattern[at]
        if sign == "\\":
            if at + 1 >= len(pattern) or pattern[at + 1] in _PLACES:
                return -1
            at += 2
            continue
        if sign == "]":
            return at + 1 if at > first else -1
        if sign == "[":
            return -1
        at += 1
    return -1
