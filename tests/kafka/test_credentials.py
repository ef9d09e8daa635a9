"""Every login over TLS with the user's own CA, against a real broker; each failure has its own error."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trustme

from penstock.kafka.admin import brokers, users
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.users import Credential
from penstock.kafka.client import Client
from penstock.kafka.connection import Connection
from penstock.kafka.security import Login, Mechanism, Security, tls_context
from penstock.model.errors.wire import (
    AuthorityUnknown,
    CertificateExpired,
    CertificateRefused,
    ClientRefused,
    HostNameMismatch,
    LoginRefused,
    TokenRejected,
    TokenUnavailable,
)
from tests.harness.secured_kafka import PLAIN_PASSWORD, PLAIN_USER, SecuredKafka
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.kafka.oauth import OAuthLogin


async def cluster_id(kafka: SecuredKafka, security: Security, bootstrap: str = "") -> str:
    async with Client(bootstrap or kafka.fleet.bootstrap, security) as client:
        return (await brokers.describe(client)).cluster_id


@pytest.mark.kafka
async def test_every_mechanism_logs_in_over_tls(secured_kafka: SecuredKafka) -> None:
    kafka = secured_kafka
    weaker = Login("penstock-256", "scram", Mechanism.SCRAM_SHA_256)
    async with Client(kafka.fleet.bootstrap, kafka.security(kafka.platform())) as admin:
        credential = Credential(weaker.user, weaker.password, weaker.mechanism, 4096)
        results_or_raise(await users.alter(admin, upsert=[credential]))

    logins: list[Login | OAuthLogin] = [kafka.platform(), weaker, kafka.tokens.login()]
    logins.append(Login(PLAIN_USER, PLAIN_PASSWORD, Mechanism.PLAIN))
    for login in logins:
        assert await cluster_id(kafka, kafka.security(login)) == kafka.fleet.kafka_id


@pytest.mark.kafka
async def test_a_client_certificate_logs_in_and_none_or_an_unknown_one_is_refused(
    secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    kafka = secured_kafka
    bootstrap = kafka.fleet.gateway_bootstrap
    mutual = Security(tls=tls_context(kafka.ca, certificate=kafka.client_certificate()))
    stranger = tmp_path / "stranger.pem"
    trustme.CA().issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(stranger)

    assert await cluster_id(kafka, mutual, bootstrap) == kafka.fleet.kafka_id
    for refused in (tls_context(kafka.ca), tls_context(kafka.ca, certificate=stranger)):
        with pytest.raises(CertificateRefused):
            await cluster_id(kafka, Security(tls=refused), bootstrap)


@pytest.mark.kafka
async def test_tokens_are_shared_replaced_before_they_expire_and_logins_follow(
    secured_kafka: SecuredKafka,
) -> None:
    kafka = secured_kafka
    login = kafka.tokens.login()
    before = kafka.tokens.issued
    async with Client(kafka.fleet.bootstrap, kafka.security(login)) as client:
        first = await client.connection()
        await client.connection(lane="other")
        assert kafka.tokens.issued == before + 1
        assert first.expires_at is not None

        async def logged_in_again() -> bool:
            await client.call("Metadata", {"Topics": []})
            return kafka.tokens.issued >= before + 3 and await client.connection() is not first

        assert await eventually(logged_in_again)


@pytest.mark.kafka
async def test_a_rejected_token_a_wrong_secret_and_a_dead_endpoint_are_different_errors(
    secured_kafka: SecuredKafka,
) -> None:
    kafka = secured_kafka
    login = kafka.tokens.login()

    kafka.tokens.claims = {"aud": "another"}
    with pytest.raises(TokenRejected, match="penstock-oauth"):
        await cluster_id(kafka, kafka.security(login))
    kafka.tokens.claims = {}
    assert await cluster_id(kafka, kafka.security(login)) == kafka.fleet.kafka_id

    with pytest.raises(ClientRefused, match="invalid_client") as refused:
        await cluster_id(kafka, kafka.security(kafka.tokens.login("wrong")))
    assert "wrong" not in str(refused.value.facts).replace("wrong secret", "")
    kafka.tokens.failing = True
    with pytest.raises(TokenUnavailable, match="503"):
        await Connection.open(*_address(kafka), kafka.security(kafka.tokens.login()))
    kafka.tokens.failing = False


@pytest.mark.kafka
async def test_a_wrong_password_and_another_name_or_ca_are_different_errors(
    secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    kafka = secured_kafka
    with pytest.raises(LoginRefused, match="penstock-plain"):
        await cluster_id(kafka, kafka.security(Login(PLAIN_USER, "wrong", Mechanism.PLAIN)))
    named = Security(kafka.platform(), tls_context(kafka.ca), server_name="kafka.example")
    with pytest.raises(HostNameMismatch, match=r"kafka\.example"):
        await cluster_id(kafka, named)
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    with pytest.raises(AuthorityUnknown, match=r"tls\.ca|not signed"):
        await cluster_id(kafka, Security(kafka.platform(), tls_context(tmp_path / "ca.pem")))


@asynccontextmanager
async def tls_server(certificate: trustme.LeafCert) -> AsyncIterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("days", [-1, 1])
async def test_a_certificate_that_is_not_valid_today_is_named(tmp_path: Path, days: int) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    now = dt.datetime.now(dt.UTC)
    begin, end = sorted((now + dt.timedelta(days=days), now + dt.timedelta(days=2 * days)))
    certificate = ca.issue_cert("127.0.0.1", not_before=begin, not_after=end)

    async with tls_server(certificate) as port:
        with pytest.raises(CertificateExpired):
            await Connection.open("127.0.0.1", port, Security(tls=tls_context(tmp_path / "ca.pem")))


def _address(kafka: SecuredKafka) -> tuple[str, int]:
    host, _, port = kafka.fleet.bootstrap.rpartition(":")
    return host, int(port)
