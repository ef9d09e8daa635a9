"""Profiles: the platform of another machine, by URL and token or by bootstrap address and API key."""

from __future__ import annotations

import io
import json
import socket
import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from penstock.fleet.layout import Layout
from penstock.kafka.client import Client
from penstock.model.errors import Exit
from penstock.platform import control_client
from penstock.platform.control_client import ControlClient
from penstock.platform.keyring import SavedKey, save_key
from penstock.platform.profiles import Profile, save_profile
from tests.control.in_memory_plane import ROOT, InMemoryPlane
from tests.harness.control_api import ControlApi, serve_control_api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.command import CommandResult

    Here = Callable[..., CommandResult]

NOWHERE = "127.0.0.1:1"  # where nothing listens


@pytest.fixture(scope="module")
def control_api() -> Iterator[ControlApi]:
    with serve_control_api() as api:
        yield api


@pytest.fixture
def plane(control_api: ControlApi, here: Here) -> InMemoryPlane:
    del here  # which cleans the environment first
    Path("token").write_text(f"{ROOT}\n")
    return control_api.new_plane()


def files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "config").rglob("*") if path.is_file()]


def test_a_login_is_checked_saved_and_used(
    plane: InMemoryPlane, control_api: ControlApi, here: Here, tmp_path: Path
) -> None:
    ran = here("login", control_api.url, "--name", "work", "--token-file", "token")

    assert ran.code == 0, ran.err
    assert ROOT not in ran.out + ran.err + here("profile", "show", "-o", "json").out
    assert here("cluster", "create", "shop").code == 0
    assert plane.registry.cluster("shop").name == "shop"
    assert here("account", "create", "billing", "--cluster", "shop").code == 0
    assert here("acl", "grant", "billing", "read", "orders", "--cluster", "shop").code == 0
    assert "PlainLoginModule" in here("cluster", "connect", "shop").out
    assert not Path(".penstock").exists(), "no home is needed"
    secret = [path for path in files(tmp_path) if "secrets" in path.parts]
    assert len(secret) == 2
    assert {path.stat().st_mode & 0o777 for path in secret} == {0o600}
    assert not [path for path in files(tmp_path) if path not in secret and ROOT in path.read_text()]


def test_a_token_that_is_refused_leaves_no_profile(
    plane: InMemoryPlane, control_api: ControlApi, here: Here
) -> None:
    del plane
    Path("wrong").write_text("wrong")

    ran = here("login", control_api.url, "--token-file", "wrong", "-o", "json")

    assert (ran.code, ran.error["code"]) == (Exit.DENIED, "PEN-5010")
    assert here("profile", "list", "-o", "json").data == []


def test_another_login_keeps_the_keys_of_the_profile_and_a_refused_one_changes_nothing(
    plane: InMemoryPlane, control_api: ControlApi, here: Here, tmp_path: Path
) -> None:
    del plane
    Path("wrong").write_text("wrong")
    assert here("login", control_api.url, "--name", "work", "--token-file", "token").code == 0
    assert here("cluster", "create", "shop").code == 0
    assert here("profile", "use", "local").code == 0
    before = {path: path.read_text() for path in files(tmp_path)}
    assert [path for path in before if path.parent.name == "keys"]

    refused = here("login", control_api.url, "--name", "work", "--token-file", "wrong", "-o", "json")
    unreadable = here("login", control_api.url, "--name", "work", "--token-file", "token", "--ca", "missing")
    after = {path: path.read_text() for path in files(tmp_path)}
    again = here("login", control_api.url, "--name", "work", "--token-file", "token")

    assert (refused.error["code"], unreadable.code, after) == ("PEN-5010", Exit.USAGE, before)
    assert again.code == 0, again.err
    assert before.items() <= {path: path.read_text() for path in files(tmp_path)}.items()
    assert [row["name"] for row in here("profile", "list", "-o", "json").data if row["current"]] == ["work"]


def test_a_profile_is_replaced_once_that_is_confirmed(here: Here) -> None:
    Path("token").write_text("t")
    words = ("profile", "create", "work", "--token-file", "token", "--url")
    assert here(*words, "http://h:1").code == 0

    refused = here(*words, "http://h:2")
    unchanged = here("profile", "show", "work", "-o", "json").data["url"]
    replaced = here(*words, "http://h:2", "--yes")

    assert (refused.code, unchanged, replaced.code) == (Exit.USAGE, "http://h:1", 0)
    assert here("profile", "show", "work", "-o", "json").data["url"] == "http://h:2"


