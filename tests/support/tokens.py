"""Logging in with tokens: a broker that takes unsecured JSON web tokens, an endpoint and a function that give them."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs

from exactly_once.kafka.connection import Connection
from exactly_once.local.embedded_broker import HOST, EmbeddedBroker, _free_port
from tests.support.broker import FAST_TIME_OUTS

USER, SECRET = "writer", "s3cret"

#: The two sources of tokens.
ENDPOINT, FUNCTION = "a token endpoint", "a function"
SOURCES = (ENDPOINT, FUNCTION)

#: Seconds that a token lives.
LIFE_S = 3600.0

#: How many tokens :func:`give` has made.
given: list[str] = []


def token(life_s: float | None = None) -> tuple[str, float]:
    """Return an unsigned token of :data:`USER`, and when it expires."""
    now = time.time()
    expires_at = now + (LIFE_S if life_s is None else life_s)
    claims = {"sub": USER, "iat": now, "exp": expires_at}
    parts = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "none"}, claims)
    )
    return f"{'.'.join(parts)}.", expires_at


def give() -> tuple[str, float]:
    """Return what the option names as a provider."""
    made = token()
    given.append(made[0])
    return made


class TokenEndpoint:
    """A token endpoint on this machine, which knows :data:`USER` and :data:`SECRET`."""

    def __init__(self) -> None:
        self.asked: list[dict[str, list[str]]] = []
        self.status = 200
        self.signature = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.asked.append(parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                known = base64.b64encode(f"{USER}:{SECRET}".encode()).decode()
                status = outer.status if self.headers["Authorization"] == f"Basic {known}" else 401
                value, _ = token()
                answer = {"access_token": value + outer.signature, "token_type": "Bearer", "expires_in": int(LIFE_S)}
                body = json.dumps(answer if status == 200 else {"error": "invalid_client"}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self._server.server_address[1]}/token"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class TokenBroker(EmbeddedBroker):
    """One node with two doors: the plain one, and one for tokens that nobody has signed."""

    def __init__(self, data_dir: Path):
        super().__init__(data_dir)
        self._door = _free_port(set())

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
            "listener.name.tokens.oauthbearer.sasl.jaas.config": f'{login} required unsecuredLoginStringClaim_sub="b";',
            # connections log in again before their token ends (KIP-368)
            "listener.name.tokens.oauthbearer.connections.max.reauth.ms": "3600000",
        }
