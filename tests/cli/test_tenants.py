"""The commands that call the control plane, against one in memory, over real HTTP."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.balance.cells import CellId, NewCell
from penstock.balance.plan_document import PlanState
from penstock.control.checker import Difference, Kind
from penstock.control.load.planning import returning_leadership
from penstock.control.load.relief_service import needs_cell
from penstock.control.physical.addresses import root_token
from penstock.control.process import ControlOptions, run_control
from penstock.fleet.layout import Layout
from penstock.model.entities import ApiKey, LogicalCluster, Operation, PhysicalCluster
from penstock.model.errors import Exit
from penstock.model.errors.gateway import ListenFailed
from penstock.model.errors.settings import SettingInvalid
from penstock.model.events import QuotaShares
from penstock.model.ids import LogicalClusterId, kafka_user
from penstock.model.tenant_acls import AclEntry
from penstock.platform.keyring import saved_key, saved_keys
from tests.control.in_memory_control import PHYSICAL
from tests.control.test_planning import reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.control.in_memory_plane import InMemoryPlane
    from tests.harness.command import CommandResult


def test_a_cluster_is_made_from_what_its_workload_needs(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    ran = here("cluster", "create", "shop", "--ingress", "20MB/s", "--partitions", "300", "-o", "json")

    cluster = plane.registry.cluster("shop")
    assert ran.code == 0, ran.err
    assert (ran.data["id"], ran.data["units"], ran.data["state"]) == (cluster.id, 4, "ready")
    kept = saved_key(Layout(Path(".penstock").absolute()), "shop")
    assert (kept.key, kept.secret) == (ran.data["key"], ran.data["secret"])
    assert plane.registry.count(ApiKey) == 1


def test_a_request_that_is_rounded_up_is_reported(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    del plane

    rounded = here("cluster", "create", "shop", "--ingress", "500KB/s", "--no-key")
    exact = here("cluster", "create", "exact", "--ingress", "5MB/s", "--no-key")

    assert "rounded up to 1 capacity unit: ingress 500KB/s to 5MB/s" in rounded.err
    assert "quota set shop --ingress 500KB/s" in rounded.err
    assert "rounded" not in exact.err


def test_a_cluster_is_shown_in_words_of_the_command_line(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    del plane
    here("cluster", "create", "shop", "--no-key")

    rows = dict(line.split(None, 1) for line in here("cluster", "show", "shop").out.splitlines())

    assert (rows["tls"].strip(), rows["auto_create_topics"].strip()) == ("no", "no")
    assert {rows[name].strip() for name in ("adopted", "network", "labels")} == {"-"}
    assert "ingress_bytes=5000000," in rows["quota"]


def test_tokens_are_created_listed_and_deleted(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    del plane
    assert here("token", "create", "ci", "--role", "viewer").code == 0
    names = [row["name"] for row in here("token", "list", "-o", "json").data]
    assert "ci" in names
    assert here("token", "delete", "ci").code == Exit.USAGE, "not confirmed"
    assert here("token", "delete", "ci", "--yes").code == 0
    assert here("token", "delete", "ci", "--yes").code == Exit.NOT_FOUND


def test_what_deletes_needs_a_confirmation(plane: InMemoryPlane, here: Callable[..., CommandResult]) -> None:
    here("cluster", "create", "shop", "--no-key")

    ran = here("cluster", "delete", "shop")

    assert (ran.code, "Confirm with --yes" in ran.err) == (Exit.USAGE, True)
    assert plane.registry.count(LogicalCluster) == 1


@pytest.mark.parametrize(
    ("client", "words"),
    [
        ("java", ["sasl.jaas.config=", "PlainLoginModule"]),
        ("python", ["'sasl.password'", "'bootstrap.servers': '127.0.0.1:28001'"]),
        ("kcat", ["kcat -X 'bootstrap.servers=127.0.0.1:28001'", "-L"]),
        ("spark", ["'kafka.sasl.jaas.config'"]),
    ],
)
def test_settings_are_printed_as_each_client_takes_them(
    plane: InMemoryPlane, here: Callable[..., CommandResult], client: str, words: list[str]
) -> None:
    del plane
    here("cluster", "create", "shop")

    ran = here("cluster", "connect", "--client", client)

    assert all(word in ran.out for word in words), ran.out


def test_settings_written_to_a_file_are_readable_by_their_owner_alone(
    plane: InMemoryPlane, here: Callable[..., CommandResult], tmp_path: Path
) -> None:
    del plane
    here("cluster", "create", "shop")

    ran = here("cluster", "connect", "--to", "shop.properties")

    file = tmp_path / "shop.properties"
    assert (ran.code, ran.out) == (0, "")
    assert "PlainLoginModule" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert here("cluster", "connect", "--to", "missing/shop.properties").code == 2


def test_clusters_are_listed_shown_changed_moved_and_deleted(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    here("cluster", "create", "shop", "--no-key", "--allow", "10.0.0.0/8")
    before = plane.registry.cluster("shop").cell

    assert [row["name"] for row in here("cluster", "list", "-o", "json").data] == ["shop"]
    assert "allow=10.0.0.0/8" in here("cluster", "show", "shop").out
    assert here("cluster", "update", "shop", "--units", "2", "--deny", "10.1.0.0/16").code == 0
    after = plane.registry.cluster("shop")
    assert (after.units, after.network.allow, after.network.deny) == (2, ("10.0.0.0/8",), ("10.1.0.0/16",))
    assert here("cluster", "update", "shop", "--auto-create-topics").code == 0
    assert plane.registry.cluster("shop").auto_create_topics
    assert here("cluster", "update", "shop", "--no-auto-create-topics").code == 0
    assert not plane.registry.cluster("shop").auto_create_topics
    assert here("cluster", "move", "shop").code == 0
    assert plane.registry.cluster("shop").cell != before
    assert here("cluster", "delete", "shop", "--yes").code == 0
    assert plane.registry.count(LogicalCluster) == 0


def test_accounts_grants_and_keys(plane: InMemoryPlane, here: Callable[..., CommandResult]) -> None:
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
    rotation = here("key", "rotate", made["key"], "-o", "json")
    assert f"{made['key']} stays valid for 86400 s" in rotation.err
    rotated = rotation.data
    layout = Layout(Path(".penstock").absolute())
    assert saved_key(layout, None).key == rotated["key"]
    assert len(here("key", "list", "--cluster", "shop", "-o", "json").data) == 2
    assert here("key", "revoke", rotated["key"], "--yes").code == 0
    assert saved_keys(layout) == []
    assert here("account", "delete", "billing", "--yes", "--cluster", "shop").code == 0
    missing = here("account", "delete", "billing", "--yes", "--cluster", "shop")
    assert (missing.code, "PEN-5001" in missing.err) == (Exit.NOT_FOUND, True)
    assert "owner" in here("account", "list", "--cluster", "shop").out
    assert plane.registry.count(ApiKey) == 1


def test_an_acl_that_the_tenant_created_is_listed_with_its_origin(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    here("cluster", "create", "shop", "--no-key")
    (owner,) = plane.registry.accounts(plane.registry.cluster("shop").id)
    user = kafka_user(owner.tenant, owner.account)
    plane.created_acls = (AclEntry(user, "topic", f"{owner.tenant}_orders", "literal", "write", "deny"),)

    listed = here("acl", "list", "owner", "--cluster", "shop")

    rows = [line.split() for line in listed.out.splitlines()[1:]]
    assert ["topic", "orders", "literal", "write", "deny", "created", "by", "the", "tenant"] in rows
    assert ["group", "*", "literal", "all", "allow", "role"] in rows


def test_operations_cells_and_the_control_plane_are_shown(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    here("cluster", "create", "shop", "--no-key")
    (operation,) = here("operation", "list", "-o", "json").data

    assert here("operation", "show", operation["id"]).code == 0
    assert here("operation", "wait", operation["id"], "-o", "json").data["state"] == "done"
    assert [cell["id"] for cell in here("cell", "list", "-o", "json").data] == ["cell-1", "cell-2"]
    assert here("control", "status", "-o", "json").data["role"] == "active"
    token = here("token", "create", "ci", "--role", "viewer", "-o", "json").data
    assert len(token["token"]) == 48
    assert plane.registry.count(Operation) == 2


def test_leadership_leaves_a_demoted_broker_and_returns_once_it_is_restored(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    orders, other = {("orders", 0): (2, 1)}, {("orders", 1): (3, 1)}
    plane.reading = reading(orders | other)
    plane.seen = plane.reading.seen

    demoted = here("broker", "demote", "2", "--no-wait")

    assert demoted.code == 0, demoted.err
    (plan,) = plane.plans.documents.headers
    (move,) = plane.plans.need(plan).moves
    assert (move.topic, move.partition, move.before, move.after) == ("orders", 0, (2, 1), (1, 2))
    assert f"leadership of 1 partition moves: {plan}" in demoted.err
    runs = [each for each in plane.registry.all(Operation) if each.action == "plan.run"]
    assert [(each.subject, each.actor) for each in runs] == [(plan, "operator/root")]

    document = plane.plans.need(plan)
    plane.plans.add(replace(document, header=replace(document.header, state=PlanState.DONE)))
    plane.reading = reading({("orders", 0): (1, 2)} | other)
    plane.seen = plane.reading.seen
    assert here("broker", "restore", "2", "--no-wait").code == 0

    (back,) = set(plane.plans.documents.headers) - {plan}
    (move,) = plane.plans.need(back).moves
    assert (move.before, move.after) == ((1, 2), (2, 1))
    assert move.reason == "leadership returns to broker 2"
    moved = reading({("orders", 0): (3, 2)} | other).seen  # since then
    assert returning_leadership(plane.plans.documents, moved, PHYSICAL, 2) == []
    assert returning_leadership(plane.plans.documents, plane.seen, PHYSICAL, 3) == []


def test_a_broker_is_demoted_and_cordoned_until_it_is_restored(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    plane.reading = reading({("orders", 0): (1, 2)})
    demoted = here("broker", "demote", "2", "--reason", "slow disk")
    assert demoted.code == 0, demoted.err
    assert here("broker", "cordon", "2").code == 0

    listed, shown = here("broker", "list"), here("broker", "show", "2")

    assert ["2", "b", "cell-1", "127.0.0.1:9002", "demoted,cordoned"] in [
        line.split() for line in listed.out.splitlines()
    ]
    assert "slow disk" in shown.out
    assert "operator/root" in shown.out
    assert here("broker", "restore", "2").code == 0
    assert here("broker", "uncordon", "2", "--physical-cluster", PHYSICAL).code == 0
    assert "is normal" in here("broker", "show", "2").out
    again = here("broker", "restore", "2")
    assert (again.code, "PEN-5412" in again.err) == (1, True)
    assert plane.registry.broker_states(PHYSICAL) == {}


def test_a_cell_list_shows_what_is_needed_and_the_remedy(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    needed = NewCell(3, "cell-1 full", (CellId("cell-1"),))
    plane.memory.accept(needs_cell(plane.registry, plane.memory.context(), PHYSICAL, needed, "buy three"))

    ran = here("cell", "list")

    assert "needs-cell" in ran.out
    assert f"{PHYSICAL}: cell-1 full" in ran.err
    assert "buy three" in ran.err


def test_a_dedicated_cluster_is_made_on_an_adopted_one(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    plane.not_empty = ("west",)
    words = ("cluster", "create", "alone", "--tenancy", "dedicated", "--no-key", "--adopted")

    refused = here(*words, "west")

    assert (refused.code, "PEN-2027" in refused.err) == (Exit.FAILED, True)
    assert here(*words, "east").code == 0
    assert "east" in {physical.adopted for physical in plane.registry.all(PhysicalCluster)}


def test_what_differs_is_an_exit_code(plane: InMemoryPlane, here: Callable[..., CommandResult]) -> None:
    assert here("control", "check").code == Exit.FINE
    plane.differences = (Difference(Kind.MISSING, "user", "u"),)

    ran = here("control", "check", "-o", "json")

    assert (ran.code, ran.error["code"]) == (Exit.UNHEALTHY, "PEN-5021")
    assert here("control", "check", "--repair").code == Exit.FINE


def test_the_registry_is_exported_and_imported(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    here("cluster", "create", "shop", "--no-key")
    assert here("control", "export", "registry.jsonl").code == 0
    here("cluster", "delete", "shop", "--yes")

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
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    Path("shop.yaml").write_text(MANIFEST)
    dry = here("apply", "-f", "shop.yaml", "--dry-run")
    assert dry.out.splitlines()[:3] == ["cluster shop: create", "  + name: shop", "  + units: 2"]
    assert plane.registry.count(LogicalCluster) == 0
    assert here("apply", "-f", "shop.yaml").code == 0
    count = plane.registry.count(Operation)

    again = here("apply", "-f", "shop.yaml", "-o", "json")

    assert [row["action"] for row in again.data] == ["unchanged", "unchanged"]
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
        ("kind: cluster\nname: x\nadopted: east", "PEN-5001"),
        ("kind: cluster\nname: x\ntenancy: shared\nadopted: east", "PEN-5001"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused_by_name(
    plane: InMemoryPlane, here: Callable[..., CommandResult], text: str, code: str
) -> None:
    Path("bad.yaml").write_text(text)

    assert here("apply", "-f", "bad.yaml", "-o", "json").error["code"] == code
    assert plane.registry.count(LogicalCluster) == 0


def test_a_manifest_puts_a_dedicated_cluster_on_an_adopted_one(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    text = "kind: cluster\nname: alone\ntenancy: dedicated\nadopted: east\n"
    Path("alone.yaml").write_text(text)

    dry = here("apply", "-f", "alone.yaml", "--dry-run")
    assert dry.out.splitlines()[0] == "cluster alone: create"
    assert "  + adopted: east" in dry.out.splitlines()
    assert plane.registry.count(LogicalCluster) == 0
    assert here("apply", "-f", "alone.yaml").code == 0
    assert "east" in {physical.adopted for physical in plane.registry.all(PhysicalCluster)}
    assert "unchanged" in here("apply", "-f", "alone.yaml").out

    Path("alone.yaml").write_text(text.replace("east", "west"))
    elsewhere = here("apply", "-f", "alone.yaml", "-o", "json").error
    assert (elsewhere["code"], "cannot be changed" in elsewhere["message"]) == ("PEN-1002", True)
    plane.not_empty = ("west",)
    Path("alone.yaml").write_text(text.replace("east", "west").replace("alone", "second"))
    assert here("apply", "-f", "alone.yaml", "-o", "json").error["code"] == "PEN-2027"


def test_a_fixed_value_is_refused_by_name(plane: InMemoryPlane, here: Callable[..., CommandResult]) -> None:
    del plane
    Path("shop.yaml").write_text(MANIFEST)
    here("apply", "-f", "shop.yaml")
    Path("shop.yaml").write_text("kind: cluster\nname: shop\nzones: single\n")

    ran = here("apply", "-f", "shop.yaml", "-o", "json")

    assert ran.error["code"] == "PEN-1002"
    assert "cannot be changed" in ran.error["message"]


def test_an_error_of_the_control_plane_keeps_its_code(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    del plane
    ran = here("cluster", "show", "nobody", "-o", "json")

    assert (ran.code, ran.error["code"]) == (Exit.NOT_FOUND, "PEN-5001")
    assert here("cluster", "create", "shop", "--units", "99", "-o", "json").error["code"] == "PEN-5004"


def test_without_a_token_nothing_is_called(here: Callable[..., CommandResult]) -> None:
    assert here("cluster", "list", "--url", "http://127.0.0.1:1", "-o", "json").error["code"] == "PEN-5010"


def test_a_home_that_was_never_started_is_named(here: Callable[..., CommandResult]) -> None:
    ran = here("cluster", "list")

    assert (ran.code, "penstock up" in ran.err) == (Exit.NOT_FOUND, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("cluster", "create", "My Shop"), "'My Shop' is not a valid name: use 1 to 63 of a-z"),
        (
            ("cluster", "create", "big", "--ingress", "20GB/s"),
            "4000 capacity units are too many for a shared",
        ),
        (("cluster", "create", "shop"), "the name 'shop' is used by another logical cluster"),
        (("cluster", "update", "shop"), "nothing to change"),
        (("cluster", "update", "shop", "--units", "1"), "nothing to change"),
        (("consume", "orders", "--cluster", "shop", "--count", "-1"), "--count is -1"),
        (("account", "create", "owner", "--cluster", "shop"), "used by another service account"),
    ],
)
def test_mistyped_values_are_named_in_the_error(
    plane: InMemoryPlane, here: Callable[..., CommandResult], words: tuple[str, ...], message: str
) -> None:
    here("cluster", "create", "shop")
    count = plane.registry.count(Operation)

    ran = here(*words)

    assert ran.code in (Exit.FAILED, Exit.USAGE)
    assert message in ran.err
    assert plane.registry.count(Operation) == count


def test_a_new_cluster_comes_with_the_commands_that_use_it(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    del plane

    message = here("cluster", "create", "shop").err

    assert "topic create orders --cluster shop" in message
    assert "produce orders hello --cluster shop" in message
    assert here("account", "create", "app", "--cluster", "shop", "-o", "json").data["ready"] is True


def test_the_first_token_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    layout = Layout(tmp_path)

    assert root_token(layout) == root_token(layout)
    assert (layout.secrets / "operator.token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:x", ":80", "127.0.0.1:99999"])
async def test_a_control_plane_needs_an_address(tmp_path: Path, listen: str) -> None:
    with pytest.raises(SettingInvalid):
        await run_control(ControlOptions(Layout(tmp_path), listen, 6.0), report=print)


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenFailed):
            await run_control(ControlOptions(Layout(tmp_path), f"127.0.0.1:{port}", 6.0), report=print)


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


def test_a_quota_is_set_shown_and_given_back(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
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


def test_a_quota_is_not_set_to_nothing(plane: InMemoryPlane, here: Callable[..., CommandResult]) -> None:
    del plane
    here("cluster", "create", "shop", "--no-key")

    assert here("quota", "set", "shop").code == Exit.USAGE
    assert here("quota", "set", "shop", "--ingress", "much").code == Exit.USAGE


def test_the_cluster_that_uses_most_is_shown_first(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    for name, used in (("quiet", 1e4), ("busy", 4e6)):
        here("cluster", "create", name, "--no-key")
        cluster = plane.registry.cluster(name)
        plane.shares[cluster.tenant] = shares_of(cluster.id, used)

    ran = here("usage", "top", "--by", "ingress")

    assert ran.out.index("busy") < ran.out.index("quiet")
    assert "80%" in ran.out
    assert [row["name"] for row in here("usage", "top", "-n", "1", "-o", "json").data] == ["busy"]
