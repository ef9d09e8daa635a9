"""The commands that ask the control plane, against one on paper, over real HTTP."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import uvicorn

from penstock.balance.cells import CellId, NewCell
from penstock.cli import keyring
from penstock.cli.growing import add_cell
from penstock.cli.keyring import Kept, kept_for
from penstock.cli.remote import Control, local_url
from penstock.cli.settings import RemoteOptions
from penstock.control.api import make_api
from penstock.control.checker import Difference, Kind
from penstock.control.relieving import needs_cell
from penstock.control.rules import Rule
from penstock.control.running import Running, root_token, run_control
from penstock.control.service import Role
from penstock.fleet.layout import Layout
from penstock.fleet.local import remembered_document
from penstock.fleet.supervisor import sole_supervisor
from penstock.model.entities import ApiKey, LogicalCluster, Operation, OperationState, PhysicalCluster
from penstock.model.errors import Exit
from penstock.model.errors.control import (
    CellSlow,
    ControlUnreachable,
    KeyNotHere,
    OperationFailed,
    OperationSlow,
    ProblemAnswered,
    TokenRefused,
)
from penstock.model.errors.gateway import ListenFailed
from penstock.model.errors.settings import SettingInvalid, UsageInvalid
from penstock.model.events import QuotaShares
from penstock.model.ids import LogicalClusterId, kafka_user
from tests.cli.test_growing import fleet_of
from tests.control.ground import PHYSICAL
from tests.control.paper_plane import ROOT, PaperPlane
from tests.ground.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastapi import FastAPI

    from tests.ground.command import Ran


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """A thread has none."""


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[uvicorn.Server, str]]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = _Server(uvicorn.Config(make_api(), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    wait_for(lambda: server.started, what="the API")
    yield server, f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(30)
    listener.close()


@pytest.fixture
def plane(
    served: tuple[uvicorn.Server, str], here: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> PaperPlane:
    del here  # which cleans the environment first
    server, url = served
    made = PaperPlane()
    cast("FastAPI", server.config.app).state.plane = made  # the server knows it as any application
    monkeypatch.setenv("PENSTOCK_URL", url)
    monkeypatch.setenv("PENSTOCK_TOKEN", ROOT)
    return made


def test_a_cluster_is_made_from_what_its_workload_needs(plane: PaperPlane, here: Callable[..., Ran]) -> None:
    ran = here("cluster", "create", "shop", "--ingress", "20MB/s", "--partitions", "300", "-o", "json")

    cluster = plane.registry.cluster("shop")
    assert ran.code == 0, ran.err
    assert (ran.data["id"], ran.data["units"], ran.data["state"]) == (cluster.id, 4, "ready")
    kept = kept_for(Layout(Path(".penstock").absolute()), "shop")
    assert (kept.key, kept.secret) == (ran.data["key"], ran.data["secret"])
    assert plane.registry.count(ApiKey) == 1


@pytest.mark.parametrize(
    ("client", "words"),
    [
        ("java", ["sasl.jaas.config=", "PlainLoginModule"]),
        ("python", ["'sasl.password'", "'bootstrap.servers': '127.0.0.1:28001'"]),
        ("kcat", ["kcat -X bootstrap.servers=127.0.0.1:28001", "-L"]),
        ("spark", ["'kafka.sasl.jaas.config'"]),
    ],
)
def test_settings_are_printed_as_each_client_takes_them(
    plane: PaperPlane, here: Callable[..., Ran], client: str, words: list[str]
) -> None:
    del plane
    here("cluster", "create", "shop")

    ran = here("cluster", "connect", "--client", client)

    assert all(word in ran.out for word in words), ran.out


def test_clusters_are_listed_shown_changed_moved_and_deleted(
    plane: PaperPlane, here: Callable[..., Ran]
) -> None:
    here("cluster", "create", "shop", "--no-key", "--allow", "10.0.0.0/8")
    before = plane.registry.cluster("shop").cell

    assert [row["name"] for row in here("cluster", "list", "-o", "json").data] == ["shop"]
    assert "allow=10.0.0.0/8" in here("cluster", "show", "shop").out
    assert here("cluster", "update", "shop", "--units", "2", "--deny", "10.1.0.0/16").code == 0
    after = plane.registry.cluster("shop")
    assert (after.units, after.network.allow, after.network.deny) == (2, ("10.0.0.0/8",), ("10.1.0.0/16",))
    assert here("cluster", "move", "shop").code == 0
    assert plane.registry.cluster("shop").cell != before
    assert here("cluster", "delete", "shop").code == 0
    assert plane.registry.count(LogicalCluster) == 0


def test_accounts_grants_and_keys(plane: PaperPlane, here: Callable[..., Ran]) -> None:
    here("cluster", "create", "shop")
    assert here("account", "create", "billing", "--cluster", "shop").code == 0
    assert here("acl", "grant", "billing", "read", "orders", "--cluster", "shop").code == 0
    granted = here("acl", "list", "billing", "--cluster", "shop", "-o", "json").data
    right = {"resource": "topic", "name": "orders", "operation": "read", "pattern": "literal"}
    assert granted == [right | {"permission": "allow", "origin": "granted"}]
    assert here("acl", "revoke", "billing", "read", "orders", "--cluster", "shop").code == 0
    assert here("acl", "list", "billing", "--cluster", "shop", "-o", "json").data == []
    again = here("acl", "revoke", "billing", "read", "orders", "--cluster", "shop")
    assert (again.code, "read on literal topic orders" in again.err) == (Exit.NOT_FOUND, True)
    made = here("key", "create", "--cluster", "shop", "--account", "billing", "-o", "json").data
    rotated = here("key", "rotate", made["key"], "-o", "json").data
    layout = Layout(Path(".penstock").absolute())
    assert kept_for(layout, None).key == rotated["key"]
    assert len(here("key", "list", "--cluster", "shop", "-o", "json").data) == 2
    assert here("key", "revoke", rotated["key"]).code == 0
    assert keyring.every(layout) == []
    assert here("account", "delete", "billing", "--cluster", "shop").code == 0
    missing = here("account", "delete", "billing", "--cluster", "shop")
    assert (missing.code, "PEN-5001" in missing.err) == (Exit.NOT_FOUND, True)
    assert "owner" in here("account", "list", "--cluster", "shop").out
    assert plane.registry.count(ApiKey) == 1


def test_a_rule_that_the_tenant_made_is_listed_as_its_own(
    plane: PaperPlane, here: Callable[..., Ran]
) -> None:
    here("cluster", "create", "shop", "--no-key")
    (owner,) = plane.registry.accounts(plane.registry.cluster("shop").id)
    user = kafka_user(owner.tenant, owner.account)
    plane.made = (Rule(user, "topic", f"{owner.tenant}_orders", "literal", "write", "deny"),)

    listed = here("acl", "list", "owner", "--cluster", "shop")

    rows = [line.split() for line in listed.out.splitlines()[1:]]
    assert ["topic", "orders", "literal", "write", "deny", "made", "by", "the", "tenant"] in rows
    assert ["group", "*", "literal", "all", "allow", "role"] in rows


def test_operations_cells_and_the_control_plane_are_shown(
    plane: PaperPlane, here: Callable[..., Ran]
) -> None:
    here("cluster", "create", "shop", "--no-key")
    (operation,) = here("operation", "list", "-o", "json").data

    assert here("operation", "show", operation["id"]).code == 0
    assert here("operation", "wait", operation["id"], "-o", "json").data["state"] == "done"
    assert [cell["id"] for cell in here("cell", "list", "-o", "json").data] == ["cell-1", "cell-2"]
    assert here("control", "status", "-o", "json").data["role"] == "active"
    token = here("control", "token", "ci", "--role", "viewer", "-o", "json").data
    assert len(token["token"]) == 48
    assert plane.registry.count(Operation) == 2


def test_a_cell_list_says_what_is_needed_and_what_would_be_done(
    plane: PaperPlane, here: Callable[..., Ran]
) -> None:
    wanted = NewCell(3, "cell-1 full", (CellId("cell-1"),))
    plane.paper.accept(needs_cell(plane.registry, plane.paper.ask(), PHYSICAL, wanted, "buy three"))

    ran = here("cell", "list")

    assert "needs-cell" in ran.out
    assert f"{PHYSICAL}: cell-1 full" in ran.err
    assert "buy three" in ran.err


def test_a_cell_that_does_not_come_is_said_to_be_slow(plane: PaperPlane, here: Callable[..., Ran]) -> None:
    del plane, here
    layout = Layout(Path(".penstock").absolute())
    fleet_of(layout, {"port": 0})
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        with sole_supervisor(layout), pytest.raises(CellSlow):
            add_cell(RemoteOptions(home=layout.home), seconds=0)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert heard == [signal.SIGUSR1]
    (shape,) = (remembered_document(layout) or {})["clusters"]
    assert shape["brokers"] == 6


def test_a_dedicated_cluster_is_made_on_an_adopted_one(plane: PaperPlane, here: Callable[..., Ran]) -> None:
    plane.not_empty = ("west",)
    words = ("cluster", "create", "alone", "--tenancy", "dedicated", "--no-key", "--adopted")

    refused = here(*words, "west")

    assert (refused.code, "PEN-2027" in refused.err) == (Exit.FAILED, True)
    assert here(*words, "east").code == 0
    assert "east" in {physical.adopted for physical in plane.registry.all(PhysicalCluster)}


def test_what_differs_is_an_exit_code(plane: PaperPlane, here: Callable[..., Ran]) -> None:
    assert here("control", "check").code == Exit.FINE
    plane.found = (Difference(Kind.MISSING, "user", "u"),)

    ran = here("control", "check", "-o", "json")

    assert (ran.code, ran.error["code"]) == (Exit.UNHEALTHY, "PEN-5021")
    assert here("control", "check", "--repair").code == Exit.FINE


def test_the_registry_is_exported_and_imported(plane: PaperPlane, here: Callable[..., Ran]) -> None:
    here("cluster", "create", "shop", "--no-key")
    assert here("control", "export", "registry.jsonl").code == 0
    here("cluster", "delete", "shop")

    ran = here("control", "import", "registry.jsonl")

    assert ran.code == 0, ran.err
    assert plane.registry.cluster("shop").units == 1
    assert here("control", "import", "nothing.jsonl", "-o", "json").error["code"] == "PEN-1003"
    assert here("control", "import", "registry.jsonl", "-o", "json").error["code"] == "PEN-5019"


MANIFEST = """\
kind: cluster
name: shop
units: 2
network: {allow: [10.0.0.0/8]}
---
kind: account
cluster: shop
name: billing
grants: [{resource: topic, name: orders, operation: read}]
"""


def test_manifests_are_applied_and_then_they_change_nothing(
    plane: PaperPlane, here: Callable[..., Ran]
) -> None:
    Path("shop.yaml").write_text(MANIFEST)
    dry = here("apply", "-f", "shop.yaml", "--dry-run")
    assert dry.out.splitlines()[:3] == ["cluster shop: create", "  + name: shop", "  + units: 2"]
    assert plane.registry.count(LogicalCluster) == 0
    assert here("apply", "-f", "shop.yaml").code == 0
    count = plane.registry.count(Operation)

    again = here("apply", "-f", "shop.yaml", "-o", "json")

    assert [row["action"] for row in again.data] == ["as it is", "as it is"]
    assert plane.registry.count(Operation) == count
    Path("shop.yaml").write_text(MANIFEST.replace("units: 2", "units: 3"))
    assert "  - units: 2\n  + units: 3" in here("apply", "-f", "shop.yaml").out
    assert plane.registry.cluster("shop").units == 3


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("kind: planet\nname: x", "PEN-1002"),
        ("just words", "PEN-1002"),
        ("kind: cluster\nname: x\ncolour: blue", "PEN-1001"),
        ("kind: account\nname: x", "PEN-1002"),
        ("a: [", "PEN-1003"),
        ("kind: cluster\nname: x\nadopted: east", "PEN-1002"),
        ("kind: cluster\nname: x\ntenancy: shared\nadopted: east", "PEN-1002"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused_by_name(
    plane: PaperPlane, here: Callable[..., Ran], text: str, code: str
) -> None:
    Path("bad.yaml").write_text(text)

    assert here("apply", "-f", "bad.yaml", "-o", "json").error["code"] == code
    assert plane.registry.count(LogicalCluster) == 0


def test_a_manifest_puts_a_dedicated_cluster_on_an_adopted_one(
    plane: PaperPlane, here: Callable[..., Ran]
) -> None:
    text = "kind: cluster\nname: alone\ntenancy: dedicated\nadopted: east\n"
    Path("alone.yaml").write_text(text)

    dry = here("apply", "-f", "alone.yaml", "--dry-run")
    assert dry.out.splitlines()[0] == "cluster alone: create"
    assert "  + adopted: east" in dry.out.splitlines()
    assert plane.registry.count(LogicalCluster) == 0
    assert here("apply", "-f", "alone.yaml").code == 0
    assert "east" in {physical.adopted for physical in plane.registry.all(PhysicalCluster)}
    assert "as it is" in here("apply", "-f", "alone.yaml").out

    Path("alone.yaml").write_text(text.replace("east", "west"))
    elsewhere = here("apply", "-f", "alone.yaml", "-o", "json").error
    assert (elsewhere["code"], "cannot be changed" in elsewhere["message"]) == ("PEN-1002", True)
    plane.not_empty = ("west",)
    Path("alone.yaml").write_text(text.replace("east", "west").replace("alone", "second"))
    assert here("apply", "-f", "alone.yaml", "-o", "json").error["code"] == "PEN-2027"


def test_what_cannot_be_changed_is_said(plane: PaperPlane, here: Callable[..., Ran]) -> None:
    del plane
    Path("shop.yaml").write_text(MANIFEST)
    here("apply", "-f", "shop.yaml")
    Path("shop.yaml").write_text("kind: cluster\nname: shop\nzones: single\n")

    ran = here("apply", "-f", "shop.yaml", "-o", "json")

    assert ran.error["code"] == "PEN-1002"
    assert "cannot be changed" in ran.error["message"]


def test_an_error_of_the_control_plane_is_told_with_its_own_code(
    plane: PaperPlane, here: Callable[..., Ran]
) -> None:
    del plane
    ran = here("cluster", "show", "nobody", "-o", "json")

    assert (ran.code, ran.error["code"]) == (Exit.NOT_FOUND, "PEN-5001")
    assert here("cluster", "create", "shop", "--units", "99", "-o", "json").error["code"] == "PEN-5004"


def test_without_a_token_nothing_is_asked(here: Callable[..., Ran]) -> None:
    assert here("cluster", "list", "--url", "http://127.0.0.1:1", "-o", "json").error["code"] == "PEN-5010"
    with pytest.raises(TokenRefused):
        Control("http://127.0.0.1:1", "").get("/clusters")


def test_where_nothing_was_ever_started_that_is_said(here: Callable[..., Ran]) -> None:
    ran = here("cluster", "list")

    assert (ran.code, "penstock up" in ran.err) == (Exit.NOT_FOUND, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cluster", "create", "My Shop"), "'My Shop' is no name: up to 63 small letters"),
        (
            ("cluster", "create", "big", "--ingress", "20GB/s"),
            "4000 capacity units are too many for a shared",
        ),
        (("cluster", "create", "shop"), "the name 'shop' is taken by another logical cluster"),
        (("cluster", "update", "shop"), "nothing to change"),
        (("cluster", "update", "shop", "--units", "1"), "nothing to change"),
        (("consume", "orders", "--cluster", "shop", "--count", "-1"), "--count is -1"),
        (("account", "create", "owner", "--cluster", "shop"), "taken by another service account"),
    ],
)
def test_what_people_mistype_is_answered_in_their_own_words(
    plane: PaperPlane, here: Callable[..., Ran], words: tuple[str, ...], said: str
) -> None:
    here("cluster", "create", "shop")
    count = plane.registry.count(Operation)

    ran = here(*words)

    assert ran.code in (Exit.FAILED, Exit.USAGE)
    assert said in ran.err
    assert plane.registry.count(Operation) == count


def test_a_new_cluster_comes_with_the_commands_that_use_it(
    plane: PaperPlane, here: Callable[..., Ran]
) -> None:
    del plane

    said = here("cluster", "create", "shop").err

    assert "topic create orders --cluster shop" in said
    assert "produce orders hello --cluster shop" in said
    assert here("account", "create", "app", "--cluster", "shop", "-o", "json").data["ready"] is True


def test_who_answers_no_problem_is_no_control_plane(served: tuple[uvicorn.Server, str]) -> None:
    for url in ("ftp://x", "http://127.0.0.1:1", f"{served[1]}/elsewhere\x20"):
        with pytest.raises((ControlUnreachable, ProblemAnswered)):
            Control(url, "t")._once("GET", "/clusters", None, {})


def test_an_operation_that_fails_or_takes_too_long_is_an_error(plane: PaperPlane) -> None:
    del plane
    running: dict[str, object] = {
        "id": "op-1",
        "action": "cluster.create",
        "state": "running",
        "step": "rights",
        "detail": "1 of 2",
    }
    running |= {"steps_done": 0, "steps_total": 2, "error": ""}
    with pytest.raises(OperationSlow):
        Control("http://127.0.0.1:1", "t").wait(dict(running), seconds=-1)

    with pytest.raises(OperationFailed):
        Control("http://127.0.0.1:1", "t").wait(
            running | {"state": str(OperationState.FAILED), "error": "no"}
        )


def test_one_that_is_not_active_sends_on_to_the_one_that_is(
    plane: PaperPlane, served: tuple[uvicorn.Server, str]
) -> None:
    plane.role = Role.STANDBY
    control = Control(served[1], ROOT)

    with pytest.raises(ProblemAnswered) as caught:
        control._once("POST", "/clusters", {"name": "shop"}, {})

    assert caught.value.facts["active"] == "http://elsewhere:1"
    assert caught.value.retriable


def test_a_key_is_found_by_name_or_because_it_is_the_only_one(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with pytest.raises(KeyNotHere):
        kept_for(layout, None)
    keyring.keep(layout, Kept("lkc-000001", "one", "b:1", "K", "S"))
    assert kept_for(layout, None).name == "one"
    path = keyring.keep(layout, Kept("lkc-000002", "two", "b:1", "K", "S"))

    assert kept_for(layout, "two").cluster == "lkc-000002"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageInvalid):
        kept_for(layout, None)
    with pytest.raises(KeyNotHere):
        kept_for(layout, "three")


def test_where_the_local_control_plane_is(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert local_url(layout) == "http://127.0.0.1:28080"

    (tmp_path / "control.json").write_text(json.dumps({"url": "http://127.0.0.1:5"}))

    assert local_url(layout) == "http://127.0.0.1:5"


def test_the_first_token_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    layout = Layout(tmp_path)

    assert root_token(layout) == root_token(layout)
    assert (layout.secrets / "operator.token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:x", ":80", "127.0.0.1:99999"])
async def test_a_control_plane_needs_an_address(tmp_path: Path, listen: str) -> None:
    with pytest.raises(SettingInvalid):
        await run_control(Running(Layout(tmp_path), listen, 6.0), told=print)


async def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenFailed):
            await run_control(Running(Layout(tmp_path), f"127.0.0.1:{port}", 6.0), told=print)


def shares_of(cluster: str, used: float) -> QuotaShares:
    split = {"gw-1": {"ingress_bytes": 5e6}}
    return QuotaShares(
        tenant=LogicalClusterId(cluster),
        epoch=1,
        sequence=1,
        time_ms=int(time.time() * 1000),
        valid_ms=600_000,
        quota={"ingress_bytes": 5e6},
        shares=split,
        limits=split,
        used={"gw-1": {"ingress_bytes": used}},
        throttled={"gw-1": {"ingress_bytes": 0.25}},
        levels={"connections": 7},
    )


def test_a_quota_is_set_shown_and_given_back(plane: PaperPlane, here: Callable[..., Ran]) -> None:
    here("cluster", "create", "shop", "--no-key")
    cluster = plane.registry.cluster("shop")
    plane.shares[cluster.tenant] = shares_of(cluster.id, 1_500_000.0)

    assert here("quota", "set", "shop", "--ingress", "2MB/s", "--requests", "70").code == 0
    assert here("quota", "set", "shop", "--requests", "default").code == 0
    ran = here("quota", "show", "shop")

    assert plane.registry.cluster("shop").overrides == {"ingress_bytes": 2e6}
    for word in ("ingress", "2M", "1.5M", "gw-1", "25%"):
        assert word in ran.out
    assert here("quota", "show", "shop", "-o", "json").data["gateways"][0]["share"] == 5e6


def test_a_quota_is_not_set_to_nothing(plane: PaperPlane, here: Callable[..., Ran]) -> None:
    del plane
    here("cluster", "create", "shop", "--no-key")

    assert here("quota", "set", "shop").code == Exit.USAGE
    assert here("quota", "set", "shop", "--ingress", "much").code == Exit.USAGE


def test_who_uses_most_is_shown_first(plane: PaperPlane, here: Callable[..., Ran]) -> None:
    for name, used in (("quiet", 1e4), ("busy", 4e6)):
        here("cluster", "create", name, "--no-key")
        cluster = plane.registry.cluster(name)
        plane.shares[cluster.tenant] = shares_of(cluster.id, used)

    ran = here("usage", "top", "--by", "ingress")

    assert ran.out.index("busy") < ran.out.index("quiet")
    assert "80%" in ran.out
    assert [row["name"] for row in here("usage", "top", "-n", "1", "-o", "json").data] == ["busy"]
