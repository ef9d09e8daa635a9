"""TLS on both sides: KEDA towards the scaler, the scaler towards Kafka."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import grpc
import pytest
import trustme

from penstock.kafka import commits, topics
from penstock.kafka.client import Client
from penstock.kafka.commits import Committed
from penstock.kafka.outcomes import all_done
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.security import Mechanism
from penstock.model.errors.scale import ScalerSettingsInvalid
from penstock.model.errors.wire import BrokerUntrusted
from penstock.scale.journal import Alone
from penstock.scale.proto.externalscaler_pb2_grpc import ExternalScalerStub
from penstock.scale.server import serving
from penstock.scale.settings import ClusterSettings, ScalerSettings, ServerTls
from tests.ground.fleet import TINY, Fleet
from tests.scale.pretend import INTERVAL, PretendCluster, reference, served, value_when

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.scale.pretend import Running


class Papers:
    """An authority, and a server's certificate and key of it, in files."""

    def __init__(self, place: Path) -> None:
        self.authority = trustme.CA()
        self.certificate, self.key, self.ca = place / "server.pem", place / "server.key", place / "ca.pem"
        server = self.authority.issue_cert("localhost")
        self.authority.cert_pem.write_to_path(self.ca)
        server.cert_chain_pems[0].write_to_path(self.certificate)
        server.private_key_pem.write_to_path(self.key)

    def tls(self, *, mutual: bool = False) -> ServerTls:
        return ServerTls(self.certificate, self.key, self.ca if mutual else None)


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path)


def scaler(tls: ServerTls) -> AbstractAsyncContextManager[Running]:
    return served(
        {"default": PretendCluster()}, Alone(), {"default": INTERVAL}, listen="localhost:0", tls=tls
    )


def channel_to(port: int, trusted: trustme.CA, *, shown: trustme.LeafCert | None = None) -> grpc.aio.Channel:
    key = shown.private_key_pem.bytes() if shown else None
    chain = shown.cert_chain_pems[0].bytes() if shown else None
    credentials = grpc.ssl_channel_credentials(trusted.cert_pem.bytes(), key, chain)
    return grpc.aio.secure_channel(f"localhost:{port}", credentials)


async def refused(channel: grpc.aio.Channel) -> grpc.StatusCode:
    async with channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ExternalScalerStub(channel).GetMetricSpec(reference())
    return caught.value.code()


async def test_who_trusts_the_authority_is_answered(papers: Papers) -> None:
    async with scaler(papers.tls()) as up, channel_to(up.port, papers.authority) as channel:
        value = await value_when(ExternalScalerStub(channel), reference(), lambda value: value > 0)

    assert value == 2.0


async def test_who_trusts_another_authority_or_speaks_in_the_clear_is_not(papers: Papers) -> None:
    async with scaler(papers.tls()) as up:
        wrong = await refused(channel_to(up.port, trustme.CA()))
        clear = await refused(grpc.aio.insecure_channel(f"localhost:{up.port}"))

    assert (wrong, clear) == (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE)


async def test_with_client_certificates_only_those_of_the_authority_are_let_in(papers: Papers) -> None:
    known, stranger = papers.authority.issue_cert("keda"), trustme.CA().issue_cert("keda")
    async with scaler(papers.tls(mutual=True)) as up:
        async with channel_to(up.port, papers.authority, shown=known) as channel:
            answer = await ExternalScalerStub(channel).GetMetricSpec(reference())
        without = await refused(channel_to(up.port, papers.authority))
        foreign = await refused(channel_to(up.port, papers.authority, shown=stranger))

    assert len(answer.metricSpecs) == 1
    assert (without, foreign) == (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE)


@pytest.mark.parametrize("harm", ["no certificate", "no key", "no authority", "another key", "no PEM"])
async def test_files_that_do_not_serve_are_an_error_that_names_them(papers: Papers, harm: str) -> None:
    match harm:
        case "no certificate":
            papers.certificate.unlink()
        case "no key":
            papers.key.unlink()
        case "no authority":
            papers.ca.unlink()
        case "another key":
            trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(papers.key)
        case _:
            papers.certificate.write_text("hello")

    with pytest.raises(ScalerSettingsInvalid) as caught:
        async with scaler(papers.tls(mutual=True)):
            raise AssertionError("it serves")

    assert str(papers.certificate) in str(caught.value)
    assert "PEN-6512" in str(caught.value)


async def test_an_address_that_is_taken_is_an_error_that_names_it() -> None:
    sources, intervals = {"default": PretendCluster()}, {"default": INTERVAL}
    with pytest.raises(ScalerSettingsInvalid, match=r"`listen` is '192\.0\.2\.1:80'"):
        async with served(sources, Alone(), intervals, listen="192.0.2.1:80"):
            raise AssertionError("it serves")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A broker that speaks SASL over TLS alone."""
    fleet = Fleet.start(tmp_path_factory.mktemp("secured"), {**TINY, "tls": True})
    yield fleet
    fleet.stop()


def cluster_of(fleet: Fleet, authority: Path, place: Path) -> ClusterSettings:
    config = fleet.client_config()
    (place / "password").write_text(config["sasl.password"])
    return ClusterSettings(
        config["bootstrap.servers"], 1.0, config["sasl.username"], place / "password",
        Mechanism(config["sasl.mechanism"]), authority,
    )  # fmt: skip


@pytest.mark.kafka
async def test_the_collector_samples_and_journals_over_sasl_ssl(secured: Fleet, tmp_path: Path) -> None:
    async with Client(secured.bootstrap, secured.security()) as client:
        all_done(await topics.create(client, [topics.NewTopic("orders", 2, 1)]))
        all_done(await commits.commit(client, "billing", {TopicPartition("orders", 0): Committed(0)}))
    cluster = cluster_of(secured, secured.local.access.ca, tmp_path)
    settings = ScalerSettings({"default": cluster}, "127.0.0.1:0", samples_cluster="default")

    async with (
        serving(settings) as up,
        grpc.aio.insecure_channel(f"127.0.0.1:{up.port}") as channel,
    ):
        about = reference(minReplicas="0")
        value = await value_when(ExternalScalerStub(channel), about, lambda value: value > 0)

    assert cluster.security().protocol == "SASL_SSL"
    assert value == 1.0


@pytest.mark.kafka
async def test_a_broker_of_another_authority_is_not_trusted(secured: Fleet, papers: Papers) -> None:
    cluster = cluster_of(secured, papers.ca, papers.ca.parent)
    settings = ScalerSettings({"default": cluster}, "127.0.0.1:0", samples_cluster="default")

    with pytest.raises(BrokerUntrusted):
        async with serving(settings):
            raise AssertionError("it serves")


async def test_a_secret_that_is_gone_is_an_error_that_names_it(tmp_path: Path) -> None:
    cluster = ClusterSettings("localhost:1", user="scaler", password_file=tmp_path / "password")

    with pytest.raises(ScalerSettingsInvalid, match=os.fspath(tmp_path / "password")):
        async with serving(ScalerSettings({"default": cluster}, "127.0.0.1:0")):
            raise AssertionError("it serves")
