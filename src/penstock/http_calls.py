"""HTTP calls that carry a secret: never redirected, and never through a proxy to this host.

`urllib` would send the token of a call to wherever a redirect leads, even without TLS, and what is meant for
a process of this host to the proxy that the environment names.
"""

from __future__ import annotations

import ipaddress
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPResponse
    from urllib.request import Request


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """A redirect is an `HTTPError`, as any response that is no success."""


def open_url(request: Request, *, timeout: float, tls: ssl.SSLContext | None = None) -> HTTPResponse:
    """As `urllib.request.urlopen`. Without `tls`, servers are verified by the system's CAs."""
    handlers: list[urllib.request.BaseHandler] = [
        _NoRedirects(),
        urllib.request.HTTPSHandler(context=tls),
    ]
    if is_this_host(urlsplit(request.full_url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    response: HTTPResponse = urllib.request.build_opener(*handlers).open(request, timeout=timeout)
    return response


def leaves_tls(before: str, after: str) -> bool:
    """Whether what was sent to one URL with TLS would be sent to another without."""
    return before.startswith("https://") and not after.startswith("https://")


def is_this_host(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
