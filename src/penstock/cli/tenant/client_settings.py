"""Settings that let an ordinary Kafka client log in: printed, or written to a file only you can read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from penstock.atomic_files import write_atomically
from penstock.cli.output import Format, report, show
from penstock.fleet.layout import SECRET_FILE_MODE
from penstock.kafka.security import Login, Mechanism
from penstock.model.errors.settings import UsageInvalid

Client = Literal["java", "python", "librdkafka", "kcat", "spark"]
ClientChoice = Annotated[Client, Parameter(help="Which client to print settings for.")]
To = Annotated[
    Path | None,
    Parameter(help="Write to this file, readable by you alone.", show_default="standard output"),
]

_MODULES: Final = {
    Mechanism.PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    Mechanism.SCRAM_SHA_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    Mechanism.SCRAM_SHA_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
}


# Clients whose settings are a dictionary in a program, not a file of properties.
_DICTIONARIES: Final = ("python", "spark")


def client_settings(
    bootstrap: str, login: Login, client: Client, *, tls: bool = False, ca: str | None = None
) -> dict[str, str]:
    """The properties under the names that the client knows them by. Without a CA it trusts the system's."""
    settings = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL" if tls or ca else "SASL_PLAINTEXT",
        "sasl.mechanism": str(login.mechanism),
    }
    if client in ("python", "librdkafka", "kcat"):
        settings |= {"sasl.username": login.user, "sasl.password": login.password}
        return settings | ({"ssl.ca.location": ca} if ca else {})
    module = _MODULES[login.mechanism]
    settings["sasl.jaas.config"] = f'{module} required username="{login.user}" password="{login.password}";'
    if ca:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": ca}
    return {f"kafka.{key}": value for key, value in settings.items()} if client == "spark" else settings


def hand_out(settings: dict[str, str], client: Client, form: Format, to: Path | None) -> None:
    """Print the settings in the client's own form, or write them to a file of mode 600."""
    if to is None and form is not Format.TABLE:
        show(settings, form, "")
        return
    if to is None:
        print(_command(settings) if client == "kcat" else _text(settings, client))
        return
    if client in _DICTIONARIES and to.suffix == ".properties":
        raise UsageInvalid(
            reason=f"settings for {client} are a dictionary, and {to} is named like a file of properties",
            way_out="Choose --client java or librdkafka, or name a file that ends in .py.",
        )
    if not to.parent.is_dir():
        raise UsageInvalid(
            reason=f"{to.parent} is not a directory", way_out="Create it, or name another file."
        )
    write_atomically(to, _text(settings, client) + "\n", mode=SECRET_FILE_MODE)
    report(f"wrote {to}, readable by you alone")


def _command(settings: dict[str, str]) -> str:
    return " ".join(["kcat", *(f"-X '{key}={value}'" for key, value in settings.items()), "-L"])


def _text(settings: dict[str, str], client: Client) -> str:
    """The content of a file: properties for Java, librdkafka and `kcat -F`, else a dictionary."""
    if client not in _DICTIONARIES:
        return "\n".join(f"{key}={value}" for key, value in settings.items())
    return "{\n" + "".join(f"    {key!r}: {value!r},\n" for key, value in settings.items()) + "}"
