"""The newspaper's views: pages, lists by tag and author, news, full-text search, parked assets.

An article's page shows its author's name and its images' captions. When one of them changes, every
article in its `referrers` row is rendered and indexed again. References precede referrers in the log, so
no page lacks a part.
"""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from examples.newsroom.assets import references
from penstock.olep.table import Effect, Put, Remove, Table
from penstock.olep.view.projection import Projection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.olep.application import State
    from penstock.olep.event import Event


class CurrentAsset(NamedTuple):
    """The latest version of an asset."""

    asset: str
    kind: str
    version: int
    content: str  # JSON


class Referrers(NamedTuple):
    asset: str
    articles: str  # JSON


class Page(NamedTuple):
    article: str
    headline: str
    author: str
    byline: str  # the author's name
    html: str
    version: int
    since: int  # offset of its first version
    rendered: int  # offset of the event that it was rendered for


class Listed(NamedTuple):
    """An article on the page of a tag or an author."""

    list: str  # tag/… or author/…
    article: str


class News(NamedTuple):
    """A first version of an article."""

    at: int
    article: str
    headline: str
    author: str
    tags: str  # JSON


class Document(NamedTuple):
    article: str
    headline: str
    text: str


class Dangling(NamedTuple):
    asset: str
    missing: str  # JSON
    time: int


CURRENT_ASSETS: Final = Table("current_assets", CurrentAsset)
REFERRERS: Final = Table("referrers", Referrers)
PAGES: Final = Table("pages", Page)
LISTS: Final = Table("lists", Listed, key=2)
NEWS: Final = Table("news", News, append_only=True)
DOCUMENTS: Final = Table("documents", Document)
DANGLING: Final = Table("dangling", Dangling)


def _changed(state: State, event: Event) -> tuple[dict[str, Any] | None, list[Effect], list[str]]:
    """The previous version of the event's asset, the rows to write, and the articles to refresh."""
    content = {key: value for key, value in event.payload.items() if key != "version"}
    name = content["id"]
    known = state.get(CURRENT_ASSETS, name)
    before = json.loads(known.content) if known else None
    effects: list[Effect] = [
        Put(
            CURRENT_ASSETS, CurrentAsset(name, content["kind"], event.payload["version"], json.dumps(content))
        )
    ]
    old, new = set(references(before)) if before else set(), set(references(content))
    for each in sorted(old ^ new):
        row = state.get(REFERRERS, each)
        articles = set(json.loads(row.articles)) if row else set()
        articles = articles | {name} if each in new else articles - {name}
        effects.append(Put(REFERRERS, Referrers(each, json.dumps(sorted(articles)))))
    if content["kind"] == "article":
        return before, effects, [name]
    row = state.get(REFERRERS, name)
    return before, effects, json.loads(row.articles) if row else []


def _content(state: State, name: str, event: Event) -> dict[str, Any]:
    """An asset after this event is applied."""
    if name == event.payload["id"]:
        return dict(event.payload)
    current = state.get(CURRENT_ASSETS, name)
    assert current is not None, f"{name} is referred to and was never published"
    return {**json.loads(current.content), "version": current.version}


def _site(state: State, event: Event) -> Iterator[Effect]:
    before, effects, articles = _changed(state, event)
    yield from effects
    for name in articles:
        article = _content(state, name, event)
        author = _content(state, article["author"], event)
        images = [_content(state, each, event) for each in article["images"]]
        known = state.get(PAGES, name)
        since = known.since if known else event.offset
        html = rendered(article, author["name"], images)
        yield Put(
            PAGES,
            Page(
                name,
                article["headline"],
                article["author"],
                author["name"],
                html,
                article["version"],
                since,
                event.offset,
            ),
        )
    if event.payload["kind"] == "article":
        yield from _lists(before, dict(event.payload))
        if before is None:
            new = event.payload
            tags = json.dumps(new["tags"])
            yield Put(NEWS, News(event.offset, new["id"], new["headline"], new["author"], tags))


def _lists(before: dict[str, Any] | None, article: dict[str, Any]) -> Iterator[Effect]:
    def of(version: dict[str, Any] | None) -> set[str]:
        return (
            {f"author/{version['author']}", *(f"tag/{tag}" for tag in version["tags"])} if version else set()
        )

    for name in sorted(of(before) - of(article)):
        yield Remove(LISTS, (name, article["id"]))
    for name in sorted(of(article) - of(before)):
        yield Put(LISTS, Listed(name, article["id"]))


def _search(state: State, event: Event) -> Iterator[Effect]:
    _, effects, articles = _changed(state, event)
    yield from effects
    for name in articles:
        article = _content(state, name, event)
        words = [article["body"], _content(state, article["author"], event)["name"], *article["tags"]]
        words += [_content(state, each, event)["caption"] for each in article["images"]]
        yield Put(DOCUMENTS, Document(name, article["headline"], "\n".join(words)))


def _desk(state: State, event: Event) -> Iterator[Effect]:
    if event.type == "submission.parked":
        missing = json.dumps(event.payload["missing"])
        yield Put(DANGLING, Dangling(event.payload["asset"], missing, event.time))
    else:
        yield Remove(DANGLING, event.payload["asset"])


def rendered(article: dict[str, Any], author: str, images: list[dict[str, Any]]) -> str:
    images_html = "".join(
        "<figure>"
        f'<img src="{escape(each["url"])}" alt="{escape(each["caption"])}">'
        f"<figcaption>{escape(each['caption'])}</figcaption></figure>"
        for each in images
    )
    paragraphs = "".join(f"<p>{escape(each)}</p>" for each in article["body"].split("\n") if each.strip())
    tags = " ".join(f'<a href="/tags/{escape(tag)}">{escape(tag)}</a>' for tag in article["tags"])
    byline = f'<p>By <a href="/authors/{escape(article["author"])}">{escape(author)}</a> · {tags}</p>'
    return f"<article><h1>{escape(article['headline'])}</h1>{byline}{images_html}{paragraphs}</article>"


SITE: Final = Projection(
    "site", _site, (CURRENT_ASSETS, REFERRERS, PAGES, LISTS, NEWS), {"asset.published": 1}
)
SEARCH: Final = Projection(
    "search",
    _search,
    (CURRENT_ASSETS, REFERRERS, DOCUMENTS),
    {"asset.published": 1},
    text={"documents": ("headline", "text")},
)
DESK: Final = Projection(
    "desk",
    _desk,
    (DANGLING,),
    {"submission.parked": 1, "submission.accepted": 1, "submission.released": 1},
)
