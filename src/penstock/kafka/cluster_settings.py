"""How a settings file names a Kafka cluster: its addresses, TLS and a login.

bootstrap: kafka-1:9093,kafka-2:9093
tls:                                   # omitted: plaintext
  ca: ca.pem                           # omitted: the system's CAs
  certificate: client.pem              # for mTLS, with its key
  key: client.key
  server_name: kafka.internal          # if certificates do not name the brokers' hosts
login:
  mechanism: SCRAM-SHA-512             # SCRAM-SHA-256, PLAIN, OAUTHBEARER
  user: penstock
  password_file: /run/secrets/kafka    # or `password`
  # with OAUTHBEARER, instead of user and password:
  token_url: https://login.example.com/token
  client_id: penstock
  client_secret_file: /run/secrets/oauth
  scope: kafka
  ca: login-ca.pem                     # of the token endpoint; omitted: the system's CAs
"""

from __future__ import annotations

import ipaddress
import ssl
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from penstock.kafka import oauth
from penstock.kafka.oauth import OAuthLogin
from penstock.kafka.routing import addresses
from penstock.kafka.security import Login, Mechanism, Security, tls_context
from penstock.model.settings_table import REQUIRED, Setting

if TYPE_CHECKING:
    from penstock.model.settings_reader import Section

_TLS_KEYS: Final = ("ca", "certificate", "key", "server_name")
_PASSWORD_KEYS: Final = ("mechanism", "user", "password", "password_file")
_TOKEN_KEYS: Final = (
    "mechanism", "token_url", "client_id", "client_secret", "client_secret_file", "scope", "ca",
)  # fmt: skip
_MECHANISMS: Final = (*(str(mechanism) for mechanism in Mechanism), oauth.MECHANISM)
SETTINGS: Final = (
    Setting("bootstrap", "host:port[,…]", "Addresses of brokers.", REQUIRED),
    Setting("tls.ca", "file", "CA of the brokers' certificates; unset: the system's CAs."),
    Setting("tls.certificate", "file", "Client certificate in PEM, for mTLS."),
    Setting("tls.key", "file", "Its key; unset: in the certificate's file."),
    Setting("tls.server_name", "text", "The name to verify, if certificates do not name the brokers' hosts."),
    Setting("login.mechanism", " | ".join(_MECHANISMS), "SASL mechanism.", str(Mechanism.SCRAM_SHA_512)),
    Setting("login.user", "text", "User name."),
    Setting("login.password", "secret", "Password."),
    Setting("login.password_file", "file", "File with the password, instead."),
    Setting("login.token_url", "URL", "Token endpoint, for OAUTHBEARER."),
    Setting("login.client_id", "text", "OAuth client, for OAUTHBEARER."),
    Setting("login.client_secret", "secret", "Its secret."),
    Setting("login.client_secret_file", "file", "File with the secret, instead."),
    Setting("login.scope", "text", "Scope of the token."),
    Setting("login.ca", "file", "CA of the token endpoint; unset: the system's CAs."),
)


def read_bootstrap(section: Section) -> str:
    """`host:port`, or several separated by commas."""
    bootstrap = section.text("bootstrap", expected="expected host:port[,…]")
    if not addresses(bootstrap):
        raise section.invalid("bootstrap", "expected host:port[,…]")
    return bootstrap


def read_security(section: Section) -> Security:
    """From the keys `tls` and `login`."""
    tls = None
    server_name = None
    if section.values.get("tls") is not None:
        inner = section.section("tls", _TLS_KEYS)
        tls, server_name = _tls(inner), inner.optional_text("server_name")
    login = None
    if section.values.get("login") is not None:
        login = _login(section)
    return Security(login, tls, server_name)


def _tls(section: Section) -> ssl.SSLContext:
    ca, certificate, key = (section.file(name) for name in ("ca", "certificate", "key"))
    if key is not None and certificate is None:
        raise section.invalid("certificate", "expected a file, because `key` is given")
    try:
        context = tls_context(ca)
    except (ssl.SSLError, OSError) as failure:
        raise section.invalid("ca", f"expected certificates in PEM: {failure}") from failure
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as failure:
            expected = f"expected a certificate in PEM and, here or in `key`, its key: {failure}"
            raise section.invalid("certificate", expected) from failure
    return context


def _login(section: Section) -> Login | OAuthLogin:
    mechanism = section.section("login", None).one_of("mechanism", _MECHANISMS, Mechanism.SCRAM_SHA_512)
    if mechanism != oauth.MECHANISM:
        inner = section.section("login", _PASSWORD_KEYS)
        return Login(inner.text("user"), inner.secret("password"), Mechanism(mechanism))
    inner = section.section("login", _TOKEN_KEYS)
    url = inner.text("token_url", expected="expected an https URL")
    if not _protects_secrets(url):
        raise inner.invalid("token_url", "expected an https URL: the client's secret is sent there")
    try:
        tls = tls_context(inner.file("ca"))
    except (ssl.SSLError, OSError) as failure:
        raise inner.invalid("ca", f"expected certificates in PEM: {failure}") from failure
    client, secret = inner.text("client_id"), inner.secret("client_secret")
    return OAuthLogin(url, client, secret, inner.optional_text("scope") or "", tls)


def _protects_secrets(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme == "https":
        return bool(parts.hostname)
    try:
        return parts.scheme == "http" and ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
