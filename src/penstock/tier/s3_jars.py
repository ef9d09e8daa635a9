"""The jars of the S3 store: Amazon's SDK, pinned separately, and our class on it.

`penstock tier fetch` resolves and compiles them; only clusters that store segments in S3 need them. Brokers
load them together with the plugin in a separate class loader, so the SDK's classes never meet Kafka's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.fleet.jars import Pin, fetch_jars, jars_directory, load_jars
from penstock.model.errors.tier import PluginNotCompiled
from penstock.tier.plugin_jar import TIER, PluginJar, ensure_compiled, place

if TYPE_CHECKING:
    from penstock.fleet.node import Runtime

SDK_VERSION: Final = "2.56.0"  # 2.57 does not resolve

_HERE: Final = Path(__file__).parent
S3: Final = PluginJar("tier-s3", _HERE / "s3", _HERE / "penstock-tier-s3.jar")
SDK: Final = Pin("tier-s3", SDK_VERSION, _HERE / "s3" / "pom.xml", _HERE / "s3" / "jars.sha256")


def fetch_s3(cache: Path, runtime: Runtime, *, force: bool = False) -> list[Path]:
    """Resolve, verify and compile what the S3 store needs; the jars of its class path."""
    if force:
        fetch_jars(cache, force=True, pin=SDK)
    sdk = sorted(load_jars(cache, SDK).directory.glob("*.jar"))
    kafka = sorted(runtime.jars.directory.glob("*.jar"))
    if runtime.jars.plugin is None or not ensure_compiled(
        S3, runtime.java.executable, [*kafka, runtime.jars.plugin, *sdk]
    ):
        raise PluginNotCompiled(reason="there is no Java compiler")
    return [*_placed(cache), *sdk]


def s3_class_path(cache: Path) -> str:
    """The class path of the S3 store; empty if its jars are not fetched."""
    directory = jars_directory(cache, SDK)
    if not (TIER.file.exists() and S3.file.exists() and directory.exists()):
        return ""
    return os.pathsep.join([*map(str, _placed(cache)), f"{directory}/*"])


def _placed(cache: Path) -> list[Path]:
    directory = jars_directory(cache, SDK).parent
    return [place(TIER, directory), place(S3, directory)]
