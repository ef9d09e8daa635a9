"""A real browser, from what is installed on the machine.

    with open_browser() as browser:
        page = browser.new_page()

Playwright drives the Chromium that `CHROMIUM` names, the one that `make setup` unpacked (`tools.chromium`),
or the system's. `without_browser` is the reason for which a test is skipped.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tools import chromium as unpacked_chromium

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def chromium() -> str | None:
    """The path of a Chromium; none if there is none."""
    if named := os.environ.get("CHROMIUM"):
        return named if Path(named).is_file() else None
    if (unpacked := unpacked_chromium.executable()) is not None:
        return str(unpacked)
    return next(filter(None, map(shutil.which, NAMES)), None)


def without_browser() -> str | None:
    """Why this machine cannot have a browser; None if it can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "NO BROWSER TESTS: playwright is not installed (it is in the lock: make setup)"
    if chromium() is None:
        return f"NO BROWSER TESTS: no Chromium here; {unpacked_chromium.OTHERWISE}"
    return None


@contextmanager
def open_browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium's sandbox does not work as root; it only loads our own pages.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        variables: dict[str, str | float | bool] = {**os.environ, **unpacked_chromium.environment()}
        browser = playwright.chromium.launch(executable_path=chromium(), args=options, env=variables)
        try:
            yield browser
        finally:
            browser.close()
