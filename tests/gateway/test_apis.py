"""The table of APIs: all that a broker has stands in it, and what is refused is refused for a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.gateway import apis
from penstock.kafka.connection import Connection
from penstock.wire.definitions import load
from penstock.wire.plans import Direction

if TYPE_CHECKING:
    from tests.ground.fleet import Fleet

BEFORE_ITS_FIRST = {("Produce", 0), ("Produce", 1), ("Produce", 2)}  # told of for old clients (KAFKA-18659)


def test_every_api_of_a_broker_has_a_verdict_and_every_refusal_a_reason() -> None:
    rows = list(apis.table(load()))

    assert {row.verdict for row in rows} == set(apis.Verdict)
    refused = [row for row in rows if row.verdict is apis.Verdict.REFUSED]
    assert all(row.why for row in refused)
    assert [row for row in refused if apis.UNSEEN in row.why] == []


def test_an_api_of_a_later_kafka_is_refused_until_somebody_has_looked_at_it() -> None:
    assert apis.treatment("TomorrowsApi", 0) is apis.Treatment.REFUSED
    assert apis.reason("TomorrowsApi", 0) == apis.UNSEEN


@pytest.mark.kafka
async def test_every_api_and_version_that_a_broker_advertises_stands_in_the_table(fleet: Fleet) -> None:
    definitions = load()
    table = {(row.api, row.version) for row in apis.table(definitions) if row.direction is Direction.REQUEST}
    host, _, port = fleet.bootstrap.split(",")[0].rpartition(":")

    async with await Connection.open(host, int(port), fleet.security()) as connection:
        advertised = {
            (definitions.api_name(one["ApiKey"]), version)
            for one in connection.api_versions["ApiKeys"]
            for version in range(one["MinVersion"], one["MaxVersion"] + 1)
        }

    assert len(advertised) > 100
    assert advertised - table <= BEFORE_ITS_FIRST
