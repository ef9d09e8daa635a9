"""TLS between KEDA and the scaler, and between the scaler and Kafka."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import grpc
import pytest
import trustme

from penstock.kafka.admin import group_offsets, topics
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.kafka.security import Mechanism
from penstock.model.errors.scale import ScalerSettingsInvalid
from penstock.model.errors.wire import BrokerUntrusted
from penstock.scale.sampler.samples_topic import InMemoryJournal
from penstock.scale.server import serving
from penstock.scale.settings import ClusterSettings, ScalerSettings, ServerTls
from tests.harness.fleet import TINY, Fleet
from tests.scale.fakes import INTERVAL, FakeCluster, reference, served, stub_for, value_when

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.scale.fakes import Running


class TlsFiles:
    """Files with a certificate authority and a server's certificate and key."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.certificate, self.key, self.ca = folder / "server.pem", folder / "server.key", folder / "ca.pem"
        server = self.authority.issue_cert("localhost")
        self.authority.cert_pem.write_to_path(self.ca)
        server.cert_chain_pems[0].write_to_path(self.certificate)
        server.private_key_pem.write_to_path(self.key)

    def tls(self, *, mutual: bool = False) -> ServerTls:
        return ServerTls(self.certificate, self.key, self.ca if mutual else None)


@pytest.fixture
def tls_files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


def scaler(tls: ServerTls) -> AbstractAsyncContextManager[Running]:
    return served(
        {"default": FakeCluster()}, InMemoryJournal(), {"default": INTERVAL}, listen="localhost:0", tls=tls
    )


def channel_to(
    port: int, trusted: trustme.CA, *, presented: trustme.LeafCert | None = None
) -> grpc.aio.Channel:
    key = presented.private_key_pem.bytes() if presented else None
    chain = presented.cert_chain_pems[0].bytes() if presented else None
    credentials = grpc.ssl_channel_credentials(trusted.cert_pem.bytes(), key, chain)
    return grpc.aio.secure_channel(f"localhost:{port}", credentials)


async def refused(channel: grpc.aio.Channel) -> grpc.StatusCode:
    async with channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub_for(channel).GetMetricSpec(reference())
    return caught.value.code()


async def test_a_client_that_trusts_the_authority_is_served(tls_files: TlsFiles) -> None:
    async with scaler(tls_files.tls()) as up, channel_to(up.port, tls_files.authority) as channel:
        value = await value_when(stub_for(channel), reference(), lambda value: value > 0)

    assert value == 2.0


async def test_a_client_that_trusts_another_authority_or_uses_plaintext_is_refused(
    tls_files: TlsFiles,
) -> None:
    async with scaler(tls_files.tls()) as up:
        wrong = await refused(channel_to(up.port, trustme.CA()))
        plaintext = await refused(grpc.aio.insecure_channel(f"localhost:{up.port}"))

    assert (wrong, plaintext) == (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE)


async def test_with_client_authentication_only_certificates_of_the_authority_are_accepted(
    tls_files: TlsFiles,
) -> None:
    known, stranger = tls_files.authority.issue_cert("keda"), trustme.CA().issue_cert("keda")
    async with scaler(tls_files.tls(mutual=True)) as up:
        async with channel_to(up.port, tls_files.authority, presented=known) as channel:
            response = await stub_for(channel).GetMetricSpec(reference())
        without = await refused(channel_to(up.port, tls_files.authority))
        other_authority = await refused(channel_to(up.port, tls_files.authority, presented=stranger))

    assert len(response.metricSpecs) == 1
    assert (without, other_authority) == (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE)


@pytest.mark.parametrize("damage", ["no certificate", "no key", "no authority", "another key", "no PEM"])
async def test_unusable_tls_files_are_named_in_the_error(tls_files: TlsFiles, damage: str) -> None:
    match damage:
        case "no certificate":
            tls_files.certificate.unlink()
        case "no key":
            tls_files.key.unlink()
        case "no authority":
            tls_files.ca.unlink()
        case "another key":
            trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(tls_files.key)
        case _:
            tls_files.certificate.write_text("hello")

    with pytest.raises(ScalerSettingsInvalid) as caught:
        async with scaler(tls_files.tls(mutual=True)):
            raise AssertionError("it serves")

    assert str(tls_files.certificate) in str(caught.value)
    assert "PEN-6512" in str(caught.value)


async def test_an_address_that_cannot_be_bound_is_named_in_the_error() -> None:
    sources, intervals = {"default": FakeCluster()}, {"default": INTERVAL}
    with pytest.raises(ScalerSettingsInvalid, match=r"`listen` is '192\.0\.2\.1:80'"):
        async with served(sources, InMemoryJournal(), intervals, listen="192.0.2.1:80"):
            raise AssertionError("it serves")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A broker that accepts only SASL over TLS."""
    fleet = Fleet.start(tmp_path_factory.mktemp("secured"), {**TINY, "tls": True})
    yield fleet
    fleet.stop()


def cluster_of(fleet: Fleet, authority: Path, folder: Path) -> ClusterSettings:
    config = fleet.client_config()
    (folder / "password").write_text(config["sasl.password"])
    return ClusterSettings(
        config["bootstrap.servers"], 1.0, config["sasl.username"], folder / "password",
        Mechanism(config["sasl.mechanism"]), authority,
    )  # fmt: skip


@pytest.mark.kafka
async def test_the_sampler_samples_and_publishes_over_sasl_ssl(secured: Fleet, tmp_path: Path) -> None:
    async with Client(secured.bootstrap, secured.security()) as client:
        results_or_raise(await topics.create(client, [topics.NewTopic("orders", 2, 1)]))
        results_or_raise(
            await group_offsets.commit(client, "billing", {TopicPartition("orders", 0): CommittedOffset(0)})
        )
    cluster = cluster_of(secured, secured.local.access.ca, tmp_path)
    settings = ScalerSettings({"default": cluster}, "127.0.0.1:0", samples_cluster="default")

    async with (
        serving(settings) as up,
        grpc.aio.insecure_channel(f"127.0.0.1:{up.port}") as channel,
    ):
        about = reference(minReplicas="0")
        value = await value_when(stub_for(channel), about, lambda value: value > 0)

    assert cluster.security().protocol == "SASL_SSL"
    assert value == 1.0


@pytest.mark.kafka
async def test_a_broker_of_another_authority_is_not_trusted(secured: Fleet, tls_files: TlsFiles) -> None:
    cluster = cluster_of(secured, tls_files.ca, tls_files.ca.parent)
    settings = ScalerSettings({"default": cluster}, "127.0.0.1:0", samples_cluster="default")

    with pytest.raises(BrokerUntrusted):
        async with serving(settings):
            raise AssertionError("it serves")


async def test_a_missing_secret_file_is_named_in_the_error(tmp_path: Path) -> None:
    cluster = ClusterSettings("localhost:1", user="scaler", password_file=tmp_path / "password")

    with pytest.raises(ScalerSettingsInvalid, match=os.fspath(tmp_path / "password")):
        async with serving(ScalerSettings({"default": cluster}, "127.0.0.1:0")):
            raise AssertionError("it serves")
