"""What an asset is, what it refers to, and the order in which many assets are imported.

An asset has an id and a kind: image, author or article. An article refers to its author and images by
their ids, like a foreign key. All functions here are pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ID_LENGTH_MAX: Final = 80  # characters
TEXT_LENGTH_MAX: Final = 100_000

_FIELDS: Final[Mapping[str, Mapping[str, type]]] = {
    "image": {"url": str, "caption": str},
    "author": {"name": str},
    "article": {"headline": str, "body": str, "author": str, "images": list, "tags": list},
}

Asset = dict[str, Any]


def problem(asset: Mapping[str, Any]) -> str | None:
    """What is wrong with an asset, or None."""
    fields = _FIELDS.get(asset.get("kind", "")) if isinstance(asset.get("kind"), str) else None
    if fields is None:
        return f"its kind must be one of {', '.join(_FIELDS)}"
    if not _is_id(asset.get("id")):
        return f"its id must be 1 to {ID_LENGTH_MAX} letters, digits, `-`, `_` or `.`"
    if unknown := asset.keys() - fields.keys() - {"id", "kind"}:
        return f"it has an unknown field `{min(unknown)}`"
    for name, kind in fields.items():
        value = asset.get(name)
        if value.__class__ is not kind:
            return f"`{name}` must be {'a list' if kind is list else 'text'}"
        if isinstance(value, str) and len(value) > TEXT_LENGTH_MAX:
            return f"`{name}` is longer than {TEXT_LENGTH_MAX} characters"
        if isinstance(value, list) and not all(_is_id(each) for each in value):
            return f"`{name}` must hold ids"
    return "it refers to itself" if asset["id"] in references(asset) else None


def references(asset: Mapping[str, Any]) -> list[str]:
    """Ids of the assets that must be published before this one, each once."""
    if asset["kind"] != "article":
        return []
    return [*dict.fromkeys((asset["author"], *asset["images"]))]


def in_order(assets: Iterable[Asset]) -> tuple[list[Asset], list[Asset]]:
    """The assets sorted so that references come first, and those that refer to one another in a circle.

    Several versions of an asset keep their order; a reference is to the first of them."""
    versions: dict[str, list[Asset]] = {}
    for asset in assets:
        versions.setdefault(asset["id"], []).append(asset)
    needs = {
        name: {each for asset in assets_of_id for each in references(asset) if each in versions}
        for name, assets_of_id in versions.items()
    }
    ordered: list[Asset] = []
    ready = [name for name, needed in needs.items() if not needed]
    referrers: dict[str, list[str]] = {}
    for name, needed in needs.items():
        for each in needed:
            referrers.setdefault(each, []).append(name)
    while ready:
        name = ready.pop(0)
        ordered += versions.pop(name)
        for referrer in referrers.get(name, ()):
            needs[referrer].discard(name)
            if not needs[referrer]:
                ready.append(referrer)
    return ordered, [asset for cyclic in versions.values() for asset in cyclic]


def _is_id(value: object) -> bool:
    return (
        isinstance(value, str)
        and 0 < len(value) <= ID_LENGTH_MAX
        and value.replace("-", "").replace("_", "").replace(".", "").isalnum()
        and value.isascii()
    )
