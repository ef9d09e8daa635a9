"""The four papers, in the order of the documentation."""

from __future__ import annotations

from typing import Final

from tests.paper import kora_platform, kora_tenancy, lag_scaler, olep, parallel_consumer
from tests.paper.claim import Paper

PAPERS: Final = (
    Paper(
        "Kora: a cloud-native event streaming platform for Kafka (VLDB 2023)",
        (*kora_platform.CLAIMS, *kora_tenancy.CLAIMS),
    ),
    Paper("Persistent Kafka consumer lag-based scaler for KEDA (whitepaper)", lag_scaler.CLAIMS),
    Paper("Online event processing (CACM 2019)", olep.CLAIMS),
    Paper("A parallel Kafka consumer with the actor model (2024)", parallel_consumer.CLAIMS),
)
ROWS: Final = (
    *(f"K{number}" for number in range(1, 22)),
    *(f"S{number}" for number in range(1, 6)),
    *(f"O{number}" for number in range(1, 7)),
    *(f"C{number}" for number in range(1, 7)),
    *(f"P{number}" for number in range(1, 3)),
)
