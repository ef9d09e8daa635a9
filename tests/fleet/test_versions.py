"""Versions beside the pinned one, and when features may be raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.control.rolling.roll_service import raise_features
from penstock.fleet import versions
from penstock.fleet.jars import KAFKA_VERSION, POM_FILE, jar_checksums, jars_directory, verify
from penstock.fleet.versions import (
    ELIGIBLE_LEADERS,
    METADATA_VERSION,
    check_features,
    check_step,
    feature_raises,
    fetch_version,
    pin_of,
    pom_of,
    require_all,
)
from penstock.kafka.admin import brokers, configs
from penstock.kafka.metadata_image import MetadataImage, NodeRegistration
from penstock.model.errors.fleet import (
    BrokerMinimumSet,
    FeatureNotSupported,
    JarsUnresolved,
    VersionTooFar,
    VersionTooOld,
    VersionUnresolved,
)

if TYPE_CHECKING:
    from pathlib import Path


def image(broker: int, controller: int, level: int, *, fenced: bool = False) -> MetadataImage:
    return MetadataImage(
        brokers={1: NodeRegistration(1, "x", {METADATA_VERSION: (7, broker)}, fenced=fenced)},
        controllers={9: NodeRegistration(9, "y", {METADATA_VERSION: (7, controller)})},
        features={METADATA_VERSION: level},
    )


def test_the_first_fetch_of_a_version_pins_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(scratch: Path, pin: Any) -> Path:
        assert "<kafka.version>4.2.1<" in pin.pom.read_text()
        (scratch / "jars").mkdir()
        (scratch / "jars" / "kafka.jar").write_text("4.2.1")
        return scratch / "jars"

    monkeypatch.setattr(versions, "resolve_jars", resolve)
    pin = fetch_version(tmp_path, "4.2.1")

    assert pin == pin_of(tmp_path, "4.2.1") == fetch_version(tmp_path, "4.2.1")
    verify(jars_directory(tmp_path, pin), jar_checksums(pin.lock.read_text()))
    assert pin_of(tmp_path, KAFKA_VERSION) is None


def test_a_version_that_does_not_exist_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(*_: object) -> Path:
        raise JarsUnresolved(reason="could not find artifact")

    monkeypatch.setattr(versions, "resolve_jars", resolve)
    with pytest.raises(VersionUnresolved, match=r"4\.4\.0"):
        fetch_version(tmp_path, "4.4.0")
    assert pin_of(tmp_path, "4.4.0") is None


def test_only_kafkas_version_differs_in_the_pom() -> None:
    assert pom_of(KAFKA_VERSION) == POM_FILE.read_text()
    assert pom_of("4.2.1").count("4.2.1") == 1


def test_a_roll_skips_few_minor_versions() -> None:
    check_step("4.2.1", "4.3.1")
    check_step("4.3.1", "")
    for running, desired in (("3.9.0", "4.3.1"), ("4.3.1", "4.7.0")):
        with pytest.raises(VersionTooFar):
            check_step(running, desired)


def test_a_version_must_support_the_features_in_force() -> None:
    check_features("4.2.1", {METADATA_VERSION: 29})
    with pytest.raises(VersionTooOld):
        check_features("4.2.1", {METADATA_VERSION: 30})


def test_a_feature_is_raised_to_what_every_registered_node_supports() -> None:
    (possible,) = feature_raises(image(30, 30, 29))
    assert (possible.level, possible.level_max, possible.possible) == (29, 30, True)
    assert "cordoning" in possible.enables
    require_all((possible,))


@pytest.mark.parametrize("behind", [image(29, 30, 29, fenced=True), image(30, 29, 29)])
def test_fenced_brokers_and_controllers_count(behind: MetadataImage) -> None:
    (limited,) = feature_raises(behind)
    assert not limited.possible
    with pytest.raises(FeatureNotSupported):
        require_all((limited,))


async def test_raising_is_validated_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    async def update(_client: object, levels: dict[str, int], *, validate_only: bool = False) -> None:
        calls.append((levels, validate_only))

    monkeypatch.setattr(brokers, "update_features", update)
    client: Any = None
    await raise_features(client, image(30, 30, 29))
    await raise_features(client, image(30, 30, 30))
    assert calls == [({METADATA_VERSION: 30}, True), ({METADATA_VERSION: 30}, False)]


async def test_eligible_leaders_need_brokers_without_a_minimum_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = image(30, 30, 30)
    for registered in (made.brokers, made.controllers):
        for node, each in registered.items():
            registered[node] = NodeRegistration(node, each.incarnation, {ELIGIBLE_LEADERS: (0, 1)})
    entry = configs.Entry("min.insync.replicas", "1", configs.Source.BROKER_DYNAMIC, False, False)

    async def describe(_client: object, resources: list[configs.Resource], **_: object) -> object:
        return {resources[0]: {entry.name: entry}}

    monkeypatch.setattr(configs, "describe", describe)
    client: Any = None
    with pytest.raises(BrokerMinimumSet):
        await raise_features(client, made)
