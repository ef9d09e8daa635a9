"""Hosts of a test as network namespaces on one bridge: their links can be cut.

    with Network("a1b2") as network:
        east = network.host("east")
        east.start(["sleep", "9"])            # a process on that host
        east.call(lambda: connect(...))       # a function of this process, as if it ran there
        east.cut()                            # nothing passes to or from it
        east.heal()

The bridge is in a separate namespace, so the machine's interfaces and routes stay as they are. It needs
root. Everything is named after the test's id, and removed at the end.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tests.harness.command import clean_environment
from tests.harness.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

T = TypeVar("T")

SUBNET = "10.203.17"
HOSTS_MAX = 200
CALL_SECONDS_MAX = 120.0
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_LIBC = ctypes.CDLL(None, use_errno=True)


def can_make_namespaces() -> bool:
    """Whether this user may create network namespaces here."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"pen-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        _ip("netns", "del", name)
    return made


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@dataclass
class Host:
    """One namespace with one address."""

    network: Network
    name: str
    address: str
    namespace: str
    link: str  # the bridge's end of its cable

    def start(self, command: Sequence[str], *, log: Path, **options: Any) -> subprocess.Popen[Any]:
        """Start a process that ends with the network; `ip netns exec` becomes the command."""
        with log.open("ab") as output:
            return self.network.processes.start(
                ["ip", "netns", "exec", self.namespace, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                **{"env": clean_environment({}), **options},
            )

    def run(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            ["ip", "netns", "exec", self.namespace, *command],
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS_MAX,
            check=False,
            env=clean_environment(environment),
            **options,
        )

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in a thread whose sockets belong to this host."""
        results: list[T] = []
        failures: list[BaseException] = []

        def enter() -> None:
            try:
                with (Path("/run/netns") / self.namespace).open() as namespace:
                    if _LIBC.setns(namespace.fileno(), _NEW_NETWORK):
                        raise OSError(ctypes.get_errno(), f"setns {self.namespace}")
                results.append(function())
            except BaseException as failure:  # noqa: BLE001 - raised again in the caller's thread
                failures.append(failure)

        thread = threading.Thread(target=enter, name=f"on {self.name}")
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        return results[0]

    def cut(self) -> None:
        _ip("-n", self.network.hub, "link", "set", self.link, "down")

    def heal(self) -> None:
        _ip("-n", self.network.hub, "link", "set", self.link, "up")


@dataclass
class Network:
    """All hosts of one test."""

    id: str
    processes: Processes = field(default_factory=Processes)
    hosts: dict[str, Host] = field(default_factory=dict)
    _names: dict[str, list[str]] = field(default_factory=dict)  # host name → addresses

    @property
    def hub(self) -> str:
        return f"pen-{self.id}-hub"

    def __enter__(self) -> Self:
        _ip("netns", "add", self.hub)
        _ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self.hub, "link", "set", "bridge", "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.processes.close()
        for namespace in (*(host.namespace for host in self.hosts.values()), self.hub):
            _ip("netns", "del", namespace)
            shutil.rmtree(f"/etc/netns/{namespace}", ignore_errors=True)

    def host(self, name: str) -> Host:
        number = len(self.hosts) + 1
        assert number <= HOSTS_MAX
        host = Host(self, name, f"{SUBNET}.{number}", f"pen-{self.id}-{name}", f"cable{number}")
        _ip("netns", "add", host.namespace)
        self.hosts[name] = host
        _ip("-n", self.hub, "link", "add", host.link, "type", "veth", "peer", "eth0", "netns", host.namespace)
        _ip("-n", self.hub, "link", "set", host.link, "master", "bridge", "up")
        _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
        for interface in ("lo", "eth0"):
            _ip("-n", host.namespace, "link", "set", interface, "up")
        self.resolve({name: [host.address]})
        return host

    def resolve(self, names: Mapping[str, Sequence[str]]) -> None:
        """Add host names, for processes of every host. `ip netns exec` mounts the file when it starts one."""
        self._names |= {name: list(addresses) for name, addresses in names.items()}
        lines = ["127.0.0.1 localhost"]
        lines += [f"{address} {name}" for name, many in self._names.items() for address in many]
        for host in self.hosts.values():
            path = Path("/etc/netns") / host.namespace / "hosts"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n")  # in place: running processes see it, too
