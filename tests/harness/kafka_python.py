"""Make kafka-python close its sockets.

A client that is close_all while it connects leaves the socket open. Python then warns about it during
garbage collection, in some later test.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator


@contextmanager
def closing_its_sockets() -> Iterator[None]:
    """Patch kafka-python, if it is imported."""
    inet, selector = sys.modules.get("kafka.net.inet"), sys.modules.get("kafka.net.selector")
    if inet is None or selector is None:
        yield
        return
    connect, close = inet.KafkaNetSocket.sock_connect, selector.NetworkSelector.close
    sockets_by_selector: WeakKeyDictionary[Any, WeakSet[socket.socket]] = WeakKeyDictionary()

    async def connect_and_record(self: Any, net: Any, sock: socket.socket, *words: Any, **more: Any) -> Any:
        sockets_by_selector.setdefault(net, WeakSet()).add(sock)
        return await connect(self, net, sock, *words, **more)

    def close_all(self: Any) -> None:
        sockets = list(sockets_by_selector.pop(self, ()))
        close(self)
        for each in sockets:
            each.close()

    with (
        patch.object(inet.KafkaNetSocket, "sock_connect", connect_and_record),
        patch.object(selector.NetworkSelector, "close", close_all),
    ):
        yield
