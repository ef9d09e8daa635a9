"""A newspaper on one log: every asset in one partition, references before referrers, latest version wins.

`python -m examples.newsroom up` runs it: a press that keeps the order, views for the site and its
search, and a small web page. The case study of the paper on online event processing.
"""
