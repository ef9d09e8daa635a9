"""Asset files: the shipped samples are valid, and a bad file gives one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.newsroom.__main__ import import_assets, publish
from examples.newsroom.asset_files import AssetFileError, read_asset, read_assets
from examples.newsroom.assets import in_order, problem, references
from penstock.model.errors import Exit

NEWSROOM = Path(__file__).resolve().parents[2] / "examples" / "newsroom"
GOOD = '{"id": "ada", "kind": "author", "name": "Ada"}'


def test_the_samples_are_complete_and_valid() -> None:
    assert problem(read_asset(NEWSROOM / "asset.json")) is None
    ordered, cyclic = in_order(read_assets(NEWSROOM / "assets.jsonl"))
    ids = {asset["id"] for asset in ordered}
    assert cyclic == []
    assert all(ids.issuperset(references(asset)) for asset in ordered)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{GOOD}\n\n{{oops", ["line 3", "not JSON", "write one JSON object on each line"]),
        (f"{GOOD}\n[]", ["line 2", "a list, not an object", "write one JSON object on each line"]),
        ('{"kind": "author", "name": "Ada"}', ["line 1", "its id must be", "correct the line"]),
    ],
    ids=["not-json", "not-an-object", "not-an-asset"],
)
def test_a_bad_line_is_named_with_what_is_wrong_and_what_to_do(
    text: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text, encoding="utf-8")
    assert import_assets(file, home=tmp_path) == Exit.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {file}")
    assert [each for each in expected if each not in line] == []


def test_a_missing_file_is_named_and_the_samples_are_suggested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "missing.jsonl"
    for command in (import_assets, publish):
        assert command(file, home=tmp_path) == Exit.USAGE
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {file}: no such file; ")
        assert "examples/newsroom/assets.jsonl" in line


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(AssetFileError, match="not UTF-8 text"):
        read_assets(tmp_path / "binary")
    with pytest.raises(AssetFileError, match="directory"):
        read_asset(tmp_path)
