"""The PROXY protocol, versions 1 and 2: a client's address from its load balancer. Bytes in, value out.

Follows the specification of HAProxy, `proxy-protocol.txt`. Everything outside of it is an error, as the
specification requires: guessing would let a client choose its address.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from penstock.model.errors.gateway import ProxyHeaderInvalid

V1_START: Final = b"PROXY "
V1_BYTES_MAX: Final = 107  # with its line end
V2_START: Final = b"\r\n\r\n\0\r\nQUIT\n"
V2_FIXED_BYTES: Final = 16  # signature, version and command, family and protocol, length
HEADER_BYTES_MAX: Final = V2_FIXED_BYTES + 4096  # real ones, TLS details included, have some hundred

_V1: Final = re.compile(
    rb"PROXY (TCP4|TCP6) ([0-9a-fA-F:.]+) ([0-9a-fA-F:.]+) (0|[1-9]\d{0,4}) (0|[1-9]\d{0,4})"
)
_LOCAL, _PROXY = 0x20, 0x21
# Bytes of the source address, and of the whole address block, by family and protocol.
_ADDRESSES: Final = {0x11: (4, 12), 0x21: (16, 36)}
_WITHOUT_ADDRESS: Final = frozenset((0x00, 0x12, 0x22, 0x31, 0x32))  # unspecified, datagrams, UNIX sockets


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    size: int  # in bytes; the client's own begin after them
    address: str | None  # None: the connection's, as in a health check by the load balancer itself


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header at the start of `data`; None if it is incomplete, so that all of `data` belongs to it."""
    if data.startswith(V2_START):
        return _version_2(data)
    if data.startswith(V1_START):
        return _version_1(data)
    if V1_START.startswith(data) or V2_START.startswith(data):
        return None
    raise ProxyHeaderInvalid(reason="it does not start with a signature")


def _version_1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, V1_BYTES_MAX)
    if end < 0:
        if len(data) >= V1_BYTES_MAX:
            raise ProxyHeaderInvalid(reason=f"no line end within {V1_BYTES_MAX} bytes")
        return None
    line, size = data[:end], end + 2
    if line == b"PROXY UNKNOWN" or line.startswith(b"PROXY UNKNOWN "):
        return ProxyHeader(size, None)
    match = _V1.fullmatch(line)
    if match is None or max(int(match[4]), int(match[5])) > 0xFFFF:
        raise ProxyHeaderInvalid(reason="its line is malformed")
    kind = ipaddress.IPv4Address if match[1] == b"TCP4" else ipaddress.IPv6Address
    try:
        source, _ = kind(match[2].decode()), kind(match[3].decode())
    except ValueError as failure:
        raise ProxyHeaderInvalid(reason=str(failure)) from None
    return ProxyHeader(size, _text(source))


def _version_2(data: bytes) -> ProxyHeader | None:
    if len(data) < V2_FIXED_BYTES:
        return None
    command, family = data[12], data[13]
    length = int.from_bytes(data[14:16])
    size = V2_FIXED_BYTES + length
    if command not in (_LOCAL, _PROXY):
        raise ProxyHeaderInvalid(reason=f"unknown version or command 0x{command:02x}")
    if size > HEADER_BYTES_MAX:
        raise ProxyHeaderInvalid(reason=f"{size} bytes, at most {HEADER_BYTES_MAX}")
    if command == _PROXY and family not in _ADDRESSES and family not in _WITHOUT_ADDRESS:
        raise ProxyHeaderInvalid(reason=f"unknown family or protocol 0x{family:02x}")
    source_bytes, block_bytes = _ADDRESSES.get(family, (0, 0)) if command == _PROXY else (0, 0)
    if length < block_bytes:
        raise ProxyHeaderInvalid(reason=f"{length} bytes of addresses, expected {block_bytes}")
    if len(data) < size:
        return None
    if not source_bytes:
        return ProxyHeader(size, None)
    source = ipaddress.ip_address(data[V2_FIXED_BYTES : V2_FIXED_BYTES + source_bytes])
    return ProxyHeader(size, _text(source))


def _text(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """An address as it is counted: one of IPv4 written as IPv6 is the same client."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
