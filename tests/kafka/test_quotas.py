"""Kafka's own client quotas on a real cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.kafka import quotas
from penstock.kafka.outcomes import all_done
from penstock.kafka.quotas import entity
from penstock.model.errors.wire import KafkaRefused
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client

pytestmark = pytest.mark.kafka


async def test_limits_are_set_found_and_taken_away(client: Client, unique: Callable[[str], str]) -> None:
    user = unique("ada")
    alone, anywhere = entity(user=user), entity(user=user, client_id=None)
    limits = {quotas.PRODUCER_BYTES: 1024.0, quotas.CONSUMER_BYTES: 2048.0}

    all_done(await quotas.alter(client, {alone: limits, anywhere: {quotas.REQUEST_PERCENTAGE: 50.0}}))

    async def found() -> bool:
        return (await quotas.describe(client, exactly=alone)).get(alone) == limits

    assert await eventually(found)
    assert (await quotas.describe(client, kinds=["user", "client-id"]))[anywhere] == {
        quotas.REQUEST_PERCENTAGE: 50.0
    }
    everything = await quotas.describe(client)
    assert {alone, anywhere} <= everything.keys()

    all_done(
        await quotas.alter(
            client, {alone: dict.fromkeys(limits), anywhere: {quotas.REQUEST_PERCENTAGE: None}}
        )
    )

    async def gone() -> bool:
        return not {alone, anywhere} & (await quotas.describe(client)).keys()

    assert await eventually(gone)


async def test_a_limit_that_kafka_does_not_know_is_refused(
    client: Client, unique: Callable[[str], str]
) -> None:
    user = entity(user=unique("ada"))

    outcome = (await quotas.alter(client, {user: {"breath_rate": 1.0}}, validate_only=True))[user]

    assert isinstance(outcome, KafkaRefused)


async def test_a_rate_of_broken_bytes_is_refused(client: Client, unique: Callable[[str], str]) -> None:
    user = entity(user=unique("ada"))

    outcome = (await quotas.alter(client, {user: {quotas.PRODUCER_BYTES: 1.5}}, validate_only=True))[user]

    assert isinstance(outcome, KafkaRefused)
