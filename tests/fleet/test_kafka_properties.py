"""A node's Kafka properties: listeners and security, and the file format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fleet.kafka_properties import (
    LISTEN_BACKLOG,
    Credentials,
    as_text,
    handler_threads,
    node_properties,
)
from penstock.fleet.layout import NodeLayout
from penstock.fleet.spec_file import parse_fleet
from penstock.fleet.tier_properties import TierPlace

LAYOUT = NodeLayout(Path("/h/clusters/home/b1"))
SECRETS = Credentials(node="node-secret", platform="platform-secret")


def properties(name: str = "b1", **keys: Any) -> dict[str, str]:
    spec = parse_fleet({"clusters": [keys]}).home
    node = next(n for n in spec.nodes if n.name == name)
    tier = TierPlace("MkU3OEVBNTcwNTJENDM2Qg", Path("/h/tier"))
    return node_properties(spec, node, LAYOUT, SECRETS, Path("/h/secrets/ca.pem"), tier)


def test_the_properties_the_platform_needs_are_set() -> None:
    actual = properties()

    assert actual["replica.selector.class"].endswith("RackAwareReplicaSelector")
    assert actual["broker.rack"] == "a"
    assert actual["auto.create.topics.enable"] == "false"
    assert actual["auto.leader.rebalance.enable"] == "false"
    assert actual["unclean.leader.election.enable"] == "false"
    assert int(actual["socket.listen.backlog.size"]) == LISTEN_BACKLOG >= 1000


def test_groups_behave_as_in_kafka() -> None:
    """Some clients expect that the members of a new group join together, within Kafka's delay."""
    assert "group.initial.rebalance.delay.ms" not in properties()


@pytest.mark.parametrize(("heap", "requests"), [(160, 40), (384, 40), (8192, 80)])
def test_the_largest_request_fits_the_heap_many_times(heap: int, requests: int) -> None:
    largest = int(properties(heap=heap)["socket.request.max.bytes"])

    assert largest * requests <= heap * 1024 * 1024
    assert largest >= 4 * 1024 * 1024  # batches of 1 MiB, the default limit, of several partitions
    assert properties(heap=heap, config={"socket.request.max.bytes": 7})["socket.request.max.bytes"] == "7"


@pytest.mark.parametrize("name", ["b1", "c1001"])
def test_access_is_denied_by_default(name: str) -> None:
    actual = properties(name)

    assert actual["authorizer.class.name"].endswith(".StandardAuthorizer")
    assert actual["allow.everyone.if.no.acl.found"] == "false"
    assert actual["super.users"] == "User:_penstock.node;User:_penstock.platform"


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("name", ["b1", "c1001"])
def test_every_listener_requires_a_login(name: str, tls: bool) -> None:
    protocols = dict(
        entry.split(":") for entry in properties(name, tls=tls)["listener.security.protocol.map"].split(",")
    )

    expected = "SASL_SSL" if tls else "SASL_PLAINTEXT"
    assert protocols == {"INTERNAL": expected, "GATEWAY": expected, "CONTROLLER": expected}


def test_brokers_accept_only_scram() -> None:
    actual = properties()

    for listener in ("internal", "gateway"):
        assert actual[f"listener.name.{listener}.sasl.enabled.mechanisms"] == "SCRAM-SHA-512"
        assert not [k for k in actual if k.startswith(f"listener.name.{listener}.plain")]
    assert actual["sasl.mechanism.inter.broker.protocol"] == "SCRAM-SHA-512"


def test_the_controller_listener_accepts_only_plain_with_two_static_users() -> None:
    actual = properties("c1001")

    assert actual["listener.name.controller.sasl.enabled.mechanisms"] == "PLAIN"
    jaas = actual["listener.name.controller.plain.sasl.jaas.config"]
    assert 'user__penstock.node="node-secret"' in jaas
    assert 'user__penstock.platform="platform-secret"' in jaas
    assert jaas.count("user_") == 2
    assert "listener.name.controller.scram-sha-512.sasl.jaas.config" not in actual


def test_a_controller_has_only_the_controller_listener_and_advertises_nothing() -> None:
    actual = properties("c1001", port=9000)

    assert actual["listeners"] == "CONTROLLER://127.0.0.1:9000"
    assert "advertised.listeners" not in actual
    assert "broker.rack" not in actual


def test_a_broker_advertises_the_declared_ports() -> None:
    actual = properties(port=9000, brokers=[{"advertised": {"gateway": 443}}])

    assert actual["listeners"] == "INTERNAL://127.0.0.1:9100,GATEWAY://127.0.0.1:9200"
    assert actual["advertised.listeners"] == "INTERNAL://127.0.0.1:9100,GATEWAY://127.0.0.1:443"


def test_the_metrics_port_is_not_a_kafka_listener() -> None:
    assert "METRICS" not in properties()["listeners"]


