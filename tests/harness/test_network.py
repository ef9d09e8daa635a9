"""A link forwards everything until it is cut, refused or delayed, and again when it is healed."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.harness.fleet import wait_for
from tests.harness.network import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONG = 30.0  # seconds, the limit for something that must happen
SHORT = 0.1  # seconds to check that something does not happen


class Echo:
    """A server that echoes its input and records how each connection ended."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.ended: list[str] = []
        self.open: list[socket.socket] = []
        self.thread = threading.Thread(target=self._accept)
        self.served: list[threading.Thread] = []
        self.thread.start()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join(LONG)
        self.listener.close()
        for one in self.served:
            one.join(LONG)
            assert not one.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.served.append(threading.Thread(target=self._serve, args=(connection,)))
            self.served[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
                self.ended.append("closed")
            except ConnectionResetError:
                self.ended.append("reset")


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def link(echo: Echo, make_link: Callable[[str, int], Link]) -> Link:
    return make_link("127.0.0.1", echo.port)


@pytest.fixture
def client(link: Link) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", link.port), LONG) as connection:
        assert exchanged(connection, b"hello")
        yield connection


def exchanged(connection: socket.socket, data: bytes) -> bool:
    connection.sendall(data)
    return received(connection, len(data)) == data


def received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data


def silent(connection: socket.socket) -> bool:
    connection.settimeout(SHORT)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(LONG)
    return False


def test_a_healthy_link_forwards_everything_in_order(link: Link, client: socket.socket) -> None:
    data = bytes(range(256)) * 4096
    threading.Thread(target=client.sendall, args=(data,)).start()

    assert received(client, len(data)) == data
    assert link.bytes_there == link.bytes_back == len(data) + len(b"hello")


def test_a_close_is_forwarded(echo: Echo, client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)

    assert client.recv(1) == b""
    wait_for(lambda: echo.ended == ["closed"], what="the server to see the close")


def test_a_cut_link_forwards_nothing_and_closes_nothing(
    echo: Echo, link: Link, client: socket.socket
) -> None:
    link.cut()

    client.sendall(b"lost?")

    assert silent(client)
    assert link.bytes_there == len(b"hello")
    assert echo.ended == []
    assert link.connections == 1


def test_bytes_sent_during_a_cut_arrive_when_it_is_healed(link: Link, client: socket.socket) -> None:
    link.cut()
    client.sendall(b"late")
    assert silent(client)

    link.heal()

    assert received(client, 4) == b"late"


def test_a_link_cut_in_one_direction_forwards_the_other(link: Link, client: socket.socket) -> None:
    link.cut(there=False, back=True)

    client.sendall(b"there")

    wait_for(lambda: link.bytes_there == len(b"hello") + len(b"there"), what="the bytes to arrive")
    assert silent(client)


def test_a_connection_closed_during_a_cut_is_not_noticed_until_it_is_healed(
    echo: Echo, link: Link, client: socket.socket
) -> None:
    link.cut()
    client.close()
    assert echo.ended == []

    link.heal()

    wait_for(lambda: len(echo.ended) == 1, what="the server to see the close")


def test_a_connection_opened_during_a_cut_gets_no_response_until_it_is_healed(link: Link) -> None:
    link.cut()

    with socket.create_connection(("127.0.0.1", link.port), LONG) as late:
        late.sendall(b"anyone?")
        assert silent(late)
        link.heal()
        assert received(late, 7) == b"anyone?"


def test_a_refusing_link_resets_connections_and_accepts_none(
    echo: Echo, link: Link, client: socket.socket
) -> None:
    link.refuse()

    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", link.port), LONG)
    wait_for(lambda: echo.ended == ["reset"], what="the server to see the reset")


def test_a_refusing_link_listens_on_the_same_port_when_healed(link: Link) -> None:
    link.refuse()

    link.heal()

    with socket.create_connection(("127.0.0.1", link.port), LONG) as again:
        assert exchanged(again, b"back")


def test_a_delayed_link_delivers_everything_later(link: Link, client: socket.socket) -> None:
    link.delay(ms=30)

    begin = time.monotonic()
    assert exchanged(client, b"slow")

    assert time.monotonic() - begin >= 0.06


def test_a_link_without_a_target_resets_connections(link: Link) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # and does not listen
        link.target = deaf.getsockname()

        # The reset may come while connecting or after.
        with (
            pytest.raises(ConnectionResetError),
            socket.create_connection(("127.0.0.1", link.port), LONG) as lost,
        ):
            lost.recv(1)


def test_a_closed_link_leaves_no_thread_and_no_connection(echo: Echo) -> None:
    link = Link("127.0.0.1", echo.port)
    with socket.create_connection(("127.0.0.1", link.port), LONG) as client:
        assert exchanged(client, b"hello")

        link.close()

        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert f"link-{link.port}" not in {thread.name for thread in threading.enumerate()}
