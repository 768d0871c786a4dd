"""SASL/OAUTHBEARER: where tokens come from, said once and rendered for the three clients.

Either all clients fetch them from a token endpoint with a client's credentials (OpenID Connect), or a Python function
of the user makes them. Java's client cannot call that function: for Spark's own source the user names a Java class.
"""

from __future__ import annotations

import base64
import binascii
import functools
import importlib
import json
import math
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from exactly_once.errors import BrokerUnreachable, ExactlyOnceError, InvalidOption, NotAuthorized
from exactly_once.kafka import jaas

#: Option names, without ``kafka.``. Java's client knows the first two, from 4.1 on those of the credentials, and
#: librdkafka those without ``credentials``.
URL = "sasl.oauthbearer.token.endpoint.url"
HANDLER = "sasl.login.callback.handler.class"
CLIENT_ID = "sasl.oauthbearer.client.id"
SECRET = "sasl.oauthbearer.client.secret"
CREDENTIALS_ID = "sasl.oauthbearer.client.credentials.client.id"
CREDENTIALS_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE = "sasl.oauthbearer.scope"
PROVIDER = "sasl.oauthbearer.token.provider"
OPTIONS = (URL, HANDLER, CLIENT_ID, SECRET, CREDENTIALS_ID, CREDENTIALS_SECRET, SCOPE, PROVIDER)

#: Options of these that hold a secret.
SECRETS = (SECRET, CREDENTIALS_SECRET)

#: Names in the JAAS configuration: those that are read from there alone, and the beginning of a SASL extension's.
_CREDENTIALS = ("clientId", "clientSecret", "scope")
_EXTENSION = "extension_"

#: Java's own client of a token endpoint.
_JAVA_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_JAVA_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"

#: Longest wait for an endpoint: a healthy one answers in tenths of a second, and a client's thread waits for it.
_ANSWER_S = 5.0

#: Share of its life after which a token is replaced. librdkafka asks for the next one at 80 %, and must not get the
#: same one again.
_SHARE = 0.75

#: The year 5138 in seconds: a later moment is one in milliseconds.
_LATEST = 1e11

_DOTTED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

#: Pattern of what a header and the SASL message may carry (RFC 6750, b64token).
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")


class Token(NamedTuple):
    """A token, and when it expires, in seconds since the epoch."""

    value: str
    expires_at: float


@dataclass(frozen=True)
class OAuth:
    """The source of tokens: a token endpoint, or ``provider`` (``module:function``).

    ``java_handler`` is the class that gives Java's client its tokens; "" for Kafka's own. ``login`` has the options of
    the JAAS configuration, for that class: names and values, of which ``extension_...`` are SASL extensions of every
    client (KIP-342). Secrets never appear in ``repr``.
    """

    url: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    provider: str = ""
    java_handler: str = ""
    login: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str], login: Mapping[str, str]) -> OAuth:
        """Read options without ``kafka.``; what they leave out may be in the JAAS configuration, ``login``, as Java has
        it. Raise InvalidOption, also when the function of ``provider`` cannot be imported.
        """
        handler = options.get(HANDLER, "")
        found = cls(
            options.get(URL, ""),
            options.get(CLIENT_ID) or options.get(CREDENTIALS_ID) or login.get("clientId", ""),
            options.get(SECRET) or options.get(CREDENTIALS_SECRET) or login.get("clientSecret", ""),
            options.get(SCOPE) or login.get("scope", ""),
            options.get(PROVIDER, ""),
            "" if handler == _JAVA_HANDLER else handler,
            tuple((name, value) for name, value in login.items() if name not in _CREDENTIALS),
        )
        _check(found, login)
        return found

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that ``repr`` leaves out, without those of SASL extensions, which are no secrets."""
        return self.client_secret, *(value for name, value in self.login if not name.startswith(_EXTENSION))

    @property
    def extensions(self) -> dict[str, str]:
        """The SASL extensions, by name."""
        return {n.removeprefix(_EXTENSION): value for n, value in self.login if n.startswith(_EXTENSION)}

    def librdkafka(self) -> dict[str, Any]:
        """Return the settings of confluent-kafka clients."""
        if self.provider:
            return {"oauth_cb": tokens_of(self).refresh}
        extensions = ",".join(f"{name}={value}" for name, value in self.extensions.items())
        settings = {
            "sasl.oauthbearer.method": "oidc",
            URL: self.url,
            CLIENT_ID: self.client_id,
            SECRET: self.client_secret,
            SCOPE: self.scope,
            "sasl.oauthbearer.extensions": extensions,
        }
        return {name: value for name, value in settings.items() if value}

    def kafka_python(self) -> dict[str, Any]:
        """Return the settings of kafka-python clients."""
        from kafka.net.sasl.oauth import AbstractTokenProvider  # options are read where there is no client

        AbstractTokenProvider.register(Tokens)
        return {"sasl_oauth_token_provider": tokens_of(self)}

    def spark(self) -> dict[str, str]:
        """Return the settings of Java's client."""
        ours = {} if self.provider else {"clientId": self.client_id, "clientSecret": self.client_secret}
        ours |= {"scope": self.scope} if self.scope else {}
        options = "".join(
            f" {jaas.word(name)}={jaas.quoted(value)}" for name, value in (ours | dict(self.login)).items()
        )
        login = {"sasl.jaas.config": f"{_JAVA_MODULE} required{options};"}
        if self.provider:
            return {**login, PROVIDER: self.provider, **({HANDLER: self.java_handler} if self.java_handler else {})}
        return {**login, URL: self.url, HANDLER: self.java_handler or _JAVA_HANDLER}


