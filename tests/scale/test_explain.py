"""`scale explain` on a cluster without stored samples: when it may stop sampling."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.scale import GroupUnknown, TopicUnknown
from penstock.scale import explain
from penstock.scale.explain import sampled_watch
from penstock.scale.settings import ClusterSettings, ScalerSettings
from tests.scale.fakes import FakeCluster

if TYPE_CHECKING:
    from penstock.model.errors import PenstockError

METADATA = {"cluster": "home", "group": "billing", "topic": "orders"}
SETTINGS = ScalerSettings({"home": ClusterSettings("127.0.0.1:1")})


@pytest.mark.parametrize(
    ("cluster", "error"),
    [(FakeCluster(group_exists=False), GroupUnknown), (FakeCluster(topic_exists=False), TopicUnknown)],
)
async def test_a_group_or_topic_that_does_not_exist_is_reported_after_one_sample(
    monkeypatch: pytest.MonkeyPatch, cluster: FakeCluster, error: type[PenstockError]
) -> None:
    monkeypatch.setattr(explain, "KafkaLagSource", lambda _: cluster)

    async with asyncio.timeout(60):  # it would sample for an hour otherwise
        watch = await sampled_watch(SETTINGS, "shop/billing", METADATA, seconds=3600, progress=print)

    assert cluster.rounds == 1
    with pytest.raises(error):
        watch.current_verdict(watch.received_at or 0.0)
