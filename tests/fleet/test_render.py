"""A node's Kafka properties: who may speak where, and how they are written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fleet.layout import NodeLayout
from penstock.fleet.parse import parse_fleet
from penstock.fleet.render import LISTEN_BACKLOG, Credentials, as_text, handler_threads, node_properties

LAYOUT = NodeLayout(Path("/h/clusters/home/b1"))
SECRETS = Credentials(node="node-secret", platform="platform-secret")


def properties(name: str = "b1", **keys: Any) -> dict[str, str]:
    spec = parse_fleet({"clusters": [keys]}).home
    node = next(n for n in spec.nodes if n.name == name)
    return node_properties(spec, node, LAYOUT, SECRETS, Path("/h/secrets/ca.pem"))


def test_the_settings_that_the_platform_needs_are_there() -> None:
    given = properties()

    assert given["replica.selector.class"].endswith("RackAwareReplicaSelector")
    assert given["broker.rack"] == "a"
    assert given["auto.create.topics.enable"] == "false"
    assert given["auto.leader.rebalance.enable"] == "false"
    assert given["unclean.leader.election.enable"] == "false"
    assert int(given["socket.listen.backlog.size"]) == LISTEN_BACKLOG >= 1000


@pytest.mark.parametrize("name", ["b1", "c1001"])
def test_nobody_is_allowed_anything_by_default(name: str) -> None:
    given = properties(name)

    assert given["authorizer.class.name"].endswith(".StandardAuthorizer")
    assert given["allow.everyone.if.no.acl.found"] == "false"
    assert given["super.users"] == "User:_penstock.node;User:_penstock.platform"


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("name", ["b1", "c1001"])
def test_every_listener_asks_for_a_login(name: str, tls: bool) -> None:
    protocols = dict(
        entry.split(":") for entry in properties(name, tls=tls)["listener.security.protocol.map"].split(",")
    )

    expected = "SASL_SSL" if tls else "SASL_PLAINTEXT"
    assert protocols == {"INTERNAL": expected, "GATEWAY": expected, "CONTROLLER": expected}


def test_brokers_take_scram_and_only_scram() -> None:
    given = properties()

    for listener in ("internal", "gateway"):
        assert given[f"listener.name.{listener}.sasl.enabled.mechanisms"] == "SCRAM-SHA-512"
        assert not [k for k in given if k.startswith(f"listener.name.{listener}.plain")]
    assert given["sasl.mechanism.inter.broker.protocol"] == "SCRAM-SHA-512"


def test_the_controllers_listener_takes_plain_with_its_two_static_users_only() -> None:
    given = properties("c1001")

    assert given["listener.name.controller.sasl.enabled.mechanisms"] == "PLAIN"
    jaas = given["listener.name.controller.plain.sasl.jaas.config"]
    assert 'user__penstock.node="node-secret"' in jaas
    assert 'user__penstock.platform="platform-secret"' in jaas
    assert jaas.count("user_") == 2
    assert "listener.name.controller.scram-sha-512.sasl.jaas.config" not in given


def test_a_controller_listens_for_the_quorum_alone_and_advertises_nothing() -> None:
    given = properties("c1001", port=9000)

    assert given["listeners"] == "CONTROLLER://127.0.0.1:9000"
    assert "advertised.listeners" not in given
    assert "broker.rack" not in given


def test_a_broker_advertises_what_others_are_to_use() -> None:
    given = properties(port=9000, brokers=[{"advertised": {"gateway": 443}}])

    assert given["listeners"] == "INTERNAL://127.0.0.1:9100,GATEWAY://127.0.0.1:9200"
    assert given["advertised.listeners"] == "INTERNAL://127.0.0.1:9100,GATEWAY://127.0.0.1:443"


def test_the_metrics_port_is_no_kafka_listener() -> None:
    assert "METRICS" not in properties()["listeners"]


def test_an_ipv6_listener_stands_in_brackets() -> None:
    given = properties(host="::1", port=9000)

    assert given["listeners"].startswith("INTERNAL://[::1]:9100,")


@pytest.mark.parametrize(
    ("brokers", "copies", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (6, "3", "2")]
)
def test_internal_topics_have_as_many_copies_as_there_are_zones_to_lose(
    brokers: int, copies: str, in_sync: str
) -> None:
    given = properties(brokers=brokers)

    for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        assert given[f"{topic}.replication.factor"] == copies
    assert given["default.replication.factor"] == copies
    assert given["min.insync.replicas"] == in_sync
    assert given["transaction.state.log.min.isr"] == in_sync


def test_with_tls_every_listener_shows_the_nodes_certificate_and_trusts_our_ca() -> None:
    given = properties(tls=True)

    for listener in ("internal", "gateway", "controller"):
        assert given[f"listener.name.{listener}.ssl.keystore.location"] == str(LAYOUT.keystore)
        assert given[f"listener.name.{listener}.ssl.truststore.location"] == "/h/secrets/ca.pem"


def test_without_tls_no_certificate_is_mentioned() -> None:
    assert not [key for key in properties() if "ssl" in key]


def test_the_fleet_files_own_properties_win() -> None:
    assert properties(config={"num.io.threads": 9})["num.io.threads"] == "9"


@pytest.mark.parametrize("config", [{}, {"num.io.threads": 9}])
def test_handlers_are_counted_as_they_are_set(config: dict[str, int]) -> None:
    spec = parse_fleet({"clusters": [{"config": config}]}).home

    assert handler_threads(spec) == int(properties(config=config)["num.io.threads"])


def test_credentials_do_not_show_themselves() -> None:
    assert "secret" not in repr(SECRETS)


def test_text_is_one_property_a_line_in_order_of_name() -> None:
    assert as_text({"b": "2", "a": "1"}) == "a=1\nb=2\n"


def read_as_java(text: str) -> dict[str, str]:
    """java.util.Properties.load, as far as we write it: Latin-1, escapes, one line each."""
    found = {}
    for line in text.encode("ascii").decode("latin-1").split("\n"):
        if not line:
            continue
        key, value, parts, i = "", None, "", 0
        units: list[int] = []
        while i < len(line):
            char = line[i]
            if char == "\\":
                nxt = line[i + 1]
                if nxt == "u":
                    units.append(int(line[i + 2 : i + 6], 16))
                    i += 6
                    continue
                units.append(ord({"n": "\n", "r": "\r", "t": "\t", "f": "\f"}.get(nxt, nxt)))
                i += 2
                continue
            if char == "=" and value is None:
                key, value, units = _text(units), "", []
                i += 1
                while line[i : i + 1] in (" ", "\t", "\f"):
                    i += 1
                continue
            units.append(ord(char))
            i += 1
        found[key] = _text(units) + parts
    return found


def _text(units: list[int]) -> str:
    return b"".join(unit.to_bytes(2, "big") for unit in units).decode("utf-16-be")


_words = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\r\t \\=:#!"), max_size=20
)


@given(st.dictionaries(_words.filter(bool), _words, max_size=4))
def test_java_reads_back_what_was_written(values: dict[str, str]) -> None:
    assert read_as_java(as_text(values)) == values
