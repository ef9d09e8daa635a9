"""A Kafka node with TLS, every SASL mechanism and mTLS, and an OAuth token endpoint."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
import threading
import time
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from penstock.fleet.credentials.certificates import load_authority
from penstock.fleet.credentials.passwords import NODE_USER, PLATFORM_USER
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import LocalFleet, open_fleet
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.spec import FleetSpec
from penstock.fleet.spec_file import parse_fleet
from penstock.kafka.oauth import OAuthLogin
from penstock.kafka.security import Login, Mechanism, Security, tls_context
from tests.harness.fleet import TINY, Fleet

if TYPE_CHECKING:
    from pathlib import Path

ISSUER: Final = "https://login.example.com"
AUDIENCE: Final = "kafka"
CLIENT: Final = "penstock-oauth"
CLIENT_SECRET: Final = "s3cret/of+the client"
PLAIN_USER: Final = "penstock-plain"
PLAIN_PASSWORD: Final = "plain"
CERTIFICATE_NAME: Final = "penstock-mtls"
TOKEN_SECONDS: Final = 3  # short, so that logins expire within a test
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer"
_OAUTHBEARER: Final = "listener.name.internal.oauthbearer"


@dataclass
class TokenEndpoint:
    """Issues RS256 tokens to one client; the broker verifies them with `jwks`."""

    key: rsa.RSAPrivateKey
    issued: int = 0
    claims: dict[str, Any] = field(default_factory=dict)  # override those of the next tokens
    failing: bool = False
    _server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                status, body = endpoint.respond(self.headers.get("Authorization", ""), form)
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_port}/token"

    def respond(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        if self.failing:
            return 503, {}
        expected = base64.b64encode(f"{CLIENT}:s3cret%2Fof%2Bthe+client".encode()).decode()
        if authorization != f"Basic {expected}" or form.get("grant_type") != ["client_credentials"]:
            return 401, {"error": "invalid_client", "error_description": "unknown client or wrong secret"}
        self.issued += 1
        now = time.time()
        token = self.token(int(now))
        return 200, {
            "access_token": token,
            "expires_in": int(now) + TOKEN_SECONDS - now,
            "token_type": "Bearer",
        }

    def token(self, now: int) -> str:
        claims = {"sub": CLIENT, "iss": ISSUER, "aud": AUDIENCE, "scope": "kafka", "iat": now}
        claims |= {"exp": now + TOKEN_SECONDS} | self.claims
        head = _encoded(json.dumps({"alg": "RS256", "kid": "test", "typ": "JWT"}).encode())
        signed = f"{head}.{_encoded(json.dumps(claims).encode())}"
        signature = self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encoded(signature)}"

    def jwks(self) -> str:
        numbers = self.key.public_key().public_numbers()
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "test"}
        key |= {"n": _number(numbers.n), "e": _number(numbers.e)}
        return json.dumps({"keys": [key]})

    def login(self, secret: str = CLIENT_SECRET) -> OAuthLogin:
        return OAuthLogin(self.url, CLIENT, secret, "kafka")


@dataclass
class SecuredKafka:
    """SASL with four mechanisms on the internal listener, mTLS on the gateway listener."""

    fleet: Fleet
    tokens: TokenEndpoint
    directory: Path

    @classmethod
    def start(cls, directory: Path) -> SecuredKafka:
        tokens = TokenEndpoint(rsa.generate_private_key(public_exponent=65537, key_size=2048))
        jwks = directory / "jwks.json"
        jwks.write_text(tokens.jwks())
        allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
        options = f"{allowed}.urls={jwks.as_uri()} {allowed}.files={jwks}"
        fleet = Fleet(asyncio.run(_open(directory / "home", _config(jwks.as_uri()))))
        fleet.node("b1").environment = {"JDK_JAVA_OPTIONS": options}
        fleet.start_node("b1")
        tokens.start()
        return cls(fleet, tokens, directory)

    def stop(self) -> None:
        self.tokens.stop()
        self.fleet.destroy()

    @property
    def ca(self) -> Path:
        return self.fleet.local.access.ca

    def security(self, login: Login | OAuthLogin | None) -> Security:
        return Security(login, tls_context(self.ca))

    def platform(self) -> Login:
        password = self.fleet.local.access.credentials.platform
        return Login(PLATFORM_USER, password, Mechanism.SCRAM_SHA_512)

    def client_certificate(self) -> Path:
        """A certificate of the CA that the broker trusts, with its key."""
        path = self.directory / "client.pem"
        authority = load_authority(self.ca.parent, now=dt.datetime.now(dt.UTC))
        path.write_bytes(authority.issue(CERTIFICATE_NAME, ["client"], now=dt.datetime.now(dt.UTC)))
        return path


async def _open(home: Path, config: dict[str, str]) -> LocalFleet:
    """A fleet file may not set all of these properties."""
    (cluster,) = parse_fleet({"clusters": [{**TINY, "tls": True}]})
    spec = FleetSpec((replace(cluster, config=config),))
    local = open_fleet(spec, Layout(home), await obtain_runtime())
    await local.prepare()
    return local


def _config(jwks: str) -> dict[str, str]:
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    users = (NODE_USER, PLATFORM_USER, PLAIN_USER, f"CN={CERTIFICATE_NAME}", CLIENT)
    return {
        "listener.security.protocol.map": "INTERNAL:SASL_SSL,GATEWAY:SSL,CONTROLLER:SASL_SSL",
        "listener.name.gateway.ssl.client.auth": "required",
        "listener.name.internal.sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN,OAUTHBEARER",
        "listener.name.internal.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.internal.plain.sasl.jaas.config": f'{plain} user_{PLAIN_USER}="{PLAIN_PASSWORD}";',
        f"{_OAUTHBEARER}.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
        f"{_OAUTHBEARER}.sasl.server.callback.handler.class": f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
        f"{_OAUTHBEARER}.connections.max.reauth.ms": "60000",
        "sasl.oauthbearer.jwks.endpoint.url": jwks,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "super.users": ";".join(f"User:{user}" for user in users),
        "group.min.session.timeout.ms": "500",
    }


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _number(value: int) -> str:
    return _encoded(value.to_bytes((value.bit_length() + 7) // 8))
