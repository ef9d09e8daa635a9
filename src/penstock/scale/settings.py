"""The scaler's own settings: where it listens, and the clusters it can see. One YAML file.

Secrets are read from files, so that the settings themselves may be a ConfigMap.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from penstock.kafka.security import Login, Mechanism, Security, tls_trusting
from penstock.model.errors.scale import ScalerSettingsInvalid
from penstock.model.keys import LAG_TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping

INTERVAL_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class ServerTls:
    certificate: Path
    key: Path
    client_authority: Path | None = None  # given: callers must show a certificate of it


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    bootstrap: str
    interval: float = INTERVAL_SECONDS  # seconds between samples
    user: str | None = None
    password_file: Path | None = None
    mechanism: Mechanism = Mechanism.SCRAM_SHA_512
    authority: Path | None = None  # given: TLS that trusts it
    certificate: Path | None = None
    key: Path | None = None

    def security(self) -> Security:
        """Reads the secrets, anew at each call."""
        login = None
        if self.user is not None and self.password_file is not None:
            login = Login(self.user, self.password_file.read_text().strip(), self.mechanism)
        tls = None
        if self.authority is not None:
            tls = tls_trusting(self.authority, certificate=self.certificate, key=self.key)
        return Security(login, tls)


@dataclass(frozen=True, slots=True)
class ScalerSettings:
    clusters: Mapping[str, ClusterSettings]
    listen: str = "0.0.0.0:8080"
    metrics: str | None = None  # host:port; none: not served
    tls: ServerTls | None = None
    samples_cluster: str | None = None  # where the samples topic lives; none: windows are lost on restart
    samples_topic: str = LAG_TOPIC


def settings_from(text: str) -> ScalerSettings:
    """Parses and checks the file's text."""
    try:
        body = yaml.safe_load(text)
    except yaml.YAMLError as failure:
        raise _invalid("file", "…", f"which is no YAML: {failure}") from failure
    if not isinstance(body, dict):
        raise _invalid("file", body, "expected a mapping")
    _only(body, "", {"clusters", "listen", "metrics", "tls", "samples"})
    clusters = body.get("clusters")
    if not isinstance(clusters, dict) or not clusters:
        raise _invalid("clusters", clusters, "expected at least one, by name")
    samples = _mapping(body, "samples")
    _only(samples, "samples.", {"cluster", "topic"})
    settings = ScalerSettings(
        clusters={str(name): _cluster(str(name), values) for name, values in clusters.items()},
        listen=_address("listen", body.get("listen", ScalerSettings.__dataclass_fields__["listen"].default)),
        metrics=_address("metrics", body["metrics"]) if body.get("metrics") else None,
        tls=_server_tls(_mapping(body, "tls")) if body.get("tls") else None,
        samples_cluster=samples.get("cluster"),
        samples_topic=samples.get("topic", LAG_TOPIC),
    )
    if settings.samples_cluster is not None and settings.samples_cluster not in settings.clusters:
        raise _invalid(
            "samples.cluster", settings.samples_cluster, "expected one of " + ", ".join(settings.clusters)
        )
    return settings


def _cluster(name: str, values: object) -> ClusterSettings:
    place = f"clusters.{name}"
    if not isinstance(values, dict):
        raise _invalid(place, values, "expected a mapping with `bootstrap`")
    known = {"bootstrap", "interval", "user", "passwordFile", "mechanism", "authority", "certificate", "key"}
    _only(values, place + ".", known)
    if not isinstance(values.get("bootstrap"), str):
        raise _invalid(
            f"{place}.bootstrap", values.get("bootstrap"), "expected host:port, several with commas"
        )
    interval = values.get("interval", INTERVAL_SECONDS)
    if not isinstance(interval, int | float) or not 1 <= interval <= 3600:
        raise _invalid(f"{place}.interval", interval, "expected seconds from 1 to 3600")
    if ("user" in values) != ("passwordFile" in values):
        raise _invalid(f"{place}.user", values.get("user"), "expected `user` and `passwordFile` together")
    mechanism = values.get("mechanism", Mechanism.SCRAM_SHA_512.value)
    if mechanism not in {each.value for each in Mechanism}:
        raise _invalid(f"{place}.mechanism", mechanism, "expected one of " + ", ".join(Mechanism))
    return ClusterSettings(
        bootstrap=values["bootstrap"],
        interval=float(interval),
        user=values.get("user"),
        password_file=_file(place, values, "passwordFile"),
        mechanism=Mechanism(mechanism),
        authority=_file(place, values, "authority"),
        certificate=_file(place, values, "certificate"),
        key=_file(place, values, "key"),
    )


def _server_tls(values: dict[str, Any]) -> ServerTls:
    _only(values, "tls.", {"certificate", "key", "clientAuthority"})
    certificate, key = _file("tls", values, "certificate"), _file("tls", values, "key")
    if certificate is None or key is None:
        raise _invalid("tls", sorted(values), "expected `certificate` and `key`")
    return ServerTls(certificate, key, _file("tls", values, "clientAuthority"))


def _file(place: str, values: Mapping[str, Any], key: str) -> Path | None:
    if key not in values:
        return None
    path = Path(str(values[key]))
    if not path.is_file():
        raise _invalid(f"{place}.{key}", str(path), "expected a file that can be read")
    return path


def _mapping(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    values = body.get(key) or {}
    if not isinstance(values, dict):
        raise _invalid(key, values, "expected a mapping")
    return values


def _address(key: str, value: object) -> str:
    host, colon, port = str(value).rpartition(":")
    if not (host and colon and port.isdigit() and int(port) < 65536):
        raise _invalid(key, value, "expected host:port")
    return str(value)


def _only(values: Mapping[str, Any], prefix: str, known: set[str]) -> None:
    for key in values:
        if key not in known:
            raise _invalid(
                f"{prefix}{key}", values[key], "an unknown key; known: " + ", ".join(sorted(known))
            )


def _invalid(key: str, value: object, expected: str) -> ScalerSettingsInvalid:
    return ScalerSettingsInvalid(key=key, value=value, expected=expected)
