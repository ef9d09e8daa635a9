"""The PROXY protocol's parser: vectors of its specification, and whatever else a socket may bring."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.connection.proxy_header import (
    HEADER_BYTES_MAX,
    V2_START,
    ProxyHeader,
    parse_proxy_header,
)
from penstock.model.errors.gateway import ProxyHeaderInvalid

IPV4 = bytes([192, 0, 2, 1, 198, 51, 100, 2]) + b"\xdc\x04\x01\xbb"
IPV6 = socket.inet_pton(socket.AF_INET6, "2001:db8::1") + bytes(16) + b"\xdc\x04\x01\xbb"
MAPPED = socket.inet_pton(socket.AF_INET6, "::ffff:192.0.2.1") + bytes(16) + b"\xdc\x04\x01\xbb"
LONGEST = ":".join(["ffff"] * 8)
TLV = b"\x04\x00\x05hello"


def v2(command: int, family: int, rest: bytes = b"", length: int | None = None) -> bytes:
    size = len(rest) if length is None else length
    return V2_START + bytes([command, family]) + size.to_bytes(2) + rest


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n", "192.0.2.1"),
        (b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", "255.255.255.255"),
        (b"PROXY TCP6 2001:db8::1 2001:db8::2 0 443\r\n", "2001:db8::1"),
        (
            f"PROXY TCP6 {LONGEST} {LONGEST} 65535 65535\r\n".encode(),
            LONGEST,
        ),
        (b"PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n", "192.0.2.1"),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None),
        (v2(0x21, 0x11, IPV4), "192.0.2.1"),
        (v2(0x21, 0x11, IPV4 + TLV), "192.0.2.1"),
        (v2(0x21, 0x21, IPV6), "2001:db8::1"),
        (v2(0x21, 0x21, MAPPED + TLV), "192.0.2.1"),
        (v2(0x20, 0x00), None),
        (v2(0x20, 0x11, IPV4), None),  # LOCAL: the balancer's own connection
        (v2(0x21, 0x00, TLV), None),
        (v2(0x21, 0x12, IPV4), None),
        (v2(0x21, 0x31, bytes(216)), None),
    ],
)
@pytest.mark.parametrize("after", [b"", b"\x16\x03\x01", b"\r\n", b"PROXY "])
def test_a_header_yields_its_source_address(header: bytes, address: str | None, after: bytes) -> None:
    assert parse_proxy_header(header + after) == ProxyHeader(len(header), address)
    for end in range(len(header)):
        assert parse_proxy_header(header[:end]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\x11\0\x12",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00",
        b"proxy TCP4 192.0.2.1 198.51.100.2 1 2\r\n",
        b"PROXY  TCP4 192.0.2.1 198.51.100.2 1 2\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 1\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 1 2 \r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 1 65536\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 01 2\r\n",
        b"PROXY TCP4 192.0.2.01 198.51.100.2 1 2\r\n",
        b"PROXY TCP4 192.0.2.256 198.51.100.2 1 2\r\n",
        b"PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n",
        b"PROXY TCP6 192.0.2.1 198.51.100.2 1 2\r\n",
        b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n",
        b"PROXY UDP4 192.0.2.1 198.51.100.2 1 2\r\n",
        b"PROXY UNKNOWNS\r\n",
        b"PROXY UNKNOWN" + b"x" * 100,
        b"PROXY TCP4 192.0.2.1 198.51.100.2 1 2\n" + b" " * 90,
        v2(0x11, 0x11, IPV4),
        v2(0x22, 0x11, IPV4),
        v2(0x21, 0x41, IPV4),
        v2(0x21, 0x13, IPV4),
        v2(0x21, 0x11, IPV4[:-1]),
        v2(0x21, 0x21, IPV4),
        v2(0x21, 0x11, b"", HEADER_BYTES_MAX),
        v2(0x20, 0x00, b"", 0xFFFF),
    ],
)
def test_everything_else_is_invalid(data: bytes) -> None:
    with pytest.raises(ProxyHeaderInvalid):
        parse_proxy_header(data)


@given(st.ip_addresses(), st.binary(max_size=300), st.booleans(), st.binary(max_size=30))
def test_what_a_load_balancer_writes_is_read_back(
    source: ipaddress.IPv4Address | ipaddress.IPv6Address, extra: bytes, text: bool, after: bytes
) -> None:
    if text:
        header = f"PROXY TCP{source.version} {source} {source} 1 2\r\n".encode()
    else:
        header = v2(0x21, 0x11 if source.version == 4 else 0x21, source.packed * 2 + bytes(4) + extra)

    parsed = parse_proxy_header(header + after)

    mapped = source.ipv4_mapped if isinstance(source, ipaddress.IPv6Address) else None
    assert parsed == ProxyHeader(len(header), str(mapped or source))


@given(
    st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", V2_START, V2_START + b"\x21"]), st.binary(max_size=400)
)
def test_any_bytes_are_a_header_incomplete_or_invalid(start: bytes, rest: bytes) -> None:
    data = start + rest
    try:
        header = parse_proxy_header(data)
    except ProxyHeaderInvalid:
        return
    if header is None:
        assert len(data) < HEADER_BYTES_MAX
    else:
        assert header.size <= len(data)
        assert header == parse_proxy_header(data[: header.size])