def _check(oauth: OAuth, login: Mapping[str, str]) -> None:
    """Refuse what cannot give a token; ``login`` has the options of the JAAS configuration."""
    if bool(oauth.url) == bool(oauth.provider):
        there = "are two" if oauth.url else "is none"
        raise InvalidOption(
            f"kafka.sasl.mechanism=OAUTHBEARER needs exactly one source of tokens, but there {there}",
            f"Set kafka.{URL} with kafka.{CLIENT_ID} and kafka.{SECRET}, or kafka.{PROVIDER}=module:function",
        )
    if oauth.provider:
        function_of(oauth.provider)
        return
    parts = urlsplit(oauth.url)
    if parts.scheme not in ("https", "http") or not parts.hostname or "@" in parts.netloc:
        raise InvalidOption(
            f"kafka.{URL} is not the URL of a token endpoint",
            "Use https://host/path, without a user and a password",
        )
    if not oauth.client_id or not oauth.client_secret:
        raise InvalidOption(
            "the client id or the client secret for the token endpoint is missing"
            + (f"; {jaas.OPTION} has: {jaas.names(login)}" if login else ""),
            f"Set kafka.{CLIENT_ID} and kafka.{SECRET}, or clientId and clientSecret in kafka.sasl.jaas.config",
        )


class Tokens:
    """The tokens of one source, for all clients of this process: one is kept until :data:`_SHARE` of its life is over.

    What kafka-python takes as a token provider, and :meth:`refresh` as librdkafka's ``oauth_cb``.
    """

    def __init__(
        self,
        fetch: Callable[[], Token],
        clock: Callable[[], float] = time.time,
        extensions: Mapping[str, str] | None = None,
    ):
        self._fetch = fetch
        self._extensions = dict(extensions or {})
        self._clock = clock
        self._lock = threading.Lock()
        self._kept = Token("", 0.0)
        self._renew_at = 0.0

    def current(self) -> Token:
        """Return a token that has a quarter of its life left at least; raise as its source does."""
        with self._lock:
            now = self._clock()
            if now >= self._renew_at:
                self._kept = self._fetch()
                self._renew_at = now + _SHARE * (self._kept.expires_at - now)
            return self._kept

    def token(self) -> str:
        """Return the token, for kafka-python: its client tries again after this error."""
        from kafka.errors import KafkaConnectionError

        try:
            return self.current().value
        except ExactlyOnceError as e:
            raise KafkaConnectionError(e.what) from e

    def extensions(self) -> dict[str, str]:
        """Return the SASL extensions, for kafka-python."""
        return self._extensions

    def refresh(self, config: str) -> tuple[str, float, str, dict[str, str]]:
        """Return the token and when it expires, for librdkafka; no principal, which it does not look at, and the SASL
        extensions.
        """
        token = self.current()
        return token.value, token.expires_at, "", self._extensions


@functools.cache
def tokens_of(oauth: OAuth) -> Tokens:
    """Return the tokens of this source, which all clients of this process share."""
    if oauth.provider:
        return Tokens(functools.partial(from_function, oauth.provider), extensions=oauth.extensions)
    return Tokens(functools.partial(from_endpoint, oauth), extensions=oauth.extensions)


# -- a function of the user --------------------------------------------------------------------------------------------


def function_of(provider: str) -> Callable[[], Any]:
    """Return the function that ``provider`` (``module:function``) names; raise InvalidOption if there is none."""
    where = f"kafka.{PROVIDER}={provider}"
    if not _DOTTED.fullmatch(provider):
        raise InvalidOption(f"{where} does not name a function", "Use module:function, such as my_company.kafka:token")
    module, _, name = provider.partition(":")
    try:
        found: Any = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as e:
        raise InvalidOption(
            f"{where} cannot be imported ({e})",
            f"Correct kafka.{PROVIDER}, and install the module that it names for the Python of driver, executors and "
            "commands",
        ) from e
    if not callable(found):
        raise InvalidOption(f"{where} is not a function", "Name a function that returns (token, expires_at_seconds)")
    function: Callable[[], Any] = found
    return function


