"""One name for each noun, and names of internal topics that no tenant can have."""

from __future__ import annotations

from penstock.model import ids, keys


def test_no_two_nouns_share_a_key() -> None:
    assert len(set(keys.KEYS)) == len(keys.KEYS)


def test_internal_topics_cannot_be_taken_for_a_tenant_s() -> None:
    prefix = ids.tenant_prefix(ids.logical_cluster_id("lkc-000000"))

    assert all(
        topic.startswith("_penstock.") and not topic.startswith(prefix[:4]) for topic in keys.INTERNAL_TOPICS
    )


def test_every_compacted_topic_is_internal() -> None:
    assert set(keys.COMPACTED_TOPICS) < set(keys.INTERNAL_TOPICS)
