"""How current a gateway's configuration is, and what it does with one that is too old."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.gateway.limits.admission import Denial
from penstock.gateway.process import config_source, server
from penstock.gateway.process.config_source import FileSource
from penstock.gateway.process.metrics import GatewayMetrics
from penstock.gateway.process.session import Session
from penstock.metrics_server import page_of
from penstock.model.backoff import Backoff
from tests.gateway.wires import BOUNDS, BROKER, PRINCIPAL, TENANT, quiet_gateway
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    import pytest

    from penstock.gateway.config import GatewayConfig

FILE = "cluster: pkc-000001\nbrokers: [{{id: 1, zone: {zone}, address: '127.0.0.1:1'}}]\n"


async def test_no_login_is_admitted_with_a_state_that_is_too_old(tmp_path: Path) -> None:
    gateway = quiet_gateway(replace(BOUNDS, state_age_seconds_max=60.0))
    source = gateway.source = FileSource(tmp_path / "none")
    session = Session(gateway, 1, "127.0.0.1", BROKER)
    assert gateway.admission.admit_connection("127.0.0.1", gateway.now()) is None

    source.fresh_at = gateway.now() - 61.0
    old, page = gateway.admit_login(session, PRINCIPAL), page_of(GatewayMetrics(gateway))().decode()
    ready = gateway.state_is_current()
    source.fresh_at = gateway.now()
    current = gateway.admit_login(session, PRINCIPAL)

    assert (old, ready, current) == (Denial.STATE_OLD, False, None)
    assert "penstock_gateway_state_age_seconds 61." in page


async def test_no_login_is_admitted_for_a_tenant_whose_newest_state_cannot_be_read(tmp_path: Path) -> None:
    """It may revoke the key. Other tenants are not concerned."""
    gateway = quiet_gateway(replace(BOUNDS, state_age_seconds_max=60.0))
    source = gateway.source = FileSource(tmp_path / "none")
    session = Session(gateway, 1, "127.0.0.1", BROKER)
    assert gateway.admission.admit_connection("127.0.0.1", gateway.now()) is None

    source.unread[TENANT.id] = gateway.now() - 61.0
    old = gateway.admit_login(session, PRINCIPAL)
    source.unread = {TENANT.id: gateway.now(), "lkc-zzzzzz": gateway.now() - 61.0}
    current = gateway.admit_login(session, PRINCIPAL)

    assert (old, current, gateway.state_is_current()) == (Denial.STATE_OLD, None, True)


async def test_a_file_that_could_not_be_applied_is_not_current_and_is_applied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_source, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(server, "AGAIN", Backoff(0.01))
    path = tmp_path / "gateway.yaml"
    path.write_text(FILE.format(zone="a"))
    gateway = quiet_gateway()
    source = FileSource(path)
    source.fresh_at = started = gateway.now() - 100.0
    applied: list[str] = []

    def apply(config: GatewayConfig) -> None:
        assert source.fresh_at == started
        applied.append(config.brokers[0].zone)
        if len(applied) == 1:
            raise RuntimeError("a defect")

    monkeypatch.setattr(gateway, "apply_config", apply)
    path.write_text(FILE.format(zone="longer"))
    gateway.follow(source)

    async def fresh() -> bool:
        return source.fresh_at > started

    await eventually(fresh)
    await gateway.close()
    assert applied == ["longer", "longer"]


async def test_only_the_file_in_force_counts_as_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_source, "POLL_SECONDS", 0.0)
    path = tmp_path / "gateway.yaml"
    path.write_text(FILE.format(zone="a"))
    source = FileSource(path)

    async def polled() -> float:
        for _ in range(100):
            await asyncio.sleep(0)
        return source.fresh_at

    async with aclosing(source.follow()) as configs:
        following = asyncio.ensure_future(anext(configs))
        first = await polled()
        assert await polled() > first
        path.write_text("tenants: [")
        invalid = await polled()
        assert await polled() == invalid
        path.unlink()
        assert await polled() == invalid
        path.write_text(FILE.format(zone="b"))
        assert (await following).brokers[0].zone == "b"
        following = asyncio.ensure_future(anext(configs))
        assert await polled() > invalid
        following.cancel()
        await asyncio.wait({following})


class FailingSource:
    """Fails once, then yields a configuration without tenants."""

    fresh_at = 0.0

    def __init__(self, config: GatewayConfig) -> None:
        self.unread: dict[str, float] = {}
        self.config = config
        self.calls = 0

    async def follow(self) -> AsyncGenerator[GatewayConfig]:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("a defect")
        yield self.config
        await asyncio.Event().wait()


async def test_a_source_that_fails_is_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "AGAIN", Backoff(0.01))
    gateway = quiet_gateway()
    source = FailingSource(replace(gateway.config, tenants=()))
    assert gateway.config.tenants == (TENANT,)

    gateway.follow(source)

    async def revoked() -> bool:
        return not gateway.config.tenants

    await eventually(revoked)
    await gateway.close()
    assert source.calls == 2
