"""A tenant's producer as a program: writes numbered records until it is terminated.

    python -m tests.anywhere.producer SETTINGS.json TOPIC ACKNOWLEDGED ERRORS

Every acknowledged number is appended to one file, and every error that librdkafka does not call retriable to
the other.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, Message, Producer

if TYPE_CHECKING:
    from types import FrameType

PAUSE_SECONDS = 0.02
FLUSH_SECONDS_MAX = 180.0
# librdkafka reports these while it reconnects by itself.
PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)


def main(settings: str, topic: str, acknowledged: str, errors: str) -> None:
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    with Path(acknowledged).open("a") as good, Path(errors).open("a") as bad:

        def report(error: KafkaError) -> None:
            if error.code() not in PASSING and not error.retriable():
                bad.write(f"{error.name()} {error.str()}\n")
                bad.flush()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                good.write(f"{(message.value() or b'').decode()}\n")
                good.flush()
            else:
                bad.write(f"delivery {error.name()} {error.str()}\n")
                bad.flush()

        producer = Producer(
            json.loads(Path(settings).read_text())
            | {"enable.idempotence": True, "error_cb": report, "delivery.timeout.ms": 300_000}
            | {"reconnect.backoff.max.ms": 1000, "socket.timeout.ms": 10_000}
        )
        number = 0
        while not stopping:
            producer.produce(topic, str(number).encode(), on_delivery=delivered)
            number += 1
            producer.poll(0)
            time.sleep(PAUSE_SECONDS)
        if producer.flush(FLUSH_SECONDS_MAX):
            bad.write("records left at the end\n")


if __name__ == "__main__":
    main(*sys.argv[1:5])
