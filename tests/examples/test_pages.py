"""The pages of the examples in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.browser import open_browser, without_browser
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from tests.examples.programs import BankProgram, NewsroomProgram

MISSING = without_browser()
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.browser,
    pytest.mark.skipif(MISSING is not None, reason=MISSING or ""),
]

SEEN_MILLISECONDS = 60_000.0


@pytest.fixture
def page() -> Iterator[Page]:
    """A page; the test fails if a script on it does."""
    failures: list[str] = []
    with open_browser() as browser:
        opened = browser.new_page()
        opened.set_default_timeout(SEEN_MILLISECONDS)
        opened.on("pageerror", lambda error: failures.append(str(error)))
        yield opened
        opened.close()
    assert failures == []


def test_a_reader_browses_searches_and_is_shown_a_new_article(page: Page, newsroom: NewsroomProgram) -> None:
    newsroom.wait()
    page.goto(f"http://127.0.0.1:{newsroom.port}/")
    page.get_by_role("link", name="The water returns to the old mill").click()
    page.get_by_text("The mill at dawn").wait_for()
    page.get_by_role("link", name="rivers").click()
    page.get_by_role("heading", name="Articles on rivers").wait_for()
    page.get_by_placeholder("search").fill("everywhere")
    page.get_by_placeholder("search").press("Enter")
    page.get_by_text("Nothing yet.").wait_for()
    # The open page follows the news: it shows an article that another editor publishes.
    with page.expect_request(lambda sent: "/news?after=" in sent.url):
        page.get_by_role("link", name="Front page").click()
    words = {"headline": "<b>Flood</b> in the valley", "body": "Water, everywhere."}
    flood = {"id": "flood", "kind": "article", "author": "ada", "images": [], "tags": ["floods"], **words}
    assert newsroom.submit(flood)[0] == 201
    page.get_by_role("link", name="New: <b>Flood</b> in the valley").click()
    page.get_by_role("heading", name="<b>Flood</b> in the valley").wait_for()
    page.get_by_placeholder("search").fill("everywhere")
    page.get_by_placeholder("search").press("Enter")
    page.get_by_role("link", name="<b>Flood</b> in the valley").wait_for()


def test_both_accounts_of_a_payment_are_shown_as_of_one_position(page: Page, bank: BankProgram) -> None:
    bank.wait()
    status, paid = bank.pay("rent <1>", **{"from": "account-1", "to": "account-2", "amount": 5000})
    assert status == 200
    bank.get(f"/payments/none?after={paid['token']}")  # returns once all views have it

    def both_halves_are_shown() -> int:
        """A page shows one position, and between the two halves of a payment its amount is in no account."""
        page.goto(f"http://127.0.0.1:{bank.port}/")
        return page.get_by_role("heading", name="All accounts: 4000.00").count()

    wait_for(both_halves_are_shown, what="the incoming half of the payment")
    page.get_by_placeholder("account or payment").fill("account-2")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name="rent <1>").click()
    page.get_by_role("heading", name="account-1: 950.00").wait_for()
    page.get_by_role("heading", name="account-2: 1050.00").wait_for()
    assert page.locator("b").all_inner_texts() == ["outgoing", "incoming"]
    page.get_by_text("Three views as of one position").wait_for()
