"""Words to replace are reported in identifiers and in prose. Code and standard terms are left alone."""

from __future__ import annotations

import pytest

from tools import vocabulary

IDENTIFIER = next(iter(vocabulary.IDENTIFIERS))
PHRASE = next(iter(vocabulary.PROSE))


def breaches(path: str, text: str) -> list[str]:
    return list(vocabulary.breaches(path, text))


@pytest.mark.parametrize(
    "text",
    [
        f"{IDENTIFIER} = 1",
        f"last_{IDENTIFIER}_at = 1",
        f"x.{IDENTIFIER} = 1",
        f"def f({IDENTIFIER}): ...",
        f"class {IDENTIFIER.title()}Reader: ...",
        f"import os as {IDENTIFIER}",
        f"for {IDENTIFIER} in (): ...",
    ],
)
def test_an_identifier_is_reported_where_it_is_defined(text: str) -> None:
    (line,) = breaches("src/a.py", text + "\n")

    assert line.startswith("src/a.py:1 ")
    assert vocabulary.IDENTIFIERS[IDENTIFIER] in line


def test_a_name_is_reported_once_per_file() -> None:
    assert len(breaches("src/a.py", f"{IDENTIFIER} = 1\n{IDENTIFIER} = 2\n")) == 1


@pytest.mark.parametrize("name", [*vocabulary.TERMS, f"re{IDENTIFIER}ing"])
def test_a_term_of_a_standard_and_a_longer_word_are_fine(name: str) -> None:
    assert not breaches("src/a.py", f"{name} = 1\n")


def test_a_phrase_is_reported_with_its_line_and_its_replacement() -> None:
    (line,) = breaches("docs/a.md", f"One line.\n\nRead by {PHRASE} here.\n")

    assert line == f"docs/a.md:3 “{PHRASE}”: write {vocabulary.PROSE[PHRASE]}"


@pytest.mark.parametrize("text", [f"`{PHRASE}` as code", f"```\n{PHRASE}\n```\n"])
def test_code_in_a_page_is_not_prose(text: str) -> None:
    assert not breaches("docs/a.md", text)


def test_a_numbered_illustration_of_a_paper_is_fine() -> None:
    word = "Fig" + "ure"

    assert not breaches("docs/a.md", f"{word} 6 of the paper.\n")
    assert breaches("docs/a.md", f"This {word.lower()} is high.\n")


def test_short_strings_are_values_and_no_prose() -> None:
    assert not breaches("src/a.py", f'x = "{PHRASE}"\n')
    assert breaches("src/a.py", f'x = "a sentence that {PHRASE} reads"\n')
