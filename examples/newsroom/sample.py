"""The assets that `up` publishes first, in no particular order: the import sorts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from examples.newsroom.assets import Asset

_PIXEL: Final = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 3'%3E"
    "%3Crect width='8' height='3' fill='%23{}'/%3E%3C/svg%3E"
)

SAMPLE: Final[list[Asset]] = [
    {
        "id": "water-returns",
        "kind": "article",
        "headline": "The water returns to the old mill",
        "body": "After forty years the sluice was opened.\nThe wheel turned before noon.",
        "author": "ada",
        "images": ["mill", "sluice"],
        "tags": ["rivers", "engineering"],
    },
    {
        "id": "ledger",
        "kind": "article",
        "headline": "A ledger that cannot be altered",
        "body": "The archive now keeps every version of every page, in the order in which they came.",
        "author": "grace",
        "images": ["ledger-photo"],
        "tags": ["archives", "engineering"],
    },
    {"id": "mill", "kind": "image", "url": _PIXEL.format("7aa"), "caption": "The mill at dawn"},
    {"id": "sluice", "kind": "image", "url": _PIXEL.format("59c"), "caption": "The sluice, opened"},
    {"id": "ledger-photo", "kind": "image", "url": _PIXEL.format("b96"), "caption": "The first page"},
    {"id": "ada", "kind": "author", "name": "Ada Byron"},
    {"id": "grace", "kind": "author", "name": "Grace Brewster"},
]
