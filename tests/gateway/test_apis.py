"""The table of APIs: complete for a broker, and with a reason for each refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.gateway.tenancy import apis
from penstock.kafka.connection import Connection
from penstock.wire.definitions import load
from penstock.wire.plans import Direction

if TYPE_CHECKING:
    from tests.harness.fleet import Fleet

BEFORE_ITS_FIRST = {("Produce", 0), ("Produce", 1), ("Produce", 2)}  # listed for old clients (KAFKA-18659)


def test_every_api_of_a_broker_has_a_verdict_and_every_refusal_a_reason() -> None:
    rows = list(apis.table(load()))

    assert {row.verdict for row in rows} == set(apis.Verdict)
    refused = [row for row in rows if row.verdict is apis.Verdict.REFUSED]
    assert all(row.why for row in refused)
    assert [row for row in refused if apis.UNREVIEWED in row.why] == []


def test_an_unreviewed_api_is_refused() -> None:
    assert apis.treatment("TomorrowsApi", 0) is apis.Treatment.REFUSED
    assert apis.reason("TomorrowsApi", 0) == apis.UNREVIEWED


@pytest.mark.kafka
async def test_the_table_covers_every_api_and_version_a_broker_advertises(fleet: Fleet) -> None:
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
