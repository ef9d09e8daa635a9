"""Rotating the certificates of running nodes."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from penstock.fleet.credentials.certificate_rotation import rotate_certificates
from penstock.fleet.spec import Listener
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.fleet.node import Node
    from tests.harness.fleet import Fleet


@pytest.mark.kafka
def test_every_listener_uses_the_new_certificate_without_a_restart(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(brokers=1, zones=["a"], tls=True)
    before = {node.name: node.running() for node in fleet.nodes}

    for _ in range(2):  # the second rotation does not change the configuration, and must work as well
        earlier = {serial for node in fleet.nodes for serial in _serials(node)}
        assert asyncio.run(rotate_certificates(fleet.local)) == [node.name for node in fleet.nodes]
        wait_for(partial(_all_new, fleet, earlier), what="every listener to use a new certificate")

    assert {node.name: node.running() for node in fleet.nodes} == before
    fleet.wait_ready()


def _all_new(fleet: Fleet, earlier: set[int]) -> bool:
    return not any(_serials(node) & earlier for node in fleet.nodes)


def _serials(node: Node) -> set[int]:
    """Serial numbers of the certificates of this node's listeners."""
    ports = [port for listener, port in node.spec.ports.items() if listener is not Listener.METRICS]
    pems = [ssl.get_server_certificate((node.spec.host, port)) for port in ports]
    return {x509.load_pem_x509_certificate(pem.encode()).serial_number for pem in pems}
