"""`penstock profile` and `login`: platforms on other machines, and the credentials for them."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from penstock.cli.flags import Yes, confirmed
from penstock.cli.output import Format, plain, report, show, table_of
from penstock.cli.remote import check_reachable
from penstock.cli.settings import Options, ProfileOptions
from penstock.model.errors import Exit
from penstock.model.errors.settings import UsageInvalid
from penstock.platform import profiles
from penstock.platform.control_client import connect
from penstock.platform.keyring import SavedKey, saved_keys
from penstock.platform.profiles import Profile

app = App(name="profile", help="Profiles: platforms on other machines, and credentials for them.")

_COLUMNS = {
    "CURRENT": "current", "NAME": "name", "CONTROL PLANE": "url", "BOOTSTRAP": "bootstrap", "TLS": "tls",
    "CA": "ca", "TOKEN": "token", "KEYS": "keys",
}  # fmt: skip

Name = Annotated[str, Parameter(help="Name of the profile.")]
Ca = Annotated[
    Path | None, Parameter(help="CA certificate of the servers, PEM.", show_default="the system's CAs")
]
TokenFile = Annotated[
    Path | None, Parameter(help="File with the operator token; - for standard input.", show_default="ask")
]


@app.command
def create(
    name: Name,
    *,
    url: Annotated[str, Parameter(help="URL of the control plane; several with commas.")] = "",
    token_file: TokenFile = None,
    bootstrap: Annotated[str, Parameter(help="Bootstrap address of a logical cluster.")] = "",
    key: Annotated[str, Parameter(help="API key for the bootstrap address.")] = "",
    secret_file: Annotated[
        Path | None, Parameter(help="File with its secret; - for standard input.", show_default="ask")
    ] = None,
    tls: Annotated[bool, Parameter(help="Connect to the gateways with TLS.", negative="")] = False,
    ca: Ca = None,
    use: Annotated[bool, Parameter(help="Make it the current profile.")] = True,
    yes: Yes = False,
    options: Options = Options(),
) -> int:
    """Create a profile from a control plane and a token, or from a bootstrap address and an API key.

    Example:  penstock profile create shop --bootstrap kafka.example.com:9092 --key ABCD --secret-file s --tls
    """
    if not (url or bootstrap) or bool(bootstrap) != bool(key):
        raise UsageInvalid(
            reason="a profile needs a place to connect to",
            way_out="Give --url with --token-file, or --bootstrap with --key and --secret-file.",
        )
    _check_urls(url)
    if profiles.has_profile(name) and not confirmed(
        f"This replaces profile {name} and the credentials in it.", yes=yes
    ):
        return Exit.FAILED
    secret = _secret(secret_file, f"Secret of API key {key}: ") if bootstrap else ""
    token = _secret(token_file, "Operator token: ") if url else ""
    saved = SavedKey("", name, bootstrap, key, secret, tls=tls or bool(ca)) if bootstrap else None
    profile = Profile(name, url, bootstrap, tls=tls or (bool(bootstrap) and ca is not None))
    profiles.save_profile(profile, ca=ca, token=token, key=saved)
    if use:
        profiles.use_profile(name)
    return _shown(profile, options)


def login(
    url: Annotated[str, Parameter(help="URL of the control plane; several with commas.")],
    *,
    name: Annotated[str, Parameter(help="Name of the profile.")] = "default",
    token_file: TokenFile = None,
    tls: Annotated[bool, Parameter(help="Connect to the gateways with TLS.", negative="")] = False,
    ca: Ca = None,
    options: Options = Options(),
) -> int:
    """Log in to a control plane: checks the token, saves it as a profile, and uses that. Another login to the
    same profile keeps the API keys in it.

    Example:  penstock login https://penstock.example.com:28080 --token-file token --ca ca.pem
    """
    _check_urls(url)
    token = _secret(token_file, "Operator token: ")
    before = profiles.read_profile(name) if profiles.has_profile(name) else Profile(name)
    try:
        control = connect(before.layout, url, token=token, ca=ca)
    except OSError as failure:
        raise UsageInvalid(
            reason=f"{ca} cannot be used: {failure}", way_out="Name a PEM file with the CA's certificate."
        ) from failure
    check_reachable(control)
    control.get("/status")
    profile = Profile(name, url, before.bootstrap, tls=tls or before.tls)
    profiles.save_profile(profile, ca=ca, token=token, keep_keys=True)
    profiles.use_profile(name)
    code = _shown(profile, options)
    report(f"logged in; profile {plain(name)} is the current one")
    return code


@app.command(name="use")
def use_(
    name: Annotated[str, Parameter(help="A profile, or `local` for the platform of this directory.")],
) -> int:
    """Make a profile the current one.

    Example:  penstock profile use local
    """
    profiles.use_profile(name)
    report(f"commands use {plain(name)} now")
    return Exit.FINE


@app.command(name="list")
def list_(*, options: Options = Options()) -> int:
    """List the profiles.

    Example:  penstock profile list
    """
    rows = [_row(profile) for profile in profiles.profiles()]
    show(rows, options.form, table_of(rows, _COLUMNS, empty="no profiles: create one with `penstock login`"))
    return Exit.FINE


@app.command(name="show")
def show_(
    name: Annotated[str | None, Parameter(help="Which one.", show_default="the current one")] = None,
    *,
    options: Options = Options(),
) -> int:
    """Show a profile, without its secrets.

    Example:  penstock profile show -o json
    """
    profile = profiles.read_profile(name) if name else ProfileOptions().chosen
    if profile is None:
        if options.form is Format.TABLE:
            report("no profile: commands use the local platform")
        else:
            show(None, options.form, "")
        return Exit.FINE
    return _shown(profile, options)


@app.command
def delete(name: Name, *, yes: Yes = False) -> int:
    """Delete a profile with its credentials.

    Example:  penstock profile delete shop --yes
    """
    profiles.read_profile(name)
    if not confirmed(f"This deletes profile {name} and the credentials in it.", yes=yes):
        return Exit.FAILED
    profiles.delete_profile(name)
    report("deleted")
    return Exit.FINE


def _check_urls(url: str) -> None:
    for each in filter(None, url.split(",")):
        if not each.strip().startswith(("http://", "https://")):
            raise UsageInvalid(reason=f"--url {each} is no http address", way_out="Write https://host:port.")


def _shown(profile: Profile, options: Options) -> int:
    row = _row(profile)
    show(row, options.form, table_of([row], _COLUMNS))
    return Exit.FINE


def _row(profile: Profile) -> dict[str, Any]:
    return {
        "current": profile.name == profiles.current_profile(),
        "name": profile.name,
        "url": profile.url,
        "bootstrap": profile.bootstrap,
        "tls": profile.tls,
        "ca": str(profile.ca or ""),
        "token": bool(profile.token),
        "keys": len(saved_keys(profile.layout)),
    }


def _secret(path: Path | None, prompt: str) -> str:
    """A secret from a file, from standard input, or typed without an echo."""
    if path is None:
        if not sys.stdin.isatty():
            raise UsageInvalid(
                reason="there is no terminal to ask for the secret",
                way_out="Name a file with --token-file or --secret-file; - reads standard input.",
            )
        secret = getpass.getpass(prompt)
    else:
        try:
            secret = sys.stdin.readline() if str(path) == "-" else path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as failure:
            raise UsageInvalid(
                reason=f"{path} cannot be read: {failure}", way_out="Name a file with the secret alone."
            ) from failure
    if not secret.strip():
        raise UsageInvalid(reason="the secret is empty", way_out="Name a file with the secret alone.")
    return secret.strip()
