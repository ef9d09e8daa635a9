"""The examples of the parallel consumer run as they are."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.consume.conftest import KafkaCluster
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.fleet import Fleet
    from tests.harness.processes import Processes

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "consume"


@pytest.fixture
def cluster(fleet: Fleet, unique: Callable[[str], str]) -> Iterator[KafkaCluster]:
    made = KafkaCluster(fleet, unique)
    yield made
    made.close()


def start(processes: Processes, cluster: KafkaCluster, name: str, **variables: str) -> Any:
    connection = {
        "KAFKA": cluster.fleet.bootstrap,
        "KAFKA_PROPERTIES": json.dumps(cluster.properties("example")),
    }
    return processes.start([sys.executable, str(EXAMPLES / name)], env=os.environ | connection | variables)


def test_the_handler_tested_in_memory(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "billing_in_memory.py"), run_name="__main__")
    assert "billed [5, 7] and sent one to the dead-letter topic" in capsys.readouterr().out


@pytest.mark.kafka
def test_orders_are_billed_and_bad_ones_set_aside(cluster: KafkaCluster, processes: Processes) -> None:
    orders, dead = cluster.topic(2), cluster.topic(1)
    cluster.write(
        orders, [(f"customer-{number % 5}", json.dumps({"amount": number})) for number in range(20)]
    )
    member = start(processes, cluster, "orders.py", ORDERS=orders, ORDERS_DEAD=dead)
    wait_for(lambda: cluster.all_committed("example", orders, 2), what="the orders")
    member.send_signal(signal.SIGTERM)
    assert member.wait(60) == 0
    assert [message.value() for message in cluster.read([dead], 1)] == [b'{"amount": 0}']


@pytest.mark.kafka
def test_words_are_counted_exactly_once(cluster: KafkaCluster, processes: Processes) -> None:
    lines, counts = cluster.topic(1), cluster.topic(1)
    cluster.write(lines, [("k", "to be or not"), ("k", "to be")])
    member = start(processes, cluster, "exactly_once.py", LINES=lines, COUNTS=counts)
    messages = cluster.read([counts], 2, **{"isolation.level": "read_committed"})
    member.send_signal(signal.SIGTERM)
    assert member.wait(60) == 0
    assert [message.value() for message in messages] == [b"4", b"2"]


@pytest.mark.kafka
def test_hashes_are_made_by_processes(cluster: KafkaCluster, processes: Processes) -> None:
    files = cluster.topic(1)
    cluster.write(files, [(str(number), "secret") for number in range(10)])
    member = start(processes, cluster, "hashes.py", FILES=files)
    wait_for(lambda: cluster.all_committed("example", files, 1), what="the hashes")
    member.send_signal(signal.SIGTERM)
    assert member.wait(60) == 0
