"""Keys of a backup store, beside the segments of format 1.

<cluster>/gaps/<topic id>/<partition>/<first>-<last>.json      offsets that retention took first
<cluster>/catalogue/entries/<milliseconds>.json                what the cluster had at a time
<cluster>/catalogue/parts/<SHA-256>.json                       what entries refer to
<cluster>/holds/<name>.json, <name>.released                   what must be kept
<cluster>/drills/<milliseconds>.json                           results of drills
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from penstock.tier.format import joined

CATALOGUE: Final = "catalogue"
ENTRIES: Final = "entries"
PARTS: Final = "parts"
GAPS: Final = "gaps"
HOLDS: Final = "holds"
DRILLS: Final = "drills"
RELEASED: Final = ".released"
_TIMED: Final = re.compile(r"(\d{20})\.json")
_GAP: Final = re.compile(r".+/gaps/([\w-]{22})/(\d+)/(\d{20})-(\d{20})\.json")


class Gap(NamedTuple):
    """Offsets that no backup has."""

    topic_id: str
    partition: int
    first: int
    last: int  # inclusive

    def key(self, cluster: str) -> str:
        name = f"{self.first:020d}-{self.last:020d}.json"
        return joined(cluster, GAPS, self.topic_id, str(self.partition), name)


def parse_gap(key: str) -> Gap | None:
    match = _GAP.fullmatch(key)
    return None if match is None else Gap(match[1], int(match[2]), int(match[3]), int(match[4]))


def entry_key(cluster: str, at_ms: int) -> str:
    return joined(cluster, CATALOGUE, ENTRIES, f"{at_ms:020d}.json")


def entry_time(key: str) -> int | None:
    """The time of an entry or a drill; None of an object that another program has put there."""
    match = _TIMED.fullmatch(key.rpartition("/")[2])
    return None if match is None else int(match[1])


def part_key(cluster: str, digest: str) -> str:
    return joined(cluster, CATALOGUE, PARTS, f"{digest}.json")


def drill_key(cluster: str, at_ms: int) -> str:
    return joined(cluster, DRILLS, f"{at_ms:020d}.json")


def canonical(document: Any) -> bytes:
    """One line of JSON, the same for equal documents."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
