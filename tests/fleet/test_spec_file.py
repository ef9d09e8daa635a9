"""Fleet files: defaults, and errors about mistakes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fleet.spec import CONTROLLER_ID_FIRST, ClusterSpec, Listener, Role
from penstock.fleet.spec_file import parse_fleet
from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.fleet import PortShared
from penstock.model.errors.settings import SettingInvalid, SettingUnknown


def cluster(**keys: Any) -> ClusterSpec:
    return parse_fleet({"clusters": [keys]}).home


def all_ports(*clusters: ClusterSpec) -> list[int]:
    return [port for one in clusters for node in one.nodes for port in node.ports.values()]


def test_by_default_a_cluster_has_one_controller_and_three_brokers_in_three_zones() -> None:
    spec = cluster()

    assert spec.name == "home"
    assert [(n.id, n.role, n.zone) for n in spec.nodes] == [
        (1001, Role.CONTROLLER, "a"),
        (1, Role.BROKER, "a"),
        (2, Role.BROKER, "b"),
        (3, Role.BROKER, "c"),
    ]
    assert not spec.tls


def test_by_default_there_are_as_many_brokers_as_zones() -> None:
    assert len(cluster(zones=["x", "y"]).brokers) == 2


def test_brokers_are_spread_over_the_zones() -> None:
    assert [n.zone for n in cluster(zones=["x", "y"], brokers=5).brokers] == ["x", "y", "x", "y", "x"]


def test_a_second_cluster_gets_another_name_and_other_ports() -> None:
    first, second = parse_fleet({"clusters": [{}, {}]})

    assert (first.name, second.name) == ("home", "cluster-2")
    assert not set(all_ports(first)) & set(all_ports(second))


def test_port_0_makes_all_ports_automatic() -> None:
    assert set(all_ports(cluster(port=0))) == {0}


def test_the_port_of_a_listed_node_is_its_internal_listener() -> None:
    spec = cluster(brokers=[{"port": 5000}, {"ports": {"internal": 5001, "gateway": 5002}}])

    assert [n.ports[Listener.INTERNAL] for n in spec.brokers] == [5000, 5001]
    assert spec.brokers[1].ports[Listener.GATEWAY] == 5002


def test_a_listed_node_overrides_the_defaults_of_its_cluster() -> None:
    spec = cluster(heap=300, brokers=[{"id": 7, "zone": "c", "heap": 500}, {}])

    assert [(n.id, n.zone, n.heap_mb) for n in spec.brokers] == [(7, "c", 500), (2, "b", 300)]


def test_config_values_are_written_in_the_form_of_kafka() -> None:
    spec = cluster(config={"log.segment.bytes": 1048576, "group.share.enable": True, "x": "y", "r": 0.5})

    assert spec.config == {"log.segment.bytes": "1048576", "group.share.enable": "true", "x": "y", "r": "0.5"}


def test_tls_is_on_by_default_outside_loopback() -> None:
    assert cluster(host="10.1.2.3").tls
    assert cluster(brokers=[{}, {"host": "10.1.2.3"}, {}]).tls


def test_tls_cannot_be_turned_off_outside_loopback() -> None:
    with pytest.raises(SettingInvalid, match="`tls` is False, expected true: only loopback"):
        cluster(host="10.1.2.3", tls=False)


UNKNOWN = [
    ({"cluster": []}, "fleet: unknown key `cluster`"),
    ({"clusters": [{"broker": 3}]}, r"fleet: clusters\[0\]: unknown key `broker`"),
    ({"clusters": [{}, {"brokers": [{"rack": "a"}]}]}, r"clusters\[1\]\.brokers\[0\]: unknown key `rack`"),
    ({"clusters": [{"brokers": [{"ports": {"client": 1}}]}]}, r"brokers\[0\]\.ports: unknown key `client`"),
    ({"clusters": [{"controllers": [{"ports": {"internal": 1}}]}]}, "unknown key `internal`"),
    ({"clusters": [{3: "x"}]}, "unknown key `3`"),
]


@pytest.mark.parametrize(("document", "message"), UNKNOWN)
def test_an_unknown_key_is_named_with_its_place(document: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingUnknown, match=message) as caught:
        parse_fleet(document)

    assert caught.value.exit_code is Exit.USAGE
    assert caught.value.advice.startswith("Known keys here: ")


INVALID = [
    ({}, "`clusters` is None, expected a list with at least one cluster"),
    ({"clusters": []}, "`clusters` is"),
    ({"clusters": {"name": "home"}}, "`clusters` is"),
    ({"clusters": ["home"]}, "`clusters` is"),
    ({"clusters": [{"name": "Home"}]}, "`name` is 'Home', expected a short lower-case word"),
    ({"clusters": [{"name": "../up"}]}, "`name` is"),
    ({"clusters": [{"name": "home"}, {"name": "home"}]}, "expected each name once"),
    ({"clusters": [{"host": "a b"}]}, "`host` is 'a b'"),
    ({"clusters": [{"host": ""}]}, "`host` is ''"),
    ({"clusters": [{"host": "0.0.0.0", "tls": True}]}, "`host` is '0.0.0.0', expected an address at which"),
    ({"clusters": [{"brokers": [{"host": "::"}]}]}, "`host` is '::'"),
    ({"clusters": [{"port": -1}]}, "`port` is -1, expected a whole number from 0 to"),
    ({"clusters": [{"port": 65500}]}, "`port` is 65500"),
    ({"clusters": [{"port": "19090"}]}, "`port` is '19090'"),
    ({"clusters": [{"port": True}]}, "`port` is True"),
    ({"clusters": [{"zones": []}]}, "`zones` is"),
    ({"clusters": [{"zones": "a,b"}]}, "`zones` is 'a,b', expected a list"),
    ({"clusters": [{"zones": ["a", "a"]}]}, "expected each zone once"),
    ({"clusters": [{"zones": ["a", ""]}]}, "`zones` is"),
    ({"clusters": [{"zones": ["a\nb=c"]}]}, "`zones` is"),
    ({"clusters": [{"zones": [1]}]}, "`zones` is"),
    ({"clusters": [{"brokers": 0}]}, "`brokers` is 0"),
    ({"clusters": [{"brokers": 201}]}, "`brokers` is 201, expected a whole number from 1 to 200"),
    ({"clusters": [{"brokers": True}]}, "`brokers` is True"),
    ({"clusters": [{"brokers": []}]}, "`brokers` is"),
    ({"clusters": [{"brokers": "three"}]}, "`brokers` is 'three', expected a number or a list of nodes"),
    ({"clusters": [{"brokers": [{"id": -1}]}]}, "`id` is -1"),
    ({"clusters": [{"brokers": [{"id": 1}, {"id": 1}]}]}, "expected each id once"),
    ({"clusters": [{"brokers": [{"id": 1001}]}]}, "expected each id once"),
    ({"clusters": [{"brokers": [{"zone": "d"}]}]}, "`zone` is 'd', expected one of the cluster's zones a"),
    ({"clusters": [{"brokers": [{"ports": {"internal": 70000}}]}]}, "`internal` is 70000"),
    ({"clusters": [{"brokers": [{"ports": [1, 2]}]}]}, "`ports` is"),
    ({"clusters": [{"brokers": [{"advertised": {"internal": 0}}]}]}, "`internal` is 0"),
    ({"clusters": [{"controllers": 0}]}, "`controllers` is 0"),
    ({"clusters": [{"combined": True, "controllers": 1}]}, "with `combined: true`"),
    ({"clusters": [{"combined": "yes"}]}, "`combined` is 'yes', expected true or false"),
    ({"clusters": [{"heap": 100}]}, "`heap` is 100, expected a whole number from 160"),
    ({"clusters": [{"jit": "fast"}]}, "`jit` is 'fast', expected one of quick, full"),
    ({"clusters": [{"config": ["a=b"]}]}, "`config` is"),
    ({"clusters": [{"config": {1: "b"}}]}, "`config` is"),
    ({"clusters": [{"config": {"a": None}}]}, "`a` is None, expected a text, a number, true or false"),
    ({"clusters": [{"config": {"a": ["b"]}}]}, "`a` is"),
    ({"clusters": [{"config": {"log.dirs": "x"}}]}, "`log.dirs` is 'x', expected it elsewhere"),
    ({"clusters": [{"config": {"node.id": 5}}]}, "`node.id` is 5, expected it elsewhere"),
]


@pytest.mark.parametrize(("document", "message"), INVALID)
def test_an_invalid_value_is_an_error_with_the_expected_one(document: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingInvalid) as caught:
        parse_fleet(document)

    assert message in caught.value.message
    assert caught.value.exit_code is Exit.USAGE


SHARED = [
    ([{"brokers": [{"port": 5000}, {"port": 5000}]}], "home/b1 (internal)", "home/b2 (internal)"),
    ([{"brokers": [{"ports": {"internal": 5000, "gateway": 5000}}]}], "home/b1 (internal)", "b1 (gateway)"),
    ([{"port": 5000}, {"port": 5000}], "home/c1001 (controller)", "cluster-2/c1001 (controller)"),
    ([{"brokers": [{"port": 5000}, {"port": 5000, "host": "localhost"}]}], "home/b1", "home/b2"),
    (
        [{"brokers": [{"ports": {"metrics": 5000}}, {"host": "127.0.0.2", "ports": {"metrics": 5000}}]}],
        "home/b1 (metrics)",
        "home/b2 (metrics)",
    ),
]


@pytest.mark.parametrize(("clusters", "first", "second"), SHARED)
def test_two_listeners_on_one_port_are_both_named(
    clusters: list[dict[str, Any]], first: str, second: str
) -> None:
    with pytest.raises(PortShared) as caught:
        parse_fleet({"clusters": clusters}, where="f.yaml")

    assert caught.value.message.startswith("f.yaml: port 5000 is assigned to both ")
    assert first in caught.value.message
    assert second in caught.value.message
    assert "port: 0" in caught.value.advice


def test_two_hosts_may_use_the_same_port() -> None:
    spec = cluster(brokers=[{"port": 5000}, {"port": 5000, "host": "127.0.0.2"}])

    assert [n.address(Listener.INTERNAL) for n in spec.brokers] == ["127.0.0.1:5000", "127.0.0.2:5000"]


@given(
    brokers=st.integers(1, 30),
    controllers=st.integers(1, 9),
    zones=st.lists(st.sampled_from("abcdefg"), min_size=1, unique=True),
    clusters=st.integers(1, 3),
)
def test_defaults_never_clash(brokers: int, controllers: int, zones: list[str], clusters: int) -> None:
    document = {"brokers": brokers, "controllers": controllers, "zones": zones}

    spec = parse_fleet({"clusters": [document] * clusters})

    ports = all_ports(*spec)
    assert len(set(ports)) == len(ports)
    for one in spec:
        assert len({n.id for n in one.nodes}) == brokers + controllers
        assert {n.id >= CONTROLLER_ID_FIRST for n in one.brokers} == {False}


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_keys = (
    "name",
    "host",
    "port",
    "zones",
    "controllers",
    "brokers",
    "combined",
    "heap",
    "jit",
    "tls",
    "config",
)


@given(st.dictionaries(st.sampled_from(_keys), _anything, max_size=4))
def test_any_content_is_a_fleet_or_an_error_of_the_catalogue(values: dict[str, Any]) -> None:
    rejected = False
    try:
        parse_fleet({"clusters": [values]})
    except (SettingInvalid, SettingUnknown, PortShared):
        rejected = True

    assert values or not rejected


@pytest.mark.parametrize(
    ("tier", "message"),
    [
        ({"store": "gcs"}, "store"),
        ({"store": "s3", "region": "eu-west-1"}, "bucket"),
        ({"store": "s3", "bucket": "history"}, "region"),
        ({"bucket": "history"}, "expected nothing: the store is file"),
        ({"prefix": "/history"}, "expected words separated by /"),
        ({"folder": "/x"}, "folder"),
    ],
)
def test_an_invalid_tier_is_named(tier: dict[str, str], message: str) -> None:
    with pytest.raises(PenstockError, match=message):
        parse_fleet({"clusters": [{"tier": tier}]})


@pytest.mark.parametrize(
    ("backup", "message"),
    [
        ({"store": "tape"}, "store"),
        ({"store": "s3", "bucket": "backups"}, "region"),
        ({"store": "file", "access_key": "k"}, "expected nothing: the store is file"),
        ({"store": "file", "prefix": "/"}, "expected words separated by /"),
        ({"store": "file", "keep_days": -1}, "expected days from 0 to 3650"),
    ],
)
def test_an_invalid_backup_is_named(backup: dict[str, Any], message: str) -> None:
    with pytest.raises(PenstockError, match=message):
        parse_fleet({"clusters": [{"backup": backup}]})


def test_a_tier_in_s3() -> None:
    tier = {"store": "s3", "bucket": "history", "region": "eu-west-1", "endpoint": "http://127.0.0.1:8333"}

    (cluster,) = parse_fleet({"clusters": [{"tier": tier}]})

    assert (cluster.tier.bucket, cluster.tier.prefix) == ("history", "tier")
