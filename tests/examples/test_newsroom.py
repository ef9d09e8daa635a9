"""The newspaper: the order of its log, its views, and the whole program as its user runs it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.newsroom.assets import in_order, problem, references
from examples.newsroom.press import ASSETS_LOG, PARKED, SUBMISSIONS_LOG, application
from examples.newsroom.sample import SAMPLE
from examples.newsroom.site import DOCUMENTS, LISTS, NEWS, PAGES, SEARCH, SITE
from penstock.olep.event import Event, Record
from penstock.olep.view.fold import ViewFold
from penstock.olep.view.stores.sqlite import SqliteViews
from tests.examples.programs import START_SECONDS, NewsroomProgram
from tests.olep.memory_cluster import CODEC, TOPIC_ID, MemoryCluster

if TYPE_CHECKING:
    from examples.newsroom.assets import Asset
    from penstock.olep.view.projection import Projection


class Press:
    """The press in memory, and the log of assets that it publishes."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(application(), 1, log=SUBMISSIONS_LOG)
        self.count = 0

    def submit(self, *assets: Asset) -> None:
        for asset in assets:
            self.count += 1
            self.cluster.request(f"s{self.count}", "asset.submitted", asset["id"], asset)
            self.cluster.settle()

    def published(self) -> list[Event]:
        outs = [out for out in self.cluster.others if out.log == ASSETS_LOG]
        return [CODEC.decode(out.value, out.key.decode(), 0, at) for at, out in enumerate(outs)]

    def parked(self) -> list[str]:
        return sorted(row[0] for row in self.cluster.tasks[0].store.scan(PARKED))

    def view(self, projection: Projection, directory: Path) -> Any:
        """A view of the log of assets, caught up."""
        store = SqliteViews(directory).open(projection, TOPIC_ID, 1, generation=1)
        position = store.claim()[0]
        fold = ViewFold(projection, CODEC, store, 0)
        outs = [out for out in self.cluster.others if out.log == ASSETS_LOG]
        records = [Record(at, out.key, out.value) for at, out in enumerate(outs)][position:]
        batch = fold.process(records, position)
        assert batch.skipped == 0
        store.commit([batch])
        return store


def image(name: str, caption: str) -> Asset:
    return {"id": name, "kind": "image", "url": f"/{name}.png", "caption": caption}


def article(name: str, *images: str, author: str = "ada", tags: tuple[str, ...] = ("rivers",)) -> Asset:
    words = {"headline": f"About {name}", "body": f"The body of {name}."}
    return {"id": name, "kind": "article", **words, "author": author, "images": [*images], "tags": [*tags]}


ADA: Asset = {"id": "ada", "kind": "author", "name": "Ada Byron"}


@given(st.permutations(SAMPLE), st.integers(0, 6))
@settings(max_examples=40, deadline=None)
def test_references_precede_referrers_whatever_the_order_of_submission(order: list[Asset], late: int) -> None:
    press = Press()
    press.submit(*order, order[late])
    seen: set[str] = set()
    versions: dict[str, int] = {}
    for event in press.published():
        assert set(references(event.payload)) <= seen, "referrer before referee"
        seen.add(event.payload["id"])
        versions[event.payload["id"]] = versions.get(event.payload["id"], 0) + 1
        assert event.payload["version"] == versions[event.payload["id"]]
    assert (seen, press.parked()) == ({asset["id"] for asset in SAMPLE}, [])


def test_an_asset_with_a_dangling_reference_is_parked_and_released_by_the_missing_asset() -> None:
    press = Press()
    press.submit(article("a", "late"), ADA)
    assert (press.parked(), [e.payload["id"] for e in press.published()]) == (["a"], ["ada"])
    press.submit(image("late", "at last"))
    assert (press.parked(), [e.payload["id"] for e in press.published()]) == ([], ["ada", "late", "a"])


def test_a_later_version_replaces_a_parked_one() -> None:
    press = Press()
    press.submit(ADA, article("a", "late"), article("a"), image("late", "too late"))
    assert [(e.payload["id"], e.payload.get("images")) for e in press.published()] == [
        ("ada", None),
        ("a", []),
        ("late", None),
    ]


def test_a_changed_caption_is_updated_on_every_page_and_in_the_search(tmp_path: Path) -> None:
    press = Press()
    press.submit(ADA, image("mill", "the mill at dawn"), article("one", "mill"), article("two", "mill"))
    press.view(SITE, tmp_path).close()
    press.view(SEARCH, tmp_path).close()
    press.submit(image("mill", "the mill at dusk"))
    site, search = press.view(SITE, tmp_path), press.view(SEARCH, tmp_path)
    with site.reading() as reader:
        shown = [row[4] for _, row in reader.rows(PAGES)]
        assert [("dusk" in html, "dawn" in html) for html in shown] == [(True, False)] * 2
    with search.reading() as reader:
        assert sorted(key for _, key in reader.search(DOCUMENTS, "dusk")) == ["one", "two"]
        assert reader.search(DOCUMENTS, "dawn") == []
    site.close()
    search.close()


