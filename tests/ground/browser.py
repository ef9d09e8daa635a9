"""A real browser, from what the machine has.

    with open_browser() as browser:
        page = browser.new_page()

Playwright drives it, and takes Debian's Chromium, the one that `CHROMIUM` names, or one that
`playwright install chromium` has fetched. None of them comes with `make setup`: the first needs root,
the last a download from outside every registry. `without_browser` says why a test goes without.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def chromium() -> str | None:
    """The path of a Chromium; none if there is none."""
    if named := os.environ.get("CHROMIUM"):
        return named if Path(named).is_file() else None
    if found := next(filter(None, map(shutil.which, NAMES)), None):
        return found
    fetched = sorted((Path.home() / ".cache/ms-playwright").glob("chromium-*/chrome-linux*/chrome"))
    return str(fetched[-1]) if fetched else None


def without_browser() -> str | None:
    """Why this machine cannot have a browser; None if it can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "NO BROWSER TESTS: playwright is not installed (it is in the lock: make setup)"
    if chromium() is None:
        return "NO BROWSER TESTS: there is no Chromium here (Debian: apt install chromium, or set CHROMIUM)"
    return None


@contextmanager
def open_browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root, Chromium does not start with its sandbox; it sees our own pages only.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium(), args=options)
        try:
            yield browser
        finally:
            browser.close()
