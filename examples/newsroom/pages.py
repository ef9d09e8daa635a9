"""The HTML of the web site, around the rows of its views."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_STYLE = (
    "body{font:17px/1.6 Georgia,serif;max-width:44rem;margin:2rem auto;padding:0 1rem}"
    "nav{font:14px system-ui,sans-serif;border-bottom:1px solid #ccc;padding-bottom:.5rem}"
    "nav a{margin-right:1rem}"
    "figure{margin:1rem 0}img{max-width:100%}figcaption{color:#666;font-size:.9rem}"
    "#news{font:14px system-ui,sans-serif;background:#ffd;padding:.3rem .6rem;display:none}"
)
# Shows new articles without a reload: the request waits until there are some.
_FOLLOW = """
async function fetchUntilOk(path) {
  for (;;) {
    try {
      const response = await fetch(path);
      if (response.ok) return await response.json();
    } catch (unreachable) {}
    await new Promise(again => setTimeout(again, 1000));  // the site is restarting
  }
}
async function follow() {
  let after = (await fetchUntilOk('/news/tail')).after;
  for (;;) {
    const update = await fetchUntilOk('/news?after=' + after);
    after = update.after;
    for (const each of update.articles) {
      const line = document.createElement('a');
      line.href = '/articles/' + encodeURIComponent(each.article);
      line.textContent = 'New: ' + each.headline;
      const news = document.getElementById('news');
      news.replaceChildren(line);
      news.style.display = 'block';
    }
  }
}
follow();
"""


def listing(title: str, articles: Iterable[tuple[str, str]], query: str = "") -> str:
    lines = "".join(
        f'<li><a href="/articles/{quote(name)}">{escape(headline)}</a></li>' for name, headline in articles
    )
    return _page(title, f"<h1>{escape(title)}</h1><ul>{lines or '<li>Nothing yet.</li>'}</ul>", query)


def article(headline: str, html: str) -> str:
    return _page(headline, html)


def not_found(text: str) -> str:
    return _page("Not found", f"<p>{escape(text)}</p>")


def desk(parked: Sequence[tuple[str, list[str]]]) -> str:
    lines = "".join(
        f"<li>{escape(name)} waits for {escape(', '.join(missing))}</li>" for name, missing in parked
    )
    return _page("The desk", f"<h1>Parked</h1><ul>{lines or '<li>Nothing is parked.</li>'}</ul>")


def _page(title: str, body: str, query: str = "") -> str:
    nav = (
        '<nav><a href="/">Front page</a><a href="/desk">Desk</a>'
        '<form action="/search" style="display:inline">'
        f'<input name="q" value="{escape(query)}" placeholder="search"></form></nav><p id="news"></p>'
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style>{nav}{body}<script>{_FOLLOW}</script></html>"
    )
