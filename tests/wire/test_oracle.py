"""Our codec and kio's agree on every message and version that kio has."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.wire.codec import decode, encode
from penstock.wire.definitions import load
from tests.wire.peer import Narrower, as_entity, kio_class, kio_decode, kio_encode, messages
from tests.wire.values import message_values

MESSAGES = messages()


@pytest.mark.parametrize("name", MESSAGES)
def test_bytes_and_values_agree_with_kio(name: str) -> None:
    fields = load().message(name).fields
    strategies = {
        version: message_values(name, version, Narrower(name, version)) for version in MESSAGES[name]
    }

    @settings(max_examples=3, database=None, phases=[Phase.generate, Phase.shrink])
    @given(st.fixed_dictionaries(strategies))
    def agree(values_by_version: dict[int, dict[str, object]]) -> None:
        for version, values in values_by_version.items():
            cls = kio_class(name, version)
            entity = as_entity(fields, cls, version, values)

            data = encode(name, version, values)

            assert data == kio_encode(entity)
            assert decode(name, version, data) == values
            assert kio_decode(cls, data) == (entity, len(data))

    agree()


def test_the_oracle_knows_nearly_all_of_kafkas_apis() -> None:
    apis = {f"{api}{kind}" for api in load().apis().values() for kind in ("Request", "Response")}

    missing = {name for name in apis if name not in MESSAGES}
    versions = {
        (name, version)
        for name in apis - missing
        for version in load().message(name).valid_versions
        if version not in MESSAGES[name]
    }

    assert missing == set()
    assert len(versions) < 20, sorted(versions)
