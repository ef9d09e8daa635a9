"""A kafka-python client that is closed while it connects leaves no socket open."""

from __future__ import annotations

import socket

from kafka.net.inet import KafkaNetSocket
from kafka.net.selector import NetworkSelector


class Recording(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    SCHEMES = ()
    created: socket.socket

    def socket(self, *words: int) -> socket.socket:
        self.created = super().socket(*words)
        return self.created


def test_a_client_closed_while_it_connects_leaves_no_socket_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        net, sockets = NetworkSelector(), Recording()
        (address,) = sockets.dns_lookup(*server.getsockname())
        net.call_soon(sockets.connect(net, address))
        net.poll(timeout_ms=0)
        before = sockets.created.fileno()

        net.close()

    assert before >= 0
    assert sockets.created.fileno() == -1
