"""The newsroom's web site: readers read the views, editors submit assets.

    GET  /                    the newest articles          GET /articles/{id}
    GET  /tags/{tag}          GET /authors/{id}            GET /search?q=…
    GET  /desk                parked assets, and what each waits for
    POST /assets              submits an asset: 201 published · 202 parked · 422 refused
    GET  /news?after=0&tag=…  waits for new articles, then returns them

The views run in this process, so an editor sees a published asset at once: the response to POST is sent
when the site shows it, and each read waits until the view has reached the log's current end
(`linearizable`). Search results and their headlines come from two views as of one position.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from examples.error_responses import error_response
from examples.newsroom import pages
from examples.newsroom.press import OUTCOME_TYPES
from examples.newsroom.site import (
    CURRENT_ASSETS,
    DANGLING,
    DESK,
    DOCUMENTS,
    PAGES,
    SEARCH,
    SITE,
    CurrentAsset,
)
from penstock.model.errors import PenstockError
from penstock.model.errors.views import ViewBehind
from penstock.olep.event import request
from penstock.olep.outcome import Outcomes
from penstock.olep.position import Position
from penstock.olep.view.consistent_reads import LogTail, Reads
from penstock.olep.view.runner import Tuning, ViewRunner, run_together
from penstock.olep.view.snapshot_reads import Snapshots

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from examples.newsroom.settings import Settings

OUTCOME_SECONDS = 10.0
NEWS_SECONDS = 20.0  # how long one request waits for news
NEWEST = 20  # articles on the front page
_STATUS = {"submission.accepted": 201, "submission.parked": 202}


class Newsroom:
    """The views, written and read in this process. A context manager."""

    def __init__(self, settings: Settings) -> None:
        self.assets, submissions = settings.assets(), settings.submissions()
        stores, tuning = settings.views, Tuning(gather_seconds=0.0)
        self.outcomes = Outcomes(submissions, OUTCOME_TYPES)
        self._runners = {
            "site": ViewRunner(SITE, self.assets, stores, tuning=tuning),
            "search": ViewRunner(SEARCH, self.assets, stores, tuning=tuning),
            "desk": ViewRunner(DESK, submissions, stores, tuning=tuning),
        }
        self._tail = LogTail(self.assets)
        self.site = Reads(SITE, self.assets, stores, runner=self._runners["site"], tail=self._tail)
        self.search = Reads(SEARCH, self.assets, stores, runner=self._runners["search"], tail=self._tail)
        self.desk = Reads(DESK, submissions, stores, runner=self._runners["desk"])
        both = {"site": self.site, "search": self.search}
        self.snapshots = Snapshots(self.assets, both, tail=self._tail)
        self._stopping = threading.Event()
        runners = [*self._runners.values()]
        self._thread = threading.Thread(target=lambda: run_together(runners, self._stopping), daemon=True)
        self._stack = ExitStack()

    def __enter__(self) -> Newsroom:
        self._thread.start()
        for each in (self._tail, self.outcomes, self.site, self.search, self.desk, self.snapshots):
            self._stack.enter_context(each)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._stack.close()

    def await_published(self, name: str, version: int) -> None:
        """Waits until the site shows it: outcome and asset go to two logs, and either may arrive first."""
        deadline = time.monotonic() + OUTCOME_SECONDS
        while True:
            with self.site.latest() as reader:
                rows = reader.get(CURRENT_ASSETS, name)
                here = reader.position.of(self.assets.topic_id, 0)
            if rows and CurrentAsset(*rows[0][1]).version >= version:
                return
            self.site.wait(
                Position.at(self.assets.topic_id, 0, here + 1), timeout=deadline - time.monotonic()
            )

    def article(self, name: str) -> tuple[Any, ...] | None:
        with self.site.linearizable(timeout=OUTCOME_SECONDS) as reader:
            rows = reader.get(PAGES, name)
            return rows[0][1] if rows else None

    def listed(self, which: str) -> list[tuple[str, str]]:
        query = (
            "select p.article, p.headline from lists l join pages p on p.article = l.article"
            " where l.list = ? order by p.since desc"
        )
        with self.site.linearizable(timeout=OUTCOME_SECONDS) as reader:
            return [(article, headline) for article, headline in reader.query(query, (which,))]

    def front(self) -> list[tuple[str, str]]:
        with self.site.linearizable(timeout=OUTCOME_SECONDS) as reader:
            rows = reader.query("select article, headline from pages order by since desc limit ?", (NEWEST,))
            return [(article, headline) for article, headline in rows]

    def search_articles(self, text: str) -> list[tuple[str, str]]:
        """Matching articles, with the headlines of their pages as of the same position."""
        with self.snapshots.take(after=self._tail.refresh(), timeout=OUTCOME_SECONDS) as snapshot:
            hits = [key for _, key in snapshot["search"].search(DOCUMENTS, text)]
            matches = [snapshot["site"].get(PAGES, key) for key in hits]
            return [(rows[0][1][0], rows[0][1][1]) for rows in matches if rows]

    def parked(self) -> list[tuple[str, list[str]]]:
        with self.desk.linearizable(timeout=OUTCOME_SECONDS) as reader:
            return sorted((row[0], json.loads(row[1])) for _, row in reader.rows(DANGLING))

    def news(self, after: int, tag: str | None, author: str | None) -> dict[str, Any]:
        """Articles published at or after an offset of the log; waits for the first of them."""
        deadline = time.monotonic() + NEWS_SECONDS
        query = "select at, article, headline, author, tags from news where at >= ? order by at"
        while True:
            with self.site.latest() as reader:
                rows = reader.query(query, (after,))
                here = reader.position.of(self.assets.topic_id, 0)
            articles = [
                {"article": article, "headline": headline, "author": by, "tags": json.loads(tags)}
                for _, article, headline, by, tags in rows
                if (tag is None or tag in json.loads(tags)) and author in (None, by)
            ]
            left = deadline - time.monotonic()
            if articles or left <= 0:
                return {"articles": articles, "after": here}
            try:
                self.site.wait(Position.at(self.assets.topic_id, 0, here + 1), timeout=left)
            except ViewBehind:
                continue


def service(settings: Settings) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with Newsroom(settings) as room:
            app.state.room = room
            yield

    app = FastAPI(title="A newspaper on one log", lifespan=lifespan)

    @app.exception_handler(PenstockError)
    async def failed(request: Request, error: PenstockError) -> Response:
        return error_response(request, error, retriable_status=503)

    @app.post("/assets")
    async def submit(asset: dict[str, Any]) -> JSONResponse:
        room: Newsroom = app.state.room
        name = asset.get("id") if isinstance(asset.get("id"), str) else "unnamed"
        event = request(str(uuid.uuid4()), "asset.submitted", asset, time=time.time_ns() // 1_000_000)
        final = await room.outcomes.ask_async(str(name), event, timeout=OUTCOME_SECONDS)
        if final.type == "submission.accepted":
            await asyncio.to_thread(
                room.await_published, str(final.payload["last"]), int(final.payload["version"])
            )
        body = {"state": final.type.partition(".")[2], **final.payload}
        return JSONResponse(body, _STATUS.get(final.type, 422))

    @app.get("/news")
    def news(after: int = 0, tag: str | None = None, author: str | None = None) -> dict[str, Any]:
        room: Newsroom = app.state.room
        return room.news(after, tag, author)

    @app.get("/news/tail")
    def tail() -> dict[str, Any]:
        room: Newsroom = app.state.room
        return {"after": room.site.position().of(room.assets.topic_id, 0)}

    _add_pages(app)
    return app


def _add_pages(app: FastAPI) -> None:
    @app.get("/", response_class=HTMLResponse)
    def front() -> str:
        room: Newsroom = app.state.room
        return pages.listing("The Penstock Times", room.front())

    @app.get("/articles/{name}", response_class=HTMLResponse)
    def article(name: str) -> HTMLResponse:
        room: Newsroom = app.state.room
        page = room.article(name)
        if page is None:
            return HTMLResponse(pages.not_found(f"There is no article {name}."), 404)
        return HTMLResponse(pages.article(page[1], page[4]))

    @app.get("/tags/{tag}", response_class=HTMLResponse)
    def tagged(tag: str) -> str:
        room: Newsroom = app.state.room
        return pages.listing(f"Articles on {tag}", room.listed(f"tag/{tag}"))

    @app.get("/authors/{author}", response_class=HTMLResponse)
    def written(author: str) -> str:
        room: Newsroom = app.state.room
        return pages.listing(f"Articles by {author}", room.listed(f"author/{author}"))

    @app.get("/search", response_class=HTMLResponse)
    def search(q: str = "") -> str:
        room: Newsroom = app.state.room
        return pages.listing(f"Articles that mention {q}", room.search_articles(q) if q else [], q)

    @app.get("/desk", response_class=HTMLResponse)
    def desk() -> str:
        room: Newsroom = app.state.room
        return pages.desk(room.parked())
