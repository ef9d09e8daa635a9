"""What a client of kafka-python leaves behind when it is closed while it connects."""

from __future__ import annotations

import socket

from kafka.net.inet import KafkaNetSocket
from kafka.net.selector import NetworkSelector


class Remembering(KafkaNetSocket):
    SCHEMES = ()
    made: socket.socket

    def socket(self, *words: int) -> socket.socket:
        self.made = super().socket(*words)
        return self.made


def test_a_client_closed_while_it_connects_leaves_no_socket_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        net, sockets = NetworkSelector(), Remembering()
        (address,) = sockets.dns_lookup(*server.getsockname())
        net.call_soon(sockets.connect(net, address))
        net.poll(timeout_ms=0)
        before = sockets.made.fileno()

        net.close()

    assert before >= 0
    assert sockets.made.fileno() == -1
