"""Keys live where Kafka's own producers would put them."""

from __future__ import annotations

import pytest

from penstock.olep.partitioner import murmur2, partition_of


# Kafka's own test vectors for the Java producer's hash, as unsigned numbers.
@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_the_java_producer(key: bytes, value: int) -> None:
    assert murmur2(key) == value & 0xFFFFFFFF


def test_every_partition_is_in_range() -> None:
    assert {partition_of(str(n).encode(), 7) for n in range(1000)} == set(range(7))
