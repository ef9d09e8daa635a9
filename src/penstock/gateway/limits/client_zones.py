"""The zone of a client: what its fetches name (`client.rack`), else what its network is mapped to."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.gateway.config import Network

UNKNOWN: Final = ""


class ClientZones:
    """`networks` maps networks to zones; the most specific one counts."""

    def __init__(self, networks: Iterable[tuple[Network, str]] = ()) -> None:
        self._networks = sorted(networks, key=lambda each: each[0].prefixlen, reverse=True)

    def of_address(self, address: str) -> str:
        if not self._networks:
            return UNKNOWN
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return UNKNOWN
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        return next((zone for network, zone in self._networks if ip in network), UNKNOWN)
