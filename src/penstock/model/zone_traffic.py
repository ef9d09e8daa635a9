"""How usage reports name bytes that cross zones: a dimension for each pair of zones.

`cross_zone_egress_bytes/b/a` counts what clients in zone a read from brokers in zone b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INGRESS: Final = "cross_zone_ingress_bytes"
EGRESS: Final = "cross_zone_egress_bytes"


@dataclass(frozen=True, slots=True)
class ZoneDimension:
    direction: str  # INGRESS or EGRESS
    broker_zone: str
    client_zone: str

    def __str__(self) -> str:
        return f"{self.direction}/{self.broker_zone}/{self.client_zone}"


def zone_dimension(name: str) -> ZoneDimension | None:
    """None for every other dimension."""
    parts = name.split("/", 2)
    return ZoneDimension(*parts) if len(parts) == 3 and parts[0] in (INGRESS, EGRESS) else None