def test_profiles_are_chosen_by_flag_variable_and_use(
    plane: InMemoryPlane, control_api: ControlApi, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    del plane
    for name, url in (("good", control_api.url), ("bad", f"http://{NOWHERE}")):
        assert here("profile", "create", name, "--url", url, "--token-file", "token").code == 0

    assert here("cluster", "list").code == Exit.UNHEALTHY, "the one created last is current"
    assert here("cluster", "list", "--profile", "good").code == 0
    monkeypatch.setenv("PENSTOCK_PROFILE", "good")
    assert here("cluster", "list").code == 0
    monkeypatch.delenv("PENSTOCK_PROFILE")
    assert here("profile", "use", "good").code == 0
    assert [row["name"] for row in here("profile", "list", "-o", "json").data if row["current"]] == ["good"]
    assert here("cluster", "list").code == 0
    assert here("cluster", "list", "--home", "elsewhere").code == Exit.NOT_FOUND, "a home is explicit"
    assert here("cluster", "list", "--profile", "good", "--home", "x").code == Exit.USAGE
    assert here("profile", "delete", "good").code == Exit.USAGE, "not confirmed"
    assert here("profile", "delete", "good", "--yes").code == 0
    assert here("profile", "show").err == "no profile: commands use the local platform\n"
    missing = here("cluster", "list", "--profile", "good", "-o", "json")
    assert (missing.code, missing.error["code"]) == (Exit.NOT_FOUND, "PEN-5042")


def test_of_several_control_planes_one_that_is_down_is_passed_over(
    plane: InMemoryPlane, control_api: ControlApi, here: Here
) -> None:
    del plane
    urls = f"http://{NOWHERE},{control_api.url}"

    assert here("login", urls, "--token-file", "token").code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["create", "p"],
        ["create", "p", "--bootstrap", "h:1"],
        ["create", "p", "--url", "ftp://h", "--token-file", "token"],
        ["create", "P/..", "--url", "http://h", "--token-file", "token"],
        ["create", "local", "--url", "http://h", "--token-file", "token"],
        ["create", "p", "--url", "http://h", "--token-file", "missing"],
        ["create", "p", "--url", "http://h", "--token-file", "token", "--ca", "missing"],
        ["create", "p", "--url", "http://h"],
    ],
    ids=" ".join,
)
def test_a_profile_that_cannot_be_used_is_not_created(
    here: Here, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    Path("token").write_text("t")

    assert here("profile", *words).code == Exit.USAGE
    assert here("profile", "list", "-o", "json").data == []


CLIENTS = {
    "java": ["security.protocol=SASL_SSL", "ssl.truststore.type=PEM", "ssl.truststore.location="],
    "librdkafka": ["security.protocol=SASL_SSL", "sasl.username=KEY", "ssl.ca.location="],
    "python": ["'security.protocol': 'SASL_SSL'", "'ssl.ca.location': "],
    "kcat": ["kcat -X 'bootstrap.servers=h:1'", "ssl.ca.location="],
    "spark": ["'kafka.security.protocol': 'SASL_SSL'"],
}


@pytest.mark.parametrize("client", CLIENTS)
def test_connect_prints_the_protocol_and_ca_of_the_profile(here: Here, client: str) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path("ca.pem")
    Path("secret").write_text("hidden")
    made = here(
        "profile", "create", "p", "--bootstrap", "h:1", "--key", "KEY", "--secret-file", "secret",
        "--tls", "--ca", "ca.pem",
    )  # fmt: skip

    ran = here("cluster", "connect", "--client", client)

    assert "hidden" not in made.out + made.err
    assert all(word in ran.out for word in CLIENTS[client]), ran.out
    assert "hidden" in ran.out


def test_a_dictionary_is_not_written_to_a_file_of_properties(here: Here) -> None:
    save_profile(Profile("p", bootstrap="h:1"), key=SavedKey("", "p", "h:1", "K", "s"))

    refused = here("cluster", "connect", "--profile", "p", "--client", "python", "--to", "c.properties")
    written = here("cluster", "connect", "--profile", "p", "--client", "kcat", "--to", "kcat.conf")

    assert (refused.code, Path("c.properties").exists()) == (Exit.USAGE, False)
    assert written.code == 0
    assert Path("kcat.conf").read_text().splitlines()[0] == "bootstrap.servers=h:1"


def test_connect_names_a_cluster_that_does_not_exist(
    plane: InMemoryPlane, control_api: ControlApi, here: Here
) -> None:
    del plane
    here("login", control_api.url, "--token-file", "token")

    ran = here("cluster", "connect", "typo", "-o", "json")

    assert (ran.code, ran.error["code"]) == (Exit.NOT_FOUND, "PEN-5001")
    assert "'typo' does not exist" in ran.error["message"]


@pytest.fixture
def no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call, and so every retry of one, is an error: what does not run is found out before."""

    def called(*_: Any, **__: Any) -> None:
        raise AssertionError("called")

    monkeypatch.setattr(ControlClient, "_once", called)
    monkeypatch.setattr(Client, "call", called)


COMMANDS = [
    ["cluster", "list"], ["cluster", "delete", "shop", "--yes"], ["acl", "list", "a", "--cluster", "shop"],
    ["topic", "list"], ["topic", "purge", "orders", "--yes"], ["group", "lag", "g"],
    ["produce", "orders", "x"],
    ["consume", "orders"], ["consume", "dead-letters", "list", "orders"], ["quota", "show", "shop"],
    ["usage", "top"], ["control", "status"], ["token", "list"], ["operation", "list"], ["key", "revoke", "k"],
    ["status"], ["audit", "tail"], ["logs"],
    ["account", "list", "--cluster", "shop"], ["balance", "list"], ["balance", "show"],
    ["broker", "list"], ["broker", "demote", "1"], ["cell", "list"], ["cell", "add"], ["control", "check"],
    ["fleet", "roll"], ["gateway", "list"], ["group", "list"],
    ["health", "show"], ["health", "incidents", "list"], ["health", "slo"],
    ["key", "list", "--cluster", "shop"], ["physical", "list"], ["physical", "show", "east"],
    ["token", "create", "t"], ["topic", "describe", "orders"], ["group", "describe", "g"],
    ["audit", "search"], ["debug", "bundle"],
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_without_a_running_platform_every_command_reports_at_once_how_to_start_it(
    here: Here, no_calls: None, words: list[str]
) -> None:
    del no_calls
    layout = Layout(Path(".penstock").absolute())
    save_key(layout, SavedKey("lkc-000000", "shop", NOWHERE, "K", "s"))
    (layout.secrets / "operator.token").write_text("t")
    (layout.home / "control.json").write_text(json.dumps({"url": f"http://{NOWHERE}", "pid": 1}))

    ran = here(*words, "-o", "json")

    assert (ran.code, ran.error["code"]) == (Exit.NOT_FOUND, "PEN-2011")
    assert "penstock up" in ran.error["hint"]


def test_a_remote_gateway_that_does_not_respond_is_named(here: Here, no_calls: None) -> None:
    del no_calls
    save_profile(Profile("p", bootstrap=NOWHERE), key=SavedKey("", "p", NOWHERE, "K", "s"))

    ran = here("topic", "list", "--profile", "p", "-o", "json")

    assert (ran.code, ran.error["code"]) == (Exit.UNHEALTHY, "PEN-5040")
    assert NOWHERE in ran.error["message"]
    lacks = here("cluster", "list", "--profile", "p", "-o", "json")
    assert (lacks.error["code"], "--url" in lacks.error["hint"]) == ("PEN-5043", True)


def test_an_http_server_with_an_untrusted_certificate_is_named(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "RETRY_SECONDS_MAX", 0.0)
    certificate = trustme.CA().issue_cert("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    Path("token").write_text("t")

    def serve(listener: socket.socket) -> None:
        try:
            while True:
                connection, _ = listener.accept()
                with connection:
                    try:
                        context.wrap_socket(connection, server_side=True).close()
                    except OSError:
                        continue
        except OSError:
            return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        ran = here("login", url, "--token-file", "token", "-o", "json")
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(30)

    assert (ran.code, ran.error["code"]) == (Exit.FAILED, "PEN-5044")
    assert "--ca" in ran.error["hint"]
    assert here("profile", "list", "-o", "json").data == []
