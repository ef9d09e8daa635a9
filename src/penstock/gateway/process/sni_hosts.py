"""Host names for SNI routing, which select the tenant and the broker.

One label before the domain, so that one wildcard certificate serves: `lkc-7hq2mz.example.com` for bootstrap,
`b2-lkc-7hq2mz.example.com` for broker 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_LABEL: Final = re.compile(r"(?:b(?P<broker>\d{1,9})-)?(?P<tenant>lkc-[0-9a-z]{6})")


@dataclass(frozen=True, slots=True)
class Host:
    tenant: str
    broker: int | None = None  # None: bootstrap, any broker


def parse_host(name: str | None, domain: str) -> Host | None:
    """The tenant and broker of a host name; None if it has another form."""
    if name is None or not name.lower().endswith("." + domain):
        return None
    match = _LABEL.fullmatch(name.lower()[: -len(domain) - 1])
    if match is None:
        return None
    broker = match["broker"]
    return Host(match["tenant"], None if broker is None else int(broker))


def host_name(host: Host, domain: str) -> str:
    broker = "" if host.broker is None else f"b{host.broker}-"
    return f"{broker}{host.tenant}.{domain}"