def test_an_ipv6_listener_is_in_brackets() -> None:
    actual = properties(host="::1", port=9000)

    assert actual["listeners"].startswith("INTERNAL://[::1]:9100,")


@pytest.mark.parametrize(
    ("brokers", "copies", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (6, "3", "2")]
)
def test_internal_topics_have_up_to_three_replicas(brokers: int, copies: str, in_sync: str) -> None:
    actual = properties(brokers=brokers)

    for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        assert actual[f"{topic}.replication.factor"] == copies
    assert actual["default.replication.factor"] == copies
    assert actual["min.insync.replicas"] == in_sync
    assert actual["transaction.state.log.min.isr"] == in_sync


def test_with_tls_every_listener_uses_the_node_certificate_and_our_ca() -> None:
    actual = properties(tls=True)

    for listener in ("internal", "gateway", "controller"):
        assert actual[f"listener.name.{listener}.ssl.keystore.location"] == str(LAYOUT.keystore)
        assert actual[f"listener.name.{listener}.ssl.truststore.location"] == "/h/secrets/ca.pem"


def test_without_tls_no_certificate_is_configured() -> None:
    assert not [key for key in properties() if "ssl" in key]


def test_properties_of_the_fleet_file_take_precedence() -> None:
    assert properties(config={"num.io.threads": 9})["num.io.threads"] == "9"


@pytest.mark.parametrize("config", [{}, {"num.io.threads": 9}])
def test_handler_threads_are_counted_as_configured(config: dict[str, int]) -> None:
    spec = parse_fleet({"clusters": [{"config": config}]}).home

    assert handler_threads(spec) == int(properties(config=config)["num.io.threads"])


def test_credentials_are_not_printed() -> None:
    assert "secret" not in repr(SECRETS)


def test_the_file_has_one_property_per_line_sorted_by_name() -> None:
    assert as_text({"b": "2", "a": "1"}) == "a=1\nb=2\n"


def read_as_java(text: str) -> dict[str, str]:
    """What java.util.Properties.load does, for the subset we write."""
    result = {}
    for line in text.encode("ascii").decode("latin-1").split("\n"):
        if not line:
            continue
        key, value, i = "", None, 0
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
        result[key] = _text(units)
    return result


def _text(units: list[int]) -> str:
    return b"".join(unit.to_bytes(2, "big") for unit in units).decode("utf-16-be")


_words = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\r\t \\=:#!"), max_size=20
)


@given(st.dictionaries(_words.filter(bool), _words, max_size=4))
def test_java_reads_the_file_back(values: dict[str, str]) -> None:
    assert read_as_java(as_text(values)) == values


def test_tiering_is_on_with_files_below_the_home() -> None:
    broker, controller = properties("b1"), properties("c1001")

    assert broker["rsm.config.file.directory"] == "/h/tier"
    assert broker["rsm.config.cluster.id"] == "MkU3OEVBNTcwNTJENDM2Qg"
    assert broker["follower.fetch.last.tiered.offset.enable"] == "true"
    assert controller["remote.log.storage.system.enable"] == "true"
    assert controller["alter.config.policy.class.name"] == "penstock.tier.TieredTopicPolicy"
    assert not [key for key in controller if key.startswith(("rsm.", "rlmm."))]


@pytest.mark.parametrize("tls", [False, True])
def test_brokers_log_in_to_the_topic_of_tier_metadata(tls: bool) -> None:
    actual = properties(tls=tls)
    client = "rlmm.config.remote.log.metadata.common.client."

    assert actual[f"{client}security.protocol"] == ("SASL_SSL" if tls else "SASL_PLAINTEXT")
    assert "node-secret" in actual[f"{client}sasl.jaas.config"]
    assert (f"{client}ssl.truststore.location" in actual) is tls


@pytest.mark.parametrize(("brokers", "copies", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2")])
def test_tier_metadata_survives_the_loss_of_a_broker(brokers: int, copies: str, in_sync: str) -> None:
    actual = properties(brokers=brokers)

    topic = "rlmm.config.remote.log.metadata.topic."
    assert (actual[f"{topic}replication.factor"], actual[f"{topic}min.isr"]) == (copies, in_sync)


def test_without_a_store_nothing_is_tiered() -> None:
    actual = properties(tier={"store": "none"})

    assert not [key for key in actual if key.startswith(("remote.", "rsm.", "rlmm."))]
    assert "alter.config.policy.class.name" not in properties("c1001", tier={"store": "none"})


def test_a_broker_that_stops_does_not_wait_long_for_tier_metadata() -> None:
    admin = "rlmm.config.remote.log.metadata.admin."

    assert int(properties()[f"{admin}default.api.timeout.ms"]) <= 2000
    assert int(properties()[f"{admin}request.timeout.ms"]) <= 2000
