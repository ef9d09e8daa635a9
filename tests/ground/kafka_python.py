"""kafka-python, made to close its sockets.

A client that is closed while it connects drops that socket as it is. Python says so when it gets round to
it, in whichever test runs by then.
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
    """Where it is used: whoever needs it has imported it by now."""
    inet, selector = sys.modules.get("kafka.net.inet"), sys.modules.get("kafka.net.selector")
    if inet is None or selector is None:
        yield
        return
    connect, close = inet.KafkaNetSocket.sock_connect, selector.NetworkSelector.close
    made: WeakKeyDictionary[Any, WeakSet[socket.socket]] = WeakKeyDictionary()

    async def remembered(self: Any, net: Any, sock: socket.socket, *words: Any, **more: Any) -> Any:
        made.setdefault(net, WeakSet()).add(sock)
        return await connect(self, net, sock, *words, **more)

    def closed(self: Any) -> None:
        sockets = list(made.pop(self, ()))
        close(self)
        for each in sockets:
            each.close()

    with (
        patch.object(inet.KafkaNetSocket, "sock_connect", remembered),
        patch.object(selector.NetworkSelector, "close", closed),
    ):
        yield
