"""Logging in with tokens: a broker that takes signed JSON web tokens, an endpoint and a function that give them."""

from __future__ import annotations

import base64
import json
import os
import time
from functools import cache
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from exactly_once.kafka.connection import Connection
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from exactly_once_local.ports import HOST, free_port
from testkit.broker import FAST_TIME_OUTS
from testkit.http_server import Answer, Asked, HttpServer

USER, SECRET = "writer", "s3cret"

#: The two sources of tokens.
ENDPOINT, FUNCTION = "a token endpoint", "a function"
SOURCES = (ENDPOINT, FUNCTION)

#: Seconds that a token lives.
TTL_S = 3600.0

#: How many tokens :func:`give` has made.
given: list[str] = []


@cache
def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _base64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def token(lifetime_s: float | None = None) -> tuple[str, float]:
    """Return a token of :data:`USER`, and when it expires."""
    now = time.time()
    expires_at = now + (TTL_S if lifetime_s is None else lifetime_s)
    claims = {"sub": USER, "scope": "kafka", "iat": int(now), "exp": expires_at}
    signed = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "tests"}, claims))
    return f"{signed}.{_base64(_key().sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}", expires_at


def public_keys() -> str:
    """Return the JSON web key set by which a broker checks the tokens."""
    numbers = _key().public_key().public_numbers()
    n, e = (_base64(x.to_bytes((x.bit_length() + 7) // 8)) for x in (numbers.n, numbers.e))
    return json.dumps({"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "tests", "n": n, "e": e}]})


def give() -> tuple[str, float]:
    """Return what the option names as a provider."""
    made = token()
    given.append(made[0])
    return made


class TokenEndpoint(HttpServer):
    """A token endpoint on this machine, which knows :data:`USER` and :data:`SECRET`."""

    def __init__(self) -> None:
        self.asked: list[dict[str, list[str]]] = []
        self.status = 200
        super().__init__(self._give)
        self.url += "/token"

    def _give(self, asked: Asked) -> Answer:
        self.asked.append(parse_qs(asked.body.decode()))
        known = base64.b64encode(f"{USER}:{SECRET}".encode()).decode()
        status = self.status if asked.headers["Authorization"] == f"Basic {known}" else 401
        value, _ = token()
        answer = {"access_token": value, "token_type": "Bearer", "expires_in": int(TTL_S)}
        body = json.dumps(answer if status == 200 else {"error": "invalid_client"}).encode()
        return Answer(status, body, {"Content-Type": "application/json"})


class TokenBroker(EmbeddedBroker):
    """One node with two listeners: the plain one, and one for tokens."""

    def __init__(self, data_dir: Path):
        super().__init__(data_dir)
        self._door = free_port()
        self._keys = data_dir.parent / f"{data_dir.name}-keys.json"

    def start(self) -> Self:
        """Start it; the broker reads the keys from a file, which its JVM has to allow."""
        self._keys.write_text(public_keys())
        before = os.environ.get("JDK_JAVA_OPTIONS", "")
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._keys.as_uri()}"
        os.environ["JDK_JAVA_OPTIONS"] = f"{before} {allowed}"
        try:
            super().start()
        finally:
            os.environ["JDK_JAVA_OPTIONS"] = before
        return self

    def connection(self, source: str, endpoint: TokenEndpoint, secret: str = SECRET) -> Connection:
        """Return the options of a client that gets its tokens from ``source``."""
        found = {"provider": f"{__name__}:give"}
        options = {f"kafka.sasl.oauthbearer.token.{k}": v for k, v in found.items()}
        if source == ENDPOINT:
            options = {
                "kafka.sasl.oauthbearer.token.endpoint.url": endpoint.url,
                "kafka.sasl.oauthbearer.client.id": USER,
                "kafka.sasl.oauthbearer.client.secret": secret,
                "kafka.sasl.oauthbearer.scope": "kafka",
            }
        door = {"kafka.bootstrap.servers": f"{HOST}:{self._door}", "kafka.security.protocol": "SASL_PLAINTEXT"}
        return Connection.from_options({**door, "kafka.sasl.mechanism": "OAUTHBEARER", **options})

    def _settings(self, number: int) -> dict[str, str]:
        settings = super()._settings(number)
        login = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
        return {
            **settings,
            **FAST_TIME_OUTS,
            "listeners": f"{settings['listeners']},TOKENS://{HOST}:{self._door}",
            "listener.security.protocol.map": f"{settings['listener.security.protocol.map']},TOKENS:SASL_PLAINTEXT",
            "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.tokens.oauthbearer.sasl.jaas.config": f"{login} required;",
            "listener.name.tokens.oauthbearer.sasl.server.callback.handler.class": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
            "listener.name.tokens.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": self._keys.as_uri(),
            # connections log in again before their token ends (KIP-368)
            "listener.name.tokens.oauthbearer.connections.max.reauth.ms": "3600000",
        }
