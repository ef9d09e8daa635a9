"""`python -m tools.vocabulary [PATH…]`: words this project replaces, each with what to write instead.

Kafka's word for a Kafka thing, Kora's word for a Kora thing, and otherwise the word any senior engineer
would use. Two tables: words in identifiers, and phrases in prose (docstrings, comments, messages, pages).
`tests/test_tidy.py` runs both over the whole tree.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# One word of an identifier: `told_at`, `_untold` and `ToldReader` all contain one.
IDENTIFIERS: Final[Mapping[str, str]] = {
    "answer": "response, reply, result",
    "answers": "responses, replies, results",
    "answered": "responded, completed",
    "asked": "requested, desired",
    "asks": "requests",
    "anybody": "name the component",
    "anew": "again",
    "deed": "operation, action",
    "deeds": "operations, actions",
    "dialogue": "handshake, local requests",
    "errand": "platform request",
    "errands": "platform requests",
    "figure": "metric, measurement",
    "figures": "metrics, measurements",
    "found": "the noun: match, entry, offset, error, row, actual",
    "ground": "harness, fixtures",
    "heard": "received",
    "unheard": "not received",
    "nobody": "name the component",
    "reign": "leadership term",
    "reigning": "leading, active",
    "said": "logged, reported, message",
    "says": "reports, states",
    "somebody": "name the component",
    "tally": "shared counters",
    "tell": "notify, report, publish",
    "tells": "notifies, reports",
    "told": "published, reported, announced",
    "untold": "unpublished, unreported",
    "wanted": "desired, expected, target",
    "whoever": "name the component",
}
# Identifiers of a standard or of a library, in which such a word is part of a term.
TERMS: Final = (
    "not_found",
    "NOT_FOUND",
    "NotFound",
    "FileNotFoundError",
    "ModuleNotFoundError",
    "ProcessLookupError",
)

# Phrases in prose, as regular expressions; matched without regard to case, as whole words.
PROSE: Final[Mapping[str, str]] = {
    "anew": "again, from scratch",
    "anybody": "name the component",
    "nobody": "name the component, or use the passive",
    "somebody": "name the component",
    "whoever": "name the component",
    "whom": "name the component",
    "told": "reported, notified, published, configured",
    "tells?": "reports, shows, notifies",
    "said": "reported, logged, declared",
    "says?": "states, reports, shows, declares",
    "heard|hears?": "received, receives",
    "by heart": "cached, on the fast path",
    "one's own": "dedicated, separate, private, your own",
    "of (?:its|their|his|her|our) own": "dedicated, separate, private, its",
    "(?:stands?|lies) in": "is in, is stored in",
    "(?:is|are) to be": "must, should, will",
    "goes on|go on": "continues, keeps",
    "deeds?": "operation, action",
    "reigns?|reigned|reigning": "leadership term; is active",
    "errands?": "platform request",
    "tally": "shared counters",
    r"figures?(?! ?\d)": "metric, measurement (a numbered figure of a paper is fine)",
    "in the clear": "plaintext, without TLS",
    "stand(?:s|ing)? in line": "queued",
    "pays": "is charged, costs",
}

_PROSE: Final = {re.compile(rf"(?<![\w`])(?:{phrase})(?![\w`(])", re.IGNORECASE): phrase for phrase in PROSE}
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CODE: Final = re.compile(r"^```.*?^```|``[^`]*``|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def identifier_breaches(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, identifier and replacement of each name that a Python source defines with a replaced word."""
    seen: set[str] = set()
    for line, name in _defined(ast.parse(text)):
        bare = name
        for term in TERMS:
            bare = bare.replace(term, "")
        for word in (match.lower() for match in _WORD.findall(bare)):
            if word in IDENTIFIERS and name not in seen:
                seen.add(name)
                yield line, name, IDENTIFIERS[word]


def prose_breaches(path: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Line, phrase and replacement of each replaced phrase in a page, or in a Python source's prose."""
    pieces = _python_prose(text) if path.endswith(".py") else [(1, text)]
    for first_line, piece in pieces:
        prose = _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group()), piece)
        for pattern, phrase in _PROSE.items():
            for match in pattern.finditer(prose):
                yield first_line + prose.count("\n", 0, match.start()), match.group(), PROSE[phrase]


def module_breaches(path: str) -> Iterator[tuple[int, str, str]]:
    """The same for the words of a path."""
    for part in Path(path).with_suffix("").parts:
        for word in _WORD.findall(part):
            if word.lower() in IDENTIFIERS and part not in TERMS:
                yield 1, part, IDENTIFIERS[word.lower()]


def _defined(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.arg():
                yield node.lineno, node.arg
            case ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)):
                yield node.lineno, name


def _python_prose(text: str) -> Iterator[tuple[int, str]]:
    """Comments, and strings that read as sentences: three words or more."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_sentence = token.type == tokenize.STRING and len(token.string.split()) > 2
        is_part = token.type == getattr(tokenize, "FSTRING_MIDDLE", -1) and len(token.string.split()) > 2
        if token.type == tokenize.COMMENT or is_sentence or is_part:
            yield token.start[0], token.string


def breaches(path: str, text: str) -> Iterator[str]:
    """Everything wrong with one file, one line each."""
    identifiers = (*module_breaches(path), *identifier_breaches(text)) if path.endswith(".py") else ()
    for line, name, instead in identifiers:
        yield f"{path}:{line} `{name}`: write {instead}"
    if path.endswith((".py", ".md")):
        for line, phrase, instead in prose_breaches(path, text):
            yield f"{path}:{line} “{' '.join(phrase.split())}”: write {instead}"


def main(paths: list[str]) -> int:
    listed = subprocess.run(["git", "ls-files", "-z", *paths], check=True, capture_output=True).stdout
    count = 0
    for path in filter(None, listed.decode().split("\0")):
        if path.endswith((".py", ".md")) and "/proto/" not in path:
            for breach in breaches(path, Path(path).read_text(encoding="utf-8")):
                print(breach)
                count += 1
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
