"""Frames: every body gets a header of the right version."""

from __future__ import annotations

import pytest

from penstock.model.errors.wire import DefinitionUnknown, RequestMalformed, ResponseMalformed, VersionUnknown
from penstock.wire.definitions import load
from penstock.wire.frames import (
    Request,
    Response,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    request_header_version,
    response_header_version,
)


@pytest.mark.parametrize("version", [4, 11, 12, 18])
@pytest.mark.parametrize("client_id", ["till", "", None])
def test_a_request_round_trips_with_its_header(version: int, client_id: str | None) -> None:
    tags = {7: b"trace"} if version >= 12 else None
    request = Request("Fetch", version, 42, client_id, {"MaxWaitMs": 5}, tags)

    frame = encode_request(request)
    read = decode_request(frame[4:])

    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert (read.api, read.version, read.correlation_id, read.client_id) == ("Fetch", version, 42, client_id)
    assert read.body["MaxWaitMs"] == 5
    assert read.header_tags == tags


@pytest.mark.parametrize("version", [4, 18])
def test_a_response_round_trips_with_its_header(version: int) -> None:
    tags = {7: b"trace"} if version >= 12 else None
    frame = encode_response("Fetch", version, Response(42, {"ThrottleTimeMs": 5}, tags))

    read = decode_response("Fetch", version, frame[4:])

    assert (read.correlation_id, read.body["ThrottleTimeMs"], read.header_tags) == (42, 5, tags)


def test_only_the_response_to_api_versions_keeps_the_old_header() -> None:
    flexible = {
        api: version
        for api in load().apis().values()
        for version in load().request(api).valid_versions
        if load().request(api).is_flexible(version)
    }

    odd = {api for api, version in flexible.items() if response_header_version(api, version) != 1}

    assert odd == {"ApiVersions"}
    assert {request_header_version(api, version) for api, version in flexible.items()} == {2}


@pytest.mark.parametrize("cut", range(8))
def test_a_request_cut_within_its_header_is_refused(cut: int) -> None:
    frame = encode_request(Request("Fetch", 12, 1, "till", {}))[4:]

    with pytest.raises(RequestMalformed):
        decode_request(frame[:cut])


def test_bytes_after_the_last_field_are_refused() -> None:
    request = encode_request(Request("Fetch", 12, 1, "till", {}))[4:]
    response = encode_response("Fetch", 12, Response(1, {}))[4:]

    with pytest.raises(RequestMalformed, match="1 bytes follow"):
        decode_request(request + b"x")
    with pytest.raises(ResponseMalformed, match="1 bytes follow"):
        decode_response("Fetch", 12, response + b"x")


def test_an_unknown_api_or_version_is_refused() -> None:
    with pytest.raises(DefinitionUnknown):
        decode_request(b"\x7f\x00" + bytes(10))
    with pytest.raises(VersionUnknown):
        decode_request(b"\x00\x01\x00\x63" + bytes(10))
