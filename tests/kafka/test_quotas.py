"""Kafka's client quotas on a real cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.kafka.admin import quotas
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.quotas import entity
from penstock.model.errors.wire import KafkaRefused
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client

pytestmark = pytest.mark.kafka


async def test_limits_are_set_described_and_removed(client: Client, unique: Callable[[str], str]) -> None:
    user = unique("ada")
    alone, anywhere = entity(user=user), entity(user=user, client_id=None)
    limits = {quotas.PRODUCER_BYTES: 1024.0, quotas.CONSUMER_BYTES: 2048.0}

    results_or_raise(await quotas.alter(client, {alone: limits, anywhere: {quotas.REQUEST_PERCENTAGE: 50.0}}))

    async def described() -> bool:
        return (await quotas.describe(client, exactly=alone)).get(alone) == limits

    assert await eventually(described)
    assert (await quotas.describe(client, kinds=["user", "client-id"]))[anywhere] == {
        quotas.REQUEST_PERCENTAGE: 50.0
    }
    everything = await quotas.describe(client)
    assert {alone, anywhere} <= everything.keys()

    results_or_raise(
        await quotas.alter(
            client, {alone: dict.fromkeys(limits), anywhere: {quotas.REQUEST_PERCENTAGE: None}}
        )
    )

    async def are_removed() -> bool:
        return not {alone, anywhere} & (await quotas.describe(client)).keys()

    assert await eventually(are_removed)


async def test_an_unknown_limit_is_rejected(client: Client, unique: Callable[[str], str]) -> None:
    user = entity(user=unique("ada"))

    outcome = (await quotas.alter(client, {user: {"breath_rate": 1.0}}, validate_only=True))[user]

    assert isinstance(outcome, KafkaRefused)


async def test_a_fractional_byte_rate_is_rejected(client: Client, unique: Callable[[str], str]) -> None:
    user = entity(user=unique("ada"))

    outcome = (await quotas.alter(client, {user: {quotas.PRODUCER_BYTES: 1.5}}, validate_only=True))[user]

    assert isinstance(outcome, KafkaRefused)
