"""Tokens: fetched once for all clients of a process, renewed in time, and every failure with its own name."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from email.message import Message
from functools import partial
from urllib.parse import parse_qs

import pytest
from confluent_kafka import Producer
from kafka.errors import KafkaConnectionError
from kafka.net.sasl.oauth import AbstractTokenProvider, SaslMechanismOAuth

from exactly_once.commitlog.input_offsets import InputOffsets
from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable, InvalidOption, NotAuthorized
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.oauth import OAuth, Token, Tokens, checked, from_endpoint, from_function, token_in
from exactly_once.options import SinkOptions
from testkit.http_server import Answer, Asked, HttpServer

HERE = __name__


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_is_kept_until_a_quarter_of_its_life_is_left() -> None:
    """Outage: a request to the token endpoint for every task, until it throttles; or a token that expires in use."""
    clock, made = Clock(), iter(Token(f"t{n}", 1_000.0 + 100 * (n + 1)) for n in range(3))
    tokens = Tokens(lambda: next(made), clock)
    assert [tokens.token(), tokens.refresh("")] == ["t0", ("t0", 1_100.0, "", {})]
    clock.now = 1_074
    assert tokens.token() == "t0"
    clock.now = 1_080  # librdkafka asks again after 80 %: the same token would be asked for again and again
    assert tokens.token() == "t1"


def test_a_failure_is_not_kept() -> None:
    """Outage: an endpoint that was away for a second, and a process that never asks it again."""
    made = iter([BrokerUnreachable("away", "wait"), Token("t", 2_000.0)])

    def fetch() -> Token:
        found = next(made)
        if isinstance(found, Exception):
            raise found
        return found

    tokens = Tokens(fetch, Clock())
    with pytest.raises(KafkaConnectionError) as e:  # one that kafka-python's callers try again after
        tokens.token()
    assert e.value.retriable and "away" in str(e.value)
    assert tokens.token() == "t"


def test_threads_fetch_one_token_together() -> None:
    """Outage: all connections of a process log in at once after an expiry, and the endpoint refuses the burst."""
    fetched = []

    def fetch() -> Token:
        time.sleep(0.05)
        fetched.append(1)
        return Token("t", time.time() + 60)

    tokens = Tokens(fetch)
    threads = [threading.Thread(target=tokens.token) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetched == [1]


def test_kafka_python_takes_the_tokens_for_a_provider_of_its_own() -> None:
    """Outage: a release that asks for another base class stops every client at its log-in."""
    options = {"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    options["sasl.oauthbearer.token.provider"] = f"{HERE}:valid"
    config = Connection.from_options({f"kafka.{k}": v for k, v in options.items()}).kafka_python()
    assert isinstance(config["sasl_oauth_token_provider"], AbstractTokenProvider)
    assert b"auth=Bearer abc.def.\x01" in SaslMechanismOAuth(**config).auth_bytes()


@pytest.mark.parametrize("provider", [f"{HERE}:valid", ""])
def test_the_names_are_known_to_librdkafka(endpoint: Endpoint, provider: str) -> None:
    """Outage: a name that it does not know stops the first task."""
    oauth_options = {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.provider": provider,
        "sasl.oauthbearer.scope": "s",
        "sasl.oauthbearer.client.id": "alice",
        "sasl.oauthbearer.client.secret": "s3cret",
        "sasl.oauthbearer.token.endpoint.url": "" if provider else endpoint.url,
    }
    Producer(
        {**Connection.from_options({f"kafka.{k}": v for k, v in oauth_options.items()}).librdkafka(), "log_level": 0}
    )


def options_of(url: str, secret: str = "s3cret") -> dict[str, str]:
    """Those of a sink that logs in by the endpoint at ``url``."""
    return {
        "sink.id": "s",
        "checkpointLocation": "/c",
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": url,
        "kafka.sasl.oauthbearer.client.id": "alice",
        "kafka.sasl.oauthbearer.client.secret": secret,
    }


def test_a_rotated_secret_is_not_served_from_a_process_s_cache() -> None:
    """Outage: worker processes that are reused log in with the old secret, which the endpoint refuses."""
    old, new = (SinkOptions.parse(options_of("https://h/token", secret)) for secret in ("old", "new"))
    assert old.connection != new.connection, "the key of the connections that a worker keeps"


def test_a_token_that_is_not_to_be_had_holds_up_no_lag_tools(endpoint: Endpoint) -> None:
    """Outage: a batch that is not decided, for the sake of offsets that nothing depends on."""
    endpoint.status = 503
    connection = Connection.from_options(options_of(endpoint.url))
    offsets = InputOffsets(partial(Admin, connection), "s")
    assert not offsets.may_be_sent({"t": {0: 1}}, Deadline(1))


# -- a function of the user --------------------------------------------------------------------------------------------


def valid() -> tuple[str, float]:
    return "abc.def.", time.time() + 60


def broken() -> tuple[str, float]:
    raise RuntimeError("no credentials")


def test_a_function_that_fails_is_named_with_its_reason() -> None:
    """Outage: "authentication failed" by the brokers, which never saw a token."""
    assert from_function(f"{HERE}:valid").value == "abc.def."
    with pytest.raises(BrokerUnreachable, match=r"test_oauth:broken failed \(RuntimeError: no credentials\)"):
        from_function(f"{HERE}:broken")


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("s3cret", "str instead of a pair"),
        (("s3cret", 2_000, 1), "tuple instead of a pair"),
        (("", 2_000), "is empty"),
        ((b"s3cret", 2_000), "is not a string"),
        (("s3cret\x01auth=x", 2_000), "contains illegal characters"),
        (("s3cret", "soon"), "is not a number"),
        (("s3cret", True), "is not a number"),
        (("s3cret", float("nan")), "is not a number"),
        (("s3cret", 2_000_000_000_000), "milliseconds"),
        (("s3cret", 990), "expired 10 s ago"),
    ],
)
def test_a_function_that_returns_something_else_is_refused_without_showing_the_token(made: object, says: str) -> None:
    """Outage: a time in milliseconds is a token that is never renewed; and a leak of the token in a log."""
    with pytest.raises(InvalidOption) as refusal:
        checked(made, "m:f", 1_000.0)
    assert says in str(refusal.value) and "s3cret" not in str(refusal.value)
    assert checked(("s3cret", 1_001), "m:f", 1_000.0) == Token("s3cret", 1_001.0)


# -- a token endpoint --------------------------------------------------------------------------------------------------


class Endpoint(HttpServer):
    """A token endpoint on this machine: it answers with ``status`` and ``body``, and notes what it was asked."""

    status = 200
    given = b'{"access_token": "abc", "expires_in": 60}'
    location = ""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, list[str]], Message]] = []
        super().__init__(self._give)
        self.url += "/token"

    def _give(self, asked: Asked) -> Answer:
        self.asked.append((asked.path, parse_qs(asked.body.decode()), asked.headers))
        return Answer(self.status, self.given, {"Location": self.location} if self.location else {})


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as found:
        yield found


def oauth(url: str) -> OAuth:
    return OAuth(url, "alice", "s3cret", "kafka read")


def test_a_token_is_asked_for_as_the_other_clients_ask(endpoint: Endpoint) -> None:
    """Outage: an endpoint that takes the credentials of librdkafka and refuses those of the same principal here."""
    before = time.time()
    token = from_endpoint(oauth(endpoint.url))
    assert token.value == "abc" and before + 60 <= token.expires_at <= time.time() + 60
    [(_, form, headers)] = endpoint.asked
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka read"]}
    assert headers["Authorization"] == f"Basic {base64.b64encode(b'alice:s3cret').decode()}"


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (401, b'{"error": "invalid_client"}', NotAuthorized, "refuses the client alice (HTTP 401, invalid_client)"),
        (400, b"<html>s3cret", NotAuthorized, "HTTP 400, no reason given"),
        (503, b"", BrokerUnreachable, "HTTP 503"),
        (429, b"", BrokerUnreachable, "HTTP 429"),
        (200, b"<html>", NotAuthorized, "something other than a token"),
        (200, b'{"access_token": "abc"}', NotAuthorized, "something other than a token"),
        (200, b'{"access_token": "abc", "expires_in": 0}', NotAuthorized, "something other than a token"),
    ],
)
def test_an_endpoint_that_gives_no_token_is_named_and_only_what_may_pass_is_tried_again(
    endpoint: Endpoint, status: int, body: bytes, error: type[Exception], says: str
) -> None:
    """Outage: a supervisor that restarts a stream with a wrong secret for ever, or gives up after a short failure."""
    endpoint.status, endpoint.given = status, body
    with pytest.raises(error) as failure:
        from_endpoint(oauth(endpoint.url))
    assert says in str(failure.value) and endpoint.url in str(failure.value) and "s3cret" not in str(failure.value)


def test_an_endpoint_that_is_away_may_come_back() -> None:
    """Outage: a stream that stays down after a restart of the identity provider."""
    with pytest.raises(BrokerUnreachable, match=r"http://127\.0\.0\.1:1/token does not give"):
        from_endpoint(oauth("http://127.0.0.1:1/token"))


def test_the_secret_follows_no_redirect(endpoint: Endpoint) -> None:
    """Loss of a secret: to whatever host an endpoint, or one who stands before it, points to."""
    endpoint.status, endpoint.location = 302, endpoint.url.replace("/token", "/other")
    with pytest.raises(NotAuthorized, match="HTTP 302"):
        from_endpoint(oauth(endpoint.url))
    assert [path for path, _, _ in endpoint.asked] == ["/token"]


def test_the_end_of_a_token_s_life_is_in_the_answer_or_in_the_token() -> None:
    """Outage: an endpoint that leaves out expires_in, as RFC 6749 allows."""
    claims = base64.urlsafe_b64encode(json.dumps({"exp": 2_000}).encode()).decode().rstrip("=")
    jwt = f"e30.{claims}.sig"
    assert token_in(json.dumps({"access_token": jwt}).encode(), 1_000.0) == Token(jwt, 2_000.0)
    assert token_in(json.dumps({"access_token": jwt, "expires_in": "30"}).encode(), 1_000.0) == Token(jwt, 1_030.0)
    for broken in ("a.b.c", "a", "e30.e30.", 7):
        assert token_in(json.dumps({"access_token": broken}).encode(), 1_000.0) is None
