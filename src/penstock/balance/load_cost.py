"""What traffic costs of a broker's load: coefficients of a hardware profile.

A broker's load is close to linear in what it does, as long as waiting times do not dominate (`broker_load`):

    load = ingress × per MB/s + egress × per MB/s + requests × per 1000/s + replicas × per 1000

Ingress includes replication: what a broker receives, from producers or from leaders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MEGABYTE: Final = 1e6
THOUSAND: Final = 1e3


@dataclass(frozen=True, slots=True)
class LoadCost:
    """Shares of one broker's load."""

    ingress_mb: float  # a MB/s received
    egress_mb: float  # a MB/s sent
    requests_1k: float  # a thousand requests a second
    replicas_1k: float  # a thousand replicas

    def load(self, ingress: float, egress: float, requests: float, replicas: float = 0.0) -> float:
        """Of one broker with these rates; above 1 it cannot follow."""
        return (
            self.ingress_mb * ingress / MEGABYTE
            + self.egress_mb * egress / MEGABYTE
            + self.requests_1k * requests / THOUSAND
            + self.replicas_1k * replicas / THOUSAND
        )


COST_FIELDS: Final = ("ingress_mb", "egress_mb", "requests_1k", "replicas_1k")
