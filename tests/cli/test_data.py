"""`topic`, `group`, `produce`, `consume` by profile, from a directory without a fleet, over TLS."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import trustme
from confluent_kafka import Consumer

from penstock.gateway.process.server import Gateway
from penstock.model.errors import Exit
from penstock.platform.keyring import SavedKey
from penstock.platform.profiles import Profile, save_profile
from tests.harness.gateway import new_access, start_gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.gateway.settings import GatewaySettings
    from tests.harness.command import CommandResult
    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access

    Here = Callable[..., CommandResult]

pytestmark = pytest.mark.kafka

NO_WAIT = "--no-follow"


class TlsGateway(NamedTuple):
    access: Access
    ca: str


class Elsewhere(Gateway):
    """Advertises an address on which nothing listens."""

    def __init__(self, settings: GatewaySettings, *more: Any, **others: Any) -> None:
        super().__init__(replace(settings, advertised_host="127.0.0.2"), *more, **others)


@pytest.fixture(scope="module")
def gateway(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsGateway]:
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    certificate = directory / "gateway.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    running = start_gateway(fleet, [new_access()], settings={"certificate": certificate})
    yield TlsGateway(running.accesses[0], str(directory / "ca.pem"))
    running.stop()


@pytest.fixture
def shop(gateway: TlsGateway, here: Here) -> Here:
    """The command with a profile of the tenant."""
    access = gateway.access
    Path("secret").write_text(access.secret)
    ran = here(
        "profile", "create", "shop", "--bootstrap", access.bootstrap, "--key", access.key,
        "--secret-file", "secret", "--tls", "--ca", gateway.ca,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return here


def lines(ran: CommandResult) -> list[Any]:
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def test_topics_and_records(
    shop: Here, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, copy = unique("orders"), unique("copy")
    assert shop("topic", "create", orders, "-p", "2", "--config", "retention.ms=3600000").code == 0
    records: list[dict[str, Any]] = [
        {
            "key": f"user-{number}",
            "value": f"order {number}",
            "headers": [{"name": "n", "value": str(number)}],
        }
        for number in range(6)
    ]
    records.append({"key": "user-1", "value_base64": "/w==", "headers": []})
    records.append({"key": "user-2", "value": None, "headers": []})
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(json.dumps(each) + "\n" for each in records)))
    assert shop("produce", orders, "--input", "jsonl", "-o", "json").data == {"acknowledged": 8}

    printed = shop("consume", orders, "-b", NO_WAIT, "-o", "jsonl")
    seen = lines(printed)
    fields = ("key", "value", "value_base64", "headers")
    assert sorted([{k: r[k] for k in fields if k in r} for r in seen], key=str) == sorted(records, key=str)

    assert shop("topic", "create", copy, "-p", "2").code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(printed.out))
    assert shop("produce", copy, "-i", "jsonl").code == 0
    place = ("topic", "timestamp")
    again = lines(shop("consume", copy, "-b", NO_WAIT, "-o", "jsonl"))
    assert [{k: v for k, v in r.items() if k not in place} for r in again] == [
        {k: v for k, v in r.items() if k not in place} for r in seen
    ]

    def keys(*flags: str) -> list[str]:
        return [r["key"] for r in lines(shop("consume", orders, NO_WAIT, "-o", "jsonl", *flags))]

    assert keys("-b", "--filter", "key~user-[34]") != []
    assert set(keys("-b", "--filter", "key~user-[34]")) == {"user-3", "user-4"}
    assert keys("-b", "--filter", "order 5") == keys("-b", "--filter", "header.n~5") == ["user-5"]
    by_partition = [[r for r in seen if r["partition"] == number] for number in (0, 1)]
    assert keys("--partition", "1", "--offset", "1") == [r["key"] for r in by_partition[1][1:]]
    assert keys("--last", "1") == [part[-1]["key"] for part in by_partition if part]
    assert len(keys("--at", "1h")) == len(seen)
    assert keys("--at", "2100-01-01T00:00Z") == []

    described = shop("topic", "describe", orders, "-o", "json").data
    assert [(p["partition"], p["start"], p["end"]) for p in described["partitions"]] == [
        (number, 0, len(part)) for number, part in enumerate(by_partition)
    ]
    assert [(row["name"], row["value"]) for row in described["config"]] == [("retention.ms", "3600000")]
    config = shop("topic", "config", orders, "--set", "retention.ms=60000", "-o", "json").data
    assert {row["name"]: row["value"] for row in config}["retention.ms"] == "60000"
    config = shop("topic", "config", orders, "--unset", "retention.ms", "-o", "json").data
    assert {row["name"]: row["origin"] for row in config}["retention.ms"] != "topic"

    assert shop("topic", "purge", orders).code == Exit.USAGE, "not confirmed"
    assert shop("topic", "purge", orders, "--yes").code == 0
    assert keys("-b") == []
    assert shop("topic", "delete", orders).code == Exit.USAGE
    assert shop("topic", "delete", orders, "--yes").code == 0
    assert shop("topic", "delete", orders, "--yes").code == Exit.NOT_FOUND


def test_groups(shop: Here, gateway: TlsGateway, unique: Callable[[str], str]) -> None:
    orders, billing = unique("orders"), unique("billing")
    shop("topic", "create", orders, "-p", "1")
    shop("produce", orders, "one", "two", "three")
    access = gateway.access
    config = access.client_config(group_id=billing, auto_offset_reset="earliest")
    tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": gateway.ca}
    consumer = Consumer(config | tls)
    try:
        consumer.subscribe([orders])
        for _ in range(3):
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None
        consumer.commit(asynchronous=False)
        described = shop("group", "describe", billing, "-o", "json").data
        busy = [shop("group", *words, billing, "--yes") for words in (["delete"], ["reset", "--to", "0"])]
    finally:
        consumer.close()

    assert [member["partitions"] for member in described["members"]] == [[f"{orders}-0"]]
    assert [(row["committed"], row["lag"]) for row in described["lag"]] == [(3, 0)]
    assert [(ran.code, "has 1 member" in ran.err) for ran in busy] == [(Exit.USAGE, True)] * 2
    row = {"topic": orders, "partition": 0, "before": 3}
    for to, after in (("earliest", 0), ("latest", 3), ("1", 1), ("99", 3), ("1h", 0)):
        dry = shop("group", "reset", billing, "--to", to, "--dry-run", "-o", "json")
        assert dry.data == [row | {"after": after}]
    assert shop("group", "reset", billing, "--to", "1").code == Exit.USAGE, "not confirmed"
    assert shop("group", "reset", billing, "--to", "soon", "--yes").code == Exit.USAGE
    assert shop("group", "lag", billing, "-o", "json").data[0]["committed"] == 3
    assert shop("group", "reset", billing, "--to", "1", "--yes").code == 0
    assert shop("group", "lag", billing, "-o", "json").data[0]["lag"] == 2
    assert shop("group", "delete", billing).code == Exit.USAGE
    assert shop("group", "delete", billing, "--yes").code == 0
    assert shop("group", "describe", billing).code == Exit.NOT_FOUND


def test_an_advertised_address_that_fails_is_named_with_the_setting_to_change(
    fleet: Fleet, here: Here
) -> None:
    running = start_gateway(fleet, [new_access()], kind=Elsewhere)
    try:
        access = running.accesses[0]
        bootstrap = access.bootstrap.replace("127.0.0.2", "127.0.0.1")
        key = SavedKey("", "p", bootstrap, access.key, access.secret)
        save_profile(Profile("p", bootstrap=bootstrap), key=key)

        ran = here("topic", "list", "--profile", "p", "-o", "json")
    finally:
        running.stop()

    assert (ran.code, ran.error["code"]) == (Exit.UNHEALTHY, "PEN-5041")
    assert "advertises 127.0.0.2:" in ran.error["message"]
    assert "advertised_host" in ran.error["hint"]