def from_function(provider: str) -> Token:
    """Call the user's function for a token.

    Raises
    ------
    BrokerUnreachable
        When it raises: its cause may pass.
    InvalidOption
        When it returns something else than a token and when this expires.
    """
    try:
        made = function_of(provider)()
    except ExactlyOnceError:
        raise
    except Exception as e:
        raise BrokerUnreachable(
            f"the token provider {provider} failed ({type(e).__name__}: {e})",
            "Start again once the provider works; if the error persists, correct its function",
        ) from e
    return checked(made, provider, time.time())


def checked(made: object, provider: str, now: float) -> Token:
    """Return what a provider made, or raise InvalidOption if it is no token that is valid ``now``; never shows the
    token.
    """
    pair = isinstance(made, tuple) and len(made) == 2
    value, expires_at = made if isinstance(made, tuple) and pair else (None, None)
    if fault := _fault(value, expires_at, now) if pair else f"{type(made).__name__} instead of a pair":
        raise InvalidOption(
            f"the token provider {provider} returned {fault}",
            "Return (token, expires_at): a string, and a time in the future as seconds since the epoch",
        )
    return Token(value, float(expires_at))


def _fault(value: Any, expires_at: Any, now: float) -> str:
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        return "a token that is not a string, is empty, or contains illegal characters"
    if isinstance(expires_at, bool) or not isinstance(expires_at, int | float) or not math.isfinite(expires_at):
        return "an expiry time that is not a number"
    if expires_at > _LATEST:
        return f"an expiry time in milliseconds ({expires_at:.0f}): divide it by 1,000"
    return f"a token that expired {now - expires_at:.0f} s ago" if expires_at <= now else ""


# -- a token endpoint --------------------------------------------------------------------------------------------------


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The secret goes to the endpoint that the user named, and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


def from_endpoint(oauth: OAuth) -> Token:
    """Fetch a token from the endpoint, with the client's credentials (RFC 6749, 4.4), as the other two clients do.

    Raises
    ------
    BrokerUnreachable
        When the endpoint does not answer, or reports a trouble of its own.
    NotAuthorized
        When it refuses the client, or answers with something else than a token.
    """
    body = {"grant_type": "client_credentials", **({"scope": oauth.scope} if oauth.scope else {})}
    login = base64.b64encode(f"{oauth.client_id}:{oauth.client_secret}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Accept": "application/json"}
    request = urllib.request.Request(oauth.url, urlencode(body).encode(), headers)
    began = time.time()
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_ANSWER_S) as answer:
            text = answer.read(1 << 20)
    except urllib.error.HTTPError as e:
        with e:
            raise _refused(oauth, e.code, e.read(1 << 16)) from e
    except (OSError, HTTPException) as e:
        raise _silent(oauth, str(getattr(e, "reason", e))) from e
    if (token := token_in(text, began)) is None:
        raise NotAuthorized(
            f"the token endpoint {oauth.url} answers with something other than a token and its expiry time",
            f"Correct kafka.{URL}",
        )
    return token


def _refused(oauth: OAuth, status: int, body: bytes) -> ExactlyOnceError:
    if status >= 500 or status in (408, 429):
        return _silent(oauth, f"HTTP {status}")
    try:
        error = str(json.loads(body)["error"])[:60]  # a word of RFC 6749, such as invalid_client
    except (ValueError, KeyError, TypeError):
        error = "no reason given"
    return NotAuthorized(
        f"the token endpoint {oauth.url} refuses the client {oauth.client_id} (HTTP {status}, {error})",
        f"Correct kafka.{CLIENT_ID}, kafka.{SECRET} and kafka.{SCOPE}, or kafka.{URL}",
    )


def _silent(oauth: OAuth, why: str) -> BrokerUnreachable:
    return BrokerUnreachable(
        f"the token endpoint {oauth.url} does not give a token ({why})",
        f"Check kafka.{URL}, the token endpoint and the network; start again, unchanged, once the endpoint answers",
    )


def token_in(text: bytes, now: float) -> Token | None:
    """Return the token in an answer, with the end of its life from ``expires_in`` or from the token itself."""
    try:
        answer = json.loads(text)
        value = answer["access_token"]
        seconds = answer.get("expires_in")
        expires_at = now + float(seconds) if seconds is not None else float(_claims(value)["exp"])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None
    return Token(value, expires_at) if isinstance(value, str) and _TOKEN.fullmatch(value) and expires_at > now else None


def _claims(token: str) -> dict[str, Any]:
    """Return what a JSON web token says, without checking who signed it: that is for the brokers."""
    part = token.split(".")[1]
    try:
        claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, UnicodeDecodeError) as e:
        raise ValueError("no JSON web token") from e
    return claims
