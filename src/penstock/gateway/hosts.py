"""Names that clients connect to, where the host name says whose cluster and which broker is meant.

One label before the domain, so that one wildcard certificate serves: `lkc-7hq2mz.example.com` to
begin with, `b2-lkc-7hq2mz.example.com` for broker 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_LABEL: Final = re.compile(r"(?:b(?P<broker>\d{1,9})-)?(?P<tenant>lkc-[0-9a-z]{6})")


@dataclass(frozen=True, slots=True)
class Host:
    tenant: str
    broker: int | None = None  # None: any, to begin with


def parse_host(name: str | None, domain: str) -> Host | None:
    """What a host name asks for; None if it is none of ours."""
    if name is None or not name.lower().endswith("." + domain):
        return None
    found = _LABEL.fullmatch(name.lower()[: -len(domain) - 1])
    if found is None:
        return None
    broker = found["broker"]
    return Host(found["tenant"], None if broker is None else int(broker))


def host_name(host: Host, domain: str) -> str:
    broker = "" if host.broker is None else f"b{host.broker}-"
    return f"{broker}{host.tenant}.{domain}"