def test_lists_by_tag_and_author_follow_the_latest_version_and_news_the_first(tmp_path: Path) -> None:
    press = Press()
    bea: Asset = {"id": "bea", "kind": "author", "name": "Bea"}
    press.submit(ADA, bea, article("one"), article("one", author="bea", tags=("mills",)))
    site = press.view(SITE, tmp_path)
    with site.reading() as reader:
        assert sorted(row for _, row in reader.rows(LISTS)) == [("author/bea", "one"), ("tag/mills", "one")]
        assert [(row[1], row[3]) for _, row in reader.rows(NEWS)] == [("one", "ada")]
    site.close()


def test_an_import_is_sorted_and_circular_references_are_listed() -> None:
    ordered, cyclic = in_order(SAMPLE)
    seen: set[str] = set()
    for asset in ordered:
        assert set(references(asset)) <= seen
        seen.add(asset["id"])
    assert (len(ordered), cyclic) == (len(SAMPLE), [])
    one, two = article("one", "two"), article("two", "one")
    assert in_order([one, two, ADA]) == ([ADA], [one, two])


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"kind": "video"}, "kind"),
        ({"id": "no good"}, "id"),
        ({"body": 7}, "body"),
        ({"images": ["x y"]}, "ids"),
        ({"colour": "red"}, "colour"),
        ({"images": ["a"]}, "itself"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_malformed_asset_is_refused_with_the_field_at_fault(wrong: dict[str, Any], expected: str) -> None:
    assert expected in (problem({**article("a"), **wrong}) or "")


def followed(newsroom: NewsroomProgram, after: int) -> list[Any]:
    """The next news of floods; repeats the call when it returns none."""
    deadline = time.monotonic() + START_SECONDS
    articles: list[Any] = []
    while not articles and time.monotonic() < deadline:
        news = json.loads(newsroom.page(f"/news?after={after}&tag=floods"))
        articles, after = news["articles"], news["after"]
    return articles


@pytest.mark.kafka
def test_a_newspaper_is_published_read_searched_and_followed(newsroom: NewsroomProgram) -> None:
    newsroom.wait()
    assert "By" in newsroom.page("/articles/water-returns")
    assert "The mill at dawn" in newsroom.page("/articles/water-returns")
    news: list[Any] = []
    after = json.loads(newsroom.page("/news/tail"))["after"]
    reader = threading.Thread(target=lambda: news.extend(followed(newsroom, after)))
    reader.start()
    assert newsroom.submit(article("flood", "flood-photo", author="ada", tags=("floods",)))[0] == 202
    assert "flood waits for flood-photo" in newsroom.page("/desk")
    assert "flood waits for flood-photo" in newsroom.command("parked").stdout
    assert newsroom.submit(image("flood-photo", "The valley under water"))[0] == 201
    # The editor sees it at once: on its page, in the lists and in the search.
    assert "The valley under water" in newsroom.page("/articles/flood")
    assert "About flood" in newsroom.page("/tags/floods")
    assert "About flood" in newsroom.page("/search?q=valley")
    assert "Nothing is parked" in newsroom.page("/desk")
    reader.join()
    assert [each["article"] for each in news] == ["flood"]
    assert newsroom.submit({"id": "x", "kind": "video"})[0] == 422
    assert "There is no article" in newsroom.page("/articles/nothing")
    newsroom.submit(image("mill", "The mill at dusk"))
    assert "The mill at dusk" in newsroom.page("/articles/water-returns")
    lines = newsroom.home / "more.jsonl"
    more = [article("m2", "m1", tags=("mills",)), image("m1", "one"), article("m3", "gone")]
    lines.write_text("\n".join(map(json.dumps, more)), encoding="utf-8")
    printed = newsroom.command("import", str(lines)).stdout.splitlines()
    assert printed == ["accepted m1", "parked m3 {'missing': ['gone']}", "accepted m2"]


@pytest.mark.kafka
@pytest.mark.timeout(300)  # a Kafka starts and stops
def test_a_killed_newspaper_leaves_no_process_of_its_local_kafka_behind(tmp_path: Path) -> None:
    newsroom = NewsroomProgram(tmp_path, None)
    try:
        newsroom.wait()
        processes = [
            each
            for each in psutil.process_iter(["cmdline"])
            if str(tmp_path) in " ".join(each.info["cmdline"] or ())
        ]
        assert {"java", "kafka-watcher", "press", "site"} <= {
            Path(word).name for each in processes for word in each.info["cmdline"]
        }
    finally:
        newsroom.process.kill()
        newsroom.process.wait()
    alive = psutil.wait_procs(processes, START_SECONDS)[1]
    for each in alive:
        each.kill()
    assert alive == []
