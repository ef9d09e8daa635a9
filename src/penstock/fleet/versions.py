"""Versions of Kafka beside the pinned one: fetch them, and which features a cluster may have.

A version is resolved with the pinned POM, in which only Kafka's version differs. Its first fetch records the
checksums of all jars; every later use verifies them. Features are raised separately, once every registered
node supports the level: until then a roll to the version before remains possible.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.atomic_files import write_atomically
from penstock.fleet.jars import KAFKA_VERSION, POM_FILE, Pin, jars_directory, resolve_jars
from penstock.fleet.layout import make_directory
from penstock.model.errors.fleet import (
    FeatureNotSupported,
    JarsUnresolved,
    VersionTooFar,
    VersionTooOld,
    VersionUnresolved,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kafka.metadata_image import MetadataImage

MINORS_MAX: Final = 3  # that one roll skips
METADATA_VERSION: Final = "metadata.version"
MIN_ISR: Final = "min.insync.replicas"
ELIGIBLE_LEADERS: Final = "eligible.leader.replicas.version"
RAISED: Final = (
    METADATA_VERSION, "kraft.version", "group.version", "share.version", "transaction.version",
    ELIGIBLE_LEADERS, "streams.version",
)  # fmt: skip
# The highest metadata version of each release, as `kafka-storage version-mapping` lists them.
METADATA_LEVELS: Final = {(4, 0): 25, (4, 1): 27, (4, 2): 29, (4, 3): 30}
# What a level enables, for operators; a level that is missing here enables nothing that needs mentioning.
ENABLES: Final[Mapping[tuple[str, int], str]] = {
    (METADATA_VERSION, 30): "cordoning of log directories (KIP-1066)",
    ("kraft.version", 1): "controllers that are added and removed at run time (KIP-853)",
    (ELIGIBLE_LEADERS, 1): "eligible leader replicas (KIP-966); no broker may set min.insync.replicas itself",
    ("transaction.version", 2): "transactions that no late request can join (KIP-890)",
    ("group.version", 1): "the consumer group protocol of KIP-848",
    ("share.version", 1): "share groups (KIP-932)",
}


def pins_directory(cache: Path) -> Path:
    return cache / "pins"


def pin_of(cache: Path, version: str) -> Pin | None:
    """The recorded pin of a version; None for the one that is shipped, or that was not fetched."""
    directory = pins_directory(cache)
    lock = directory / f"kafka-{version}.sha256"
    if version in ("", KAFKA_VERSION) or not lock.exists():
        return None
    return Pin("kafka", version, directory / f"kafka-{version}.xml", lock)


def fetch_version(cache: Path, version: str) -> Pin:
    """Resolves a version and pins it by the checksums of its jars. A pinned one is left as it is."""
    if (known := pin_of(cache, version)) is not None:
        return known
    directory = make_directory(pins_directory(cache))
    pom = directory / f"kafka-{version}.xml"
    write_atomically(pom, pom_of(version))
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        try:
            fresh = resolve_jars(Path(scratch), Pin("kafka", version, pom, pom))
        except JarsUnresolved as failure:
            pom.unlink(missing_ok=True)
            raise VersionUnresolved(version=version, reason=failure.facts["reason"]) from failure
        sums = sorted((jar.name, hashlib.sha256(jar.read_bytes()).hexdigest()) for jar in fresh.glob("*.jar"))
        lock = directory / f"kafka-{version}.sha256"
        write_atomically(lock, "".join(f"{digest}  {name}\n" for name, digest in sums))
        pin = Pin("kafka", version, pom, lock)
        target = jars_directory(cache, pin)
        make_directory(target.parent)
        if target.exists():
            shutil.rmtree(target)
        fresh.rename(target)
    return pin


def pom_of(version: str) -> str:
    """The pinned POM with another version of Kafka."""
    pattern = r"<kafka\.version>[^<]*</kafka\.version>"
    return re.sub(pattern, f"<kafka.version>{version}</kafka.version>", POM_FILE.read_text())


def check_step(running: str, desired: str) -> None:
    """Raises if a roll between these versions skips too far."""
    before, after = _numbers(running or KAFKA_VERSION), _numbers(desired or KAFKA_VERSION)
    if before[0] != after[0] or abs(before[1] - after[1]) > MINORS_MAX:
        raise VersionTooFar(running=running, desired=desired, minors=MINORS_MAX)


def check_features(version: str, levels: Mapping[str, int]) -> None:
    """Raises if the metadata version in force is newer than a Kafka version."""
    supported = METADATA_LEVELS.get(_numbers(version or KAFKA_VERSION))
    level = levels.get(METADATA_VERSION, 0)
    if supported is not None and level > supported:
        raise VersionTooOld(version=version, feature=METADATA_VERSION, supported=supported, level=level)


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


@dataclass(frozen=True, slots=True)
class FeatureRaise:
    feature: str
    level: int  # in force
    level_max: int  # that every registered node supports
    enables: str = ""
    limited_by: tuple[int, ...] = ()  # nodes that support less than others

    @property
    def possible(self) -> bool:
        return self.level_max > self.level


def feature_raises(image: MetadataImage) -> tuple[FeatureRaise, ...]:
    """What can be raised: by every registered node, fenced brokers and controllers included."""
    nodes = {**image.brokers, **image.controllers}
    raises = []
    for feature in RAISED:
        ranges = {node: each.features.get(feature, (0, 0)) for node, each in nodes.items()}
        if not any(high for _, high in ranges.values()):
            continue
        level_max = min(high for _, high in ranges.values())
        best = max(high for _, high in ranges.values())
        level = image.features.get(feature, 0)
        gains = [text for (name, at), text in ENABLES.items() if name == feature and level < at <= level_max]
        limiting = tuple(sorted(node for node, (_, high) in ranges.items() if high < best))
        raises.append(FeatureRaise(feature, level, level_max, "; ".join(gains), limiting))
    return tuple(raises)


def require_all(raises: tuple[FeatureRaise, ...]) -> None:
    """Raises if a node is behind: features would make its return impossible."""
    for each in raises:
        if each.limited_by:
            raise FeatureNotSupported(
                feature=each.feature, nodes=", ".join(map(str, each.limited_by)), level=each.level_max
            )
