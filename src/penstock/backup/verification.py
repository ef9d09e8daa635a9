"""Checks a backup: every segment is there and whole, and every log is without unexplained holes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.model.errors import PenstockError
from penstock.tier.format import LOG, MANIFEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.backup.archive import Archive
    from penstock.backup.catalogue import Catalogue
    from penstock.tier.format import Manifest


@dataclass(frozen=True, slots=True)
class Problem:
    where: str
    what: str


@dataclass(slots=True)
class Verification:
    segments: int = 0
    read: int = 0  # whose records were read
    log_bytes: int = 0
    partitions: int = 0
    gaps: int = 0  # recorded ones
    problems: list[Problem] = field(default_factory=list)


async def verify(
    archive: Archive,
    catalogue: Catalogue,
    *,
    sample: float,
    seed: int,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Verification:
    """Check every manifest and size, and the records of a sample of segments: 0 none, 1 all."""
    await archive.load()
    result = Verification(gaps=len(archive.gaps))
    chosen = random.Random(seed)
    keys = sorted(archive.segments)
    manifests: dict[tuple[str, int], list[Manifest]] = {}
    for number, key in enumerate(keys):
        stored = archive.segments[key]
        if MANIFEST not in stored.suffixes:
            continue  # an upload that was interrupted; it does not count
        result.segments += 1
        try:
            manifest = await archive.manifest(key)
            manifests.setdefault((key.topic_id, key.partition), []).append(manifest)
            result.log_bytes += manifest.log_bytes
            if stored.log_size < 0:
                result.problems.append(Problem(key.path(LOG), "it is missing"))
            elif manifest.encryption is None and stored.log_size != manifest.log_bytes:
                what = f"it has {stored.log_size} of {manifest.log_bytes} bytes"
                result.problems.append(Problem(key.path(LOG), what))
            elif sample > 0 and chosen.random() < sample:
                await archive.check(manifest)
                result.read += 1
        except PenstockError as error:
            result.problems.append(Problem(key.path(MANIFEST), error.message))
        progress(number + 1, len(keys))
    await _check_logs(archive, manifests, result)
    await _check_catalogue(catalogue, result)
    return result


async def _check_logs(
    archive: Archive, manifests: dict[tuple[str, int], list[Manifest]], result: Verification
) -> None:
    for topic_id, partition in sorted(manifests):
        result.partitions += 1
        recorded = [
            (g.first, g.last) for g in archive.gaps if (g.topic_id, g.partition) == (topic_id, partition)
        ]
        try:
            chain = await archive.chain(topic_id, partition)
        except PenstockError:
            continue  # its manifest is listed above
        for hole in chain.holes:
            if not any(first <= hole.first and hole.last <= last for first, last in recorded):
                what = f"offsets {hole.first} to {hole.last} are missing"
                result.problems.append(Problem(f"{topic_id}-{partition}", what))


async def _check_catalogue(catalogue: Catalogue, result: Verification) -> None:
    times = await catalogue.times()
    if not times:
        result.problems.append(Problem("catalogue", "it has no entry"))
        return
    try:
        entry = await catalogue.entry(times[-1])
        for name in entry.parts:
            await catalogue.part(entry, name)
    except PenstockError as error:
        result.problems.append(Problem("catalogue", error.message))
