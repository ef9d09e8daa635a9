"""Which denials are logged."""

from __future__ import annotations

from dataclasses import replace

from structlog.testing import capture_logs

from penstock.gateway.limits.admission import Denial
from penstock.gateway.limits.denial_log import (
    ADDRESS_LINES_MAX,
    ADDRESSES_MAX,
    TENANT_LINES_MAX,
    DenialLog,
)
from penstock.model.ids import LogicalClusterId
from tests.gateway.wires import PRINCIPAL, quiet_gateway, serving_session

LOCAL = "127.0.0.1"
OTHER = LogicalClusterId("lkc-000002")


async def test_a_tenant_with_many_denials_does_not_hide_anothers() -> None:
    gateway = quiet_gateway()
    noisy, _, _ = serving_session(gateway)
    quiet, _, _ = serving_session(gateway)
    quiet.connection.life = replace(quiet.connection.life, principal=replace(PRINCIPAL, tenant=OTHER))

    with capture_logs() as lines:
        for _ in range(200):
            gateway.denied(noisy, Denial.API_REFUSED)
        gateway.denied(quiet, Denial.NAME_REFUSED)

    assert [line["reason"] for line in lines if line["tenant"] == OTHER] == [Denial.NAME_REFUSED]
    assert len(lines) <= 2 * TENANT_LINES_MAX + 1  # of two seconds at most
    assert gateway.denials[Denial.API_REFUSED] == 200


def test_lines_are_counted_for_each_tenant_and_second() -> None:
    log = DenialLog()

    first = [log.admits("lkc-000001", LOCAL, 7.0) for _ in range(TENANT_LINES_MAX + 1)]

    assert first == [True] * TENANT_LINES_MAX + [False]
    assert log.admits("lkc-000002", LOCAL, 7.9)
    assert log.admits(None, LOCAL, 7.9)
    assert log.admits("lkc-000001", LOCAL, 8.0)


def test_addresses_without_login_share_a_bounded_number_of_lines() -> None:
    log = DenialLog()

    lines = sum(log.admits(None, f"10.0.{n // 250}.{n % 250}", 7.0) for n in range(5000) for _ in range(9))

    assert lines == ADDRESS_LINES_MAX * (ADDRESSES_MAX + 1)
    assert log.admits("lkc-000001", LOCAL, 7.0)
