"""A tenant's regular expressions, prefixed so that they match only the tenant's names.

Brokers match a pattern against whole names (RE2, `matches`), and names begin with the tenant's prefix, so
`orders-.*` becomes `lkc-7hq2mz_(?:orders-.*)`. That is correct only if the pattern is complete by itself: one
that closes the group around it, such as `a)|(b`, would reach past the prefix. Anything not plainly complete
is refused with Kafka's error for invalid patterns.

Anchors at the two ends of a whole name have no effect and are dropped: those of `^orders.*$`, and those
inside groups that begin or end there, as librdkafka joins several patterns: `(^a.*)|(^b.*)`. Anchors anywhere
else would match against the name with its prefix, so such patterns are refused, too.
"""

from __future__ import annotations

import re
from typing import Final

PATTERN_BYTES_MAX: Final = 1024  # each anchor costs a scan of the whole pattern
_OPEN: Final = "(?:"
_CLOSE: Final = ")"
_GROUP: Final = re.compile(r"\((?:\?(?:P?<[A-Za-z_][A-Za-z0-9_]*>|[ims-]*:))?(?!\?)")
_FLAGS: Final = re.compile(r"\(\?[is]+\)")  # of the whole pattern; they end with the group around it
_REPEATS: Final = "*+?{"
# Escapes that match a position rather than a character.
_POSITION_ESCAPES: Final = frozenset("AbBGzZQE")


def add_prefix(prefix: bytes, pattern: bytes) -> bytes | None:
    """The pattern as sent to the broker; None if it is refused."""
    if not pattern:
        return pattern  # an empty pattern removes it
    if len(pattern) > PATTERN_BYTES_MAX:
        return None
    try:
        text = pattern.decode()
    except UnicodeDecodeError:
        return None
    flags = _FLAGS.match(text)
    start = flags.end() if flags is not None else 0
    whole = _parts(text[start:])
    inner = None if whole is None else _strip_anchors(whole)
    return None if inner is None else prefix + "".join((_OPEN, text[:start], *inner, _CLOSE)).encode()


def remove_prefix(prefix: bytes, pattern: bytes) -> bytes:
    """The tenant's view of a pattern made by `add_prefix`; empty for any other."""
    start = prefix + _OPEN.encode()
    if pattern.startswith(start) and pattern.endswith(_CLOSE.encode()):
        return pattern[len(start) : -len(_CLOSE)]
    return b""


def _parts(pattern: str) -> list[str] | None:
    """Characters, escapes, classes and group openings; None if groups are not balanced."""
    parts: list[str] = []
    depth = at = 0
    while at < len(pattern):
        character = pattern[at]
        end = at + 1
        if character == "\\":
            if end >= len(pattern) or pattern[end] in _POSITION_ESCAPES:
                return None
            end += 1
        elif character == "[":
            end = _class_end(pattern, at)
            if end < 0:
                return None
        elif character == "(":
            started = _GROUP.match(pattern, at)
            if started is None:
                return None
            end = started.end()
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return None
        parts.append(pattern[at:end])
        at = end
    return parts if depth == 0 else None


def _strip_anchors(parts: list[str]) -> list[str] | None:
    """The parts without anchors that have no effect; None if there are others."""
    edge = [True]  # per enclosing group: does the current alternative begin where the name does?
    dropped = [False]  # per enclosing group: was an anchor dropped? Then it must not be repeated
    kept: list[str] = []
    for index, part in enumerate(parts):
        previous = parts[index - 1] if index else ""
        if part == "^":
            if not edge[-1] or not (index == 0 or previous == "|" or previous[:1] == "("):
                return None
            dropped[-1] = True
            continue
        if part == "$":
            if not _ends_here(parts, index):
                return None
            dropped[-1] = True
            continue
        if part[0] == "(":
            first = index == 0 or previous == "|" or previous[:1] in "(^"
            edge.append(edge[-1] and first)
            dropped.append(False)
        elif part == ")":
            edge.pop()
            had = dropped.pop()
            after = parts[index + 1][:1] if index + 1 < len(parts) else ""
            if had and after and after in _REPEATS:
                return None
            dropped[-1] = dropped[-1] or had
        kept.append(part)
    return kept


def _ends_here(parts: list[str], index: int) -> bool:
    """Whether nothing of the name can follow: only the ends of groups and other alternatives."""
    for following in range(index + 1, len(parts)):
        if parts[following] == "|":
            depth = 0  # skip the other alternatives, to the end of this group
            for later in range(following, len(parts)):
                depth += (parts[later][0] == "(") - (parts[later] == ")")
                if depth < 0:
                    return _ends_here(parts, later)
            return True
        if parts[following] != ")":
            return False
    return True


def _class_end(pattern: str, at: int) -> int:
    """The position after the character class that begins at `at`; −1 if it is open or ambiguous.

    Engines differ on a bracket inside, as in `[]a]` and `[[:alpha:]]`; it must be escaped.
    """
    at += 2 if pattern.startswith("[^", at) else 1
    first = at
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            if at + 1 >= len(pattern) or pattern[at + 1] in _POSITION_ESCAPES:
                return -1
            at += 2
            continue
        if character == "]":
            return at + 1 if at > first else -1
        if character == "[":
            return -1
        at += 1
    return -1
