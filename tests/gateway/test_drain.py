"""A gateway is replaced under load: its successor listens first, and clients with defaults see no error."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness.fleet import wait_for
from tests.harness.gateway import Access, brokers_of, new_access, wait_for_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet
    from tests.harness.gateway import RunningGateway

pytestmark = pytest.mark.kafka
SECONDS = 120.0  # for a busy machine


class Load:
    """One producer and one consumer with default settings, until stopped; the errors they report are kept."""

    def __init__(self, access: Access, topic: str, group: str) -> None:
        self.sent = self.delivered = 0
        self.read: list[bytes] = []
        self.surfaced: list[Any] = []
        self._stop = threading.Event()
        self._all_sent = threading.Event()
        self._producer = Producer(access.client_config())
        self._consumer = Consumer(access.client_config(group_id=group, auto_offset_reset="earliest"))
        self._consumer.subscribe([topic])
        self._topic = topic
        self._threads = [threading.Thread(target=work) for work in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def _delivered(self, error: Any, message: Any) -> None:
        del message
        if error is None:
            self.delivered += 1
        else:
            self.surfaced.append(error)

    def _produce(self) -> None:
        while not self._stop.is_set():
            self._producer.produce(self._topic, b"%d" % self.sent, on_delivery=self._delivered)
            self.sent += 1
            self._producer.poll(0.001)
        self._all_sent.set()
        if self._producer.flush(SECONDS):
            self.surfaced.append("records that were never delivered")

    def _consume(self) -> None:
        came = time.monotonic()
        while not (self._all_sent.is_set() and len(set(self.read)) >= self.sent):
            message = self._consumer.poll(0.2)
            if message is None:
                if time.monotonic() - came > SECONDS:
                    self.surfaced.append(f"nothing came after {len(self.read)} of {self.sent}")
                    break
                continue
            came = time.monotonic()
            if message.error() is not None:
                self.surfaced.append(message.error())
            else:
                self.read.append(message.value() or b"")
        self._consumer.close()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * SECONDS)


def test_clients_with_default_settings_see_no_error_during_a_replacement(
    fleet: Fleet, make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str]
) -> None:
    old = make_gateway(new_access())
    (access,) = old.accesses
    topic = unique("orders")
    client = AdminClient(access.client_config())
    client.create_topics([NewTopic(topic, 3, 3)])[topic].result(SECONDS)
    asyncio.run(wait_for_topic(access, topic, 3))
    load = Load(access, topic, unique("readers"))
    try:
        wait_for(lambda: len(load.read) > 100, what="records to come through the old gateway")
        ports = old.gateway.ports
        same = [replace(broker, listen_port=ports[broker.id]) for broker in brokers_of(fleet)]

        new = make_gateway(access, brokers=same)
        old.call(old.gateway.drain())

        assert not old.gateway.sessions
        count = len(load.read)
        wait_for(lambda: len(load.read) > count + 100, what="records to come through the new gateway")
        assert new.gateway.sessions
    finally:
        load.stop()
    assert load.surfaced == []
    assert load.delivered == load.sent == len(set(load.read))
