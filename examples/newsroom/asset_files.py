"""Reads assets from JSON files, with an error that names the file, the line and the way out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from examples.newsroom.assets import problem

if TYPE_CHECKING:
    from pathlib import Path

    from examples.newsroom.assets import Asset


class AssetFileError(Exception):
    """One line: the file, the line number, what is wrong and what to do."""


def read_asset(file: Path) -> Asset:
    """The asset in a JSON file. Its fields are checked by the press."""
    return _parsed(_text(file), str(file), advice="write one JSON object, as in examples/newsroom/asset.json")


def read_assets(file: Path) -> list[Asset]:
    """The assets in a JSON Lines file, with their fields checked. Empty lines are skipped."""
    assets = []
    for number, line in enumerate(_text(file).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{file} line {number}"
        asset = _parsed(line, where, advice="write one JSON object on each line; nothing was submitted")
        if wrong := problem(asset):
            raise AssetFileError(
                f"{where}: {wrong}; correct the line and import again, nothing was submitted"
            )
        assets.append(asset)
    return assets


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise AssetFileError(
            f"{file}: no such file; examples/newsroom/assets.jsonl and asset.json are samples"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise AssetFileError(f"{file}: {reason}; name a readable UTF-8 file") from None


def _parsed(text: str, where: str, *, advice: str) -> Asset:
    try:
        asset = json.loads(text)
    except ValueError as error:
        raise AssetFileError(f"{where}: not JSON ({error}); {advice}") from None
    if not isinstance(asset, dict):
        raise AssetFileError(f"{where}: a {type(asset).__name__}, not an object; {advice}")
    return asset
