"""Hardware profiles: quantities with units, measured values, and each kind of bad input."""

from __future__ import annotations

from copy import deepcopy
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

from penstock.balance.profiles import PROFILE_KEYS, HardwareProfile, profile_document, profile_of
from penstock.model.errors.balance import DateInFuture, UnitsMixed
from penstock.model.errors.settings import SettingInvalid, SettingUnknown
from penstock.model.settings_reader import Section

if TYPE_CHECKING:
    from penstock.model.errors import PenstockError

TODAY = date(2026, 11, 18)
DOCUMENT: dict[str, Any] = {
    "name": "memory-4",
    "processors": 4,
    "memory": "32 GiB",
    "network": {"base": "200 MB/s", "burst": "1.2 GB/s"},
    "volumes": [{"size": "1024 GiB", "throughput": {"base": "250 MB/s"}}],
    "zones": ["a", "b", "c"],
    "measured": {
        "date": date(2026, 11, 1),
        "kafka": "4.3.1",
        "jit": "c2",
        "ingress": "100 MB/s",
        "egress": "300 MB/s",
        "load": {"ingress_mb": 0.004, "egress_mb": 0.001, "requests_1k": 0.02, "replicas_1k": 0.01},
        "restart_seconds": {"stop": 3, "start": 8, "recovery": 1},
    },
}


def read(**changes: Any) -> HardwareProfile:
    return profile_of(Section("memory-4.yaml", deepcopy(DOCUMENT) | changes, PROFILE_KEYS), TODAY)


def test_quantities_are_read_with_their_units() -> None:
    profile = read()

    assert (profile.memory_bytes, profile.network.burst) == (32 << 30, 1.2e9)
    assert profile.volumes[0].throughput.burst == profile.disk_rate == 250e6
    assert profile.measured is not None
    assert profile.measured.load.load(100e6, 300e6, 1000, 1000) == pytest.approx(0.73)


def test_bits_are_an_eighth_of_bytes() -> None:
    volumes = [{"size": "1 TiB", "throughput": {"base": "2 Gbit/s"}}]
    profile = read(network={"base": "10 Gbit/s"}, volumes=volumes, measured=None)

    assert profile.network.base == 1.25e9


def test_a_profile_survives_its_document() -> None:
    profile = read()

    assert profile_of(Section("again", profile_document(profile), PROFILE_KEYS), TODAY) == profile


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"processors": None}, SettingInvalid),
        ({"processors": -4}, SettingInvalid),
        ({"memory": "32"}, SettingInvalid),
        ({"memory": "-32 GiB"}, SettingInvalid),
        ({"memory": "32 GB/s"}, SettingInvalid),
        ({"gpus": 1}, SettingUnknown),
        ({"zones": []}, SettingInvalid),
        ({"zones": ["a", "a"]}, SettingInvalid),
        ({"volumes": []}, SettingInvalid),
        ({"network": {"base": "2 GB/s", "burst": "1 GB/s"}}, SettingInvalid),
        ({"network": {"base": "2 Gbit/s", "burst": "1 GB/s"}}, UnitsMixed),
        ({"memory": "32 GB"}, UnitsMixed),
        ({"measured": DOCUMENT["measured"] | {"date": date(2026, 11, 19)}}, DateInFuture),
        ({"measured": {}}, SettingInvalid),
        ({"measured": DOCUMENT["measured"] | {"p99_ms": 80}}, SettingInvalid),
        ({"name": "Memory 4"}, SettingInvalid),
    ],
)
def test_bad_input_is_refused_by_name(changes: dict[str, Any], error: type[PenstockError]) -> None:
    with pytest.raises(error) as raised:
        read(**changes)

    assert "memory-4.yaml" in str(raised.value)
