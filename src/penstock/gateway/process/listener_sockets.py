"""Sockets bound to a gateway's ports, which several processes may share."""

from __future__ import annotations

import socket

from penstock.model.errors.gateway import ListenFailed


def bind_port(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet.

    SO_REUSEPORT lets workers share a port, and a successor listen before its predecessor has drained.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, port))
    except OSError as failure:
        bound.close()
        raise ListenFailed(host=host, port=port, reason=failure.strerror or failure) from failure
    return bound
