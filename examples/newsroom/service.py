"""The newsroom's web page: reads of the views, and a door for editors.

    GET  /                    the newest articles          GET /articles/{id}
    GET  /tags/{tag}          GET /authors/{id}            GET /search?q=…
    GET  /desk                what is parked, and what it lacks
    POST /assets              an asset; 201 published · 202 parked · 422 refused
    GET  /news?after=0&tag=…  waits until there is an article that is new, then tells of it

The views run in this process, so whoever has published something sees it at once: the answer is given
when the site has it, and each read waits for the tail of the log of its moment (`linearizable`), woken
by the view itself.
A page and the search beside it come from two views as of one position.
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

from examples.answers import failure
from examples.newsroom import pages
from examples.newsroom.press import ANSWERS
from examples.newsroom.site import DANGLING, DESK, DOCUMENTS, KEPT, PAGES, SEARCH, SITE, Kept
from penstock.model.errors import PenstockError
from penstock.model.errors.views import ViewBehind
from penstock.olep.event import request
from penstock.olep.outcome import Outcomes
from penstock.olep.position import Position
from penstock.olep.view.reads import Reads, Tail
from penstock.olep.view.runner import Tuning, ViewRunner, run_together
from penstock.olep.view.snapshots import Snapshots

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from examples.newsroom.setting import Setting

ANSWER_SECONDS = 10.0
NEWS_SECONDS = 20.0  # how long a reader waits for news in one call
NEWEST = 20  # articles on the front page
_STATUS = {"submission.accepted": 201, "submission.parked": 202}


class Newsroom:
    """The views, written and read in this process. A context manager."""

    def __init__(self, setting: Setting) -> None:
        self.assets, submissions = setting.assets(), setting.submissions()
        stores, tuning = setting.views, Tuning(gather_seconds=0.0)
        self.outcomes = Outcomes(submissions, ANSWERS)
        self._runners = {
            "site": ViewRunner(SITE, self.assets, stores, tuning=tuning),
            "search": ViewRunner(SEARCH, self.assets, stores, tuning=tuning),
            "desk": ViewRunner(DESK, submissions, stores, tuning=tuning),
        }
        self._tail = Tail(self.assets)
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
        """Answer and asset go to two logs, so the one may be there before the other."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            with self.site.latest() as reader:
                kept = reader.get(KEPT, name)
                here = reader.position.of(self.assets.topic_id, 0)
            if kept and Kept(*kept[0][1]).version >= version:
                return
            self.site.wait(
                Position.at(self.assets.topic_id, 0, here + 1), timeout=deadline - time.monotonic()
            )

    def article(self, name: str) -> tuple[Any, ...] | None:
        with self.site.linearizable(timeout=ANSWER_SECONDS) as reader:
            found = reader.get(PAGES, name)
            return found[0][1] if found else None

    def listed(self, which: str) -> list[tuple[str, str]]:
        query = (
            "select p.article, p.headline from lists l join pages p on p.article = l.article"
            " where l.list = ? order by p.since desc"
        )
        with self.site.linearizable(timeout=ANSWER_SECONDS) as reader:
            return [(article, headline) for article, headline in reader.query(query, (which,))]

    def front(self) -> list[tuple[str, str]]:
        with self.site.linearizable(timeout=ANSWER_SECONDS) as reader:
            rows = reader.query("select article, headline from pages order by since desc limit ?", (NEWEST,))
            return [(article, headline) for article, headline in rows]

    def found(self, text: str) -> list[tuple[str, str]]:
        """Articles that match, with the headlines that their pages have at the same moment."""
        with self.snapshots.take(after=self._tail.ask(), timeout=ANSWER_SECONDS) as snapshot:
            hits = [key for _, key in snapshot["search"].search(DOCUMENTS, text)]
            pages_found = [snapshot["site"].get(PAGES, key) for key in hits]
            return [(rows[0][1][0], rows[0][1][1]) for rows in pages_found if rows]

    def parked(self) -> list[tuple[str, list[str]]]:
        with self.desk.linearizable(timeout=ANSWER_SECONDS) as reader:
            return sorted((row[0], json.loads(row[1])) for _, row in reader.rows(DANGLING))

    def news(self, after: int, tag: str | None, author: str | None) -> dict[str, Any]:
        """Articles that are new after a place in the log; waits for the first of them."""
        deadline = time.monotonic() + NEWS_SECONDS
        query = "select at, article, headline, author, tags from news where at >= ? order by at"
        while True:
            with self.site.latest() as reader:
                rows = reader.query(query, (after,))
                here = reader.position.of(self.assets.topic_id, 0)
            found = [
                {"article": article, "headline": headline, "author": by, "tags": json.loads(tags)}
                for _, article, headline, by, tags in rows
                if (tag is None or tag in json.loads(tags)) and author in (None, by)
            ]
            left = deadline - time.monotonic()
            if found or left <= 0:
                return {"articles": found, "after": here}
            try:
                self.site.wait(Position.at(self.assets.topic_id, 0, here + 1), timeout=left)
            except ViewBehind:
                continue


def service(setting: Setting) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with Newsroom(setting) as room:
            app.state.room = room
            yield

    app = FastAPI(title="A newspaper on one log", lifespan=lifespan)

    @app.exception_handler(PenstockError)
    async def failed(asked: Request, error: PenstockError) -> Response:
        return failure(asked, error, later=503)

    @app.post("/assets")
    async def submit(body: dict[str, Any]) -> JSONResponse:
        room: Newsroom = app.state.room
        name = body.get("id") if isinstance(body.get("id"), str) else "unnamed"
        event = request(str(uuid.uuid4()), "asset.submitted", body, time=time.time_ns() // 1_000_000)
        final = await room.outcomes.ask_async(str(name), event, timeout=ANSWER_SECONDS)
        if final.type == "submission.accepted":
            await asyncio.to_thread(
                room.await_published, str(final.payload["last"]), int(final.payload["version"])
            )
        answer = {"state": final.type.partition(".")[2], **final.payload}
        return JSONResponse(answer, _STATUS.get(final.type, 422))

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
        found = room.article(name)
        if found is None:
            return HTMLResponse(pages.nothing(f"There is no article {name}."), 404)
        return HTMLResponse(pages.whole(found[1], found[4]))

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
        return pages.listing(f"Articles that mention {q}", room.found(q) if q else [], q)

    @app.get("/desk", response_class=HTMLResponse)
    def desk() -> str:
        room: Newsroom = app.state.room
        return pages.desk(room.parked())
