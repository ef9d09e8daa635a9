"""Internal topic names, which no tenant can use."""

from __future__ import annotations

from penstock.model import ids, key_names

TOPICS = [value for name, value in vars(key_names).items() if name.endswith("_TOPIC")]


def test_internal_topics_cannot_be_mistaken_for_a_tenants() -> None:
    prefix = ids.tenant_prefix(ids.logical_cluster_id("lkc-000000"))

    assert all(topic.startswith("_penstock.") and not topic.startswith(prefix[:4]) for topic in TOPICS)
