"""A newspaper on one log: the case study of the paper on online event processing.

All assets (images, authors, articles) are in one partition. Whatever an asset refers to comes before it,
and the latest version of an asset wins. `python -m examples.newsroom up` starts the press, which keeps
that order, the views of the site and its search, and a small web site.

Modules:
  __main__     the `newsroom` command
  asset_files  reads assets from JSON files
  assets       what an asset is, what it refers to, and the order of an import
  pages        the HTML around the rows of the views
  press        decides what is published and in which order
  sample       the assets of the first start
  service      the web site: reads of the views, and submissions
  settings     where a newsroom keeps its topics, state and views
  site         the views: pages, lists, news, search, parked assets
"""
