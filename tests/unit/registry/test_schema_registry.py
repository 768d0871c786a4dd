"""Schema registry: what the options mean, what stands before a record, what an answer means; no sentence has the
secret.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import pickle
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from exactly_once.errors import InvalidOption, InvalidSchema, NotAuthorized, RegistryUnreachable
from exactly_once.formats.registry import schema_registry
from exactly_once.formats.registry.schema_registry import prefix, resolve
from exactly_once.framing import Framing
from exactly_once.kafka.connection import Connection
from exactly_once.options import SinkOptions
from exactly_once.protocol.planning import Plan
from exactly_once.schema_options import Registry, Side
from exactly_once.spark.run import QueryRun
from testkit.registry import message_type

URL = "http://registry:8081"
SECRET = "hunter2-and-more"


def parse(topic: str | None = "t", **options: str) -> Registry | None:
    """The options, ``_`` for ``.``, with a registry."""
    return Registry.parse({"schema.registry.url": URL, **{k.replace("_", "."): v for k, v in options.items()}}, topic)


def sides(topic: str | None = "t", **options: str) -> tuple[Side, ...]:
    registry = parse(topic, **options)
    assert registry is not None
    return registry.sides


# -- options --------------------------------------------------------------------------------------------------------


def test_without_a_registry_nothing_is_framed() -> None:
    """A stream that never heard of registries must not change."""
    assert Registry.parse({"topic": "t", "sink.id": "s", "key.serializer": "x"}, "t") is None
    assert Framing() == Framing(b"", b"")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (Side("value", "t-value"),)),
        ({"value_schema": '"int"'}, (Side("value", "t-value", '"int"', "AVRO"),)),
        ({"value_schema_type": "json"}, (Side("value", "t-value", None, "JSON"),)),
        (
            {"value_schema": "x", "value_schema_type": "PROTOBUF", "value_schema_message_indexes": "1, 0"},
            (Side("value", "t-value", "x", "PROTOBUF", False, (1, 0)),),
        ),
        (
            {"value_schema": "x", "value_schema_register": "True", "value_schema_subject": "own"},
            (Side("value", "own", "x", "AVRO", True),),
        ),
        ({"key_schema": '"int"'}, (Side("key", "t-key", '"int"', "AVRO"), Side("value", "t-value"))),
        ({"key_schema_subject": "k", "value_schema_type": "NONE"}, (Side("key", "k"),)),
        ({"value_schema_type": "none"}, ()),
        ({"value_format": "json"}, (Side("value", "t-value", None, "JSON", encodes=True),)),
        (
            {"value_format": "Avro", "value_schema_register": "true"},
            (Side("value", "t-value", None, "AVRO", True, encodes=True, name="t_value"),),
        ),
        (
            {"value_format": "protobuf", "value_schema_register": "true", "value_schema_name": "shop.Order"},
            (Side("value", "t-value", None, "PROTOBUF", True, encodes=True, name="shop.Order"),),
        ),
        (
            {"value_schema": "x", "value_schema_subject_strategy": "record"},
            (Side("value", "", "x", "AVRO", by_record=True),),
        ),
        (
            {"value_schema": "x", "value_schema_subject_strategy": "topic-record"},
            (Side("value", "t-", "x", "AVRO", by_record=True),),
        ),
        (
            {"key_format": "avro", "value_schema_type": "NONE"},
            (Side("key", "t-key", None, "AVRO", encodes=True),),
        ),
    ],
)
def test_values_are_framed_unless_the_user_says_no_and_keys_when_he_says_so(
    options: dict[str, str], expected: tuple[Side, ...]
) -> None:
    """A value that is silently not framed cannot be read by anybody; a plain string key is the rule."""
    assert sides(**options) == expected


@pytest.mark.parametrize(
    ("topic", "sink", "name"), [("2-orders.out", "s", "_2_orders_out_value"), (None, "a-b", "a_b_value")]
)
def test_a_schema_that_is_made_is_named_after_the_topic_or_after_the_sink(
    topic: str | None, sink: str, name: str
) -> None:
    """Guards against a name that Avro and Protobuf refuse, for an option that the user did not set."""
    given = {
        "schema.registry.url": URL,
        "sink.id": sink,
        "value.format": "avro",
        "value.schema.register": "true",
        "value.schema.subject.strategy": "record",
    }
    found = Registry.parse(given, topic)
    assert found is not None and [s.name for s in found.sides] == [name]


def test_rows_that_name_their_topics_need_a_subject() -> None:
    """There is no <topic>-value then; one made of "None" would be found nowhere, or worse, somewhere."""
    with pytest.raises(InvalidOption, match=r"value\.schema\.subject is missing"):
        parse(None)
    assert sides(None, value_schema_subject="s") == (Side("value", "s"),)


@pytest.mark.parametrize("topic", [None, "elsewhere"])
def test_subjects_are_named_after_a_topic_of_their_own_where_rows_name_theirs(topic: str | None) -> None:
    """Guards against a subject to spell out for each side, where rejected rows have a topic of their own."""
    given = {
        "sink.id": "s",
        "checkpointLocation": "/c",
        "kafka.bootstrap.servers": "h:1",
        "schema.registry.url": URL,
        "schema.registry.topic": "orders",
        "key.schema.type": "AVRO",
        "value.format": "avro",
        "value.schema.register": "true",
        "value.schema.subject.strategy": "topic-record",
        **({"topic": topic} if topic else {}),
    }
    registry = SinkOptions.parse(given).registry
    assert registry is not None
    key, value = registry.sides
    assert (key.subject, value.subject, value.name) == ("orders-key", "orders-", "orders_value")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schema.registry.timeout": "1"}, "schema.registry.timeout is not an option"),
        ({"value.schemas": "x"}, "value.schemas is not an option"),
        ({"value.schema.version": "x"}, "value.schema.version is not an option"),
        ({"key.schema.sbuject": "x"}, "key.schema.sbuject is not an option"),
        ({"schema.registry.url": "registry:8081"}, "not an http:// or https:// address"),
        ({"schema.registry.url": ""}, "schema.registry.url is empty"),
        ({"schema.registry.url": f"{URL},"}, "not an http:// or https:// address"),
        ({"schema.registry.url": f"http://u:{SECRET}@h:1"}, "contains a user name"),
        ({"schema.registry.basic.auth.user.info": SECRET}, "user:password"),
        ({"schema.registry.ssl.ca.location": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
        ({"value.schema.type": "XML"}, "value.schema.type='XML'"),
        ({"value.schema.type": "NONE", "value.schema.subject": "s"}, "value.schema.subject is set"),
        ({"value.schema.register": "yes", "value.schema": "x"}, "value.schema.register='yes'"),
        ({"value.schema.register": "true"}, "value.schema is missing"),
        ({"value.schema.message.indexes": "-1"}, "value.schema.message.indexes='-1'"),
        ({"value.schema.message.indexes": "1", "value.schema": "x"}, "value.schema.type is AVRO"),
        ({"value.format": "arvo"}, "value.format='arvo'"),
        ({"value.format": "avro", "value.schema.type": "JSON"}, "value.schema.type is JSON"),
        ({"value.format": "avro", "value.schema.type": "NONE"}, "value.schema.type is NONE"),
        ({"value.schema.subject.strategy": "name"}, "strategy='name'"),
        ({"value.schema.subject.strategy": "record"}, "no schema says what the record's name is"),
        ({"value.schema.subject.strategy": "topic", "value.schema.subject": "s"}, "one names the subject"),
        ({"value.format": "avro", "value.schema.name": "X"}, "makes no schema that it could name"),
        (
            {"value.format": "avro", "value.schema.register": "true", "value.schema.name": "a-b"},
            "value.schema.name='a-b'",
        ),
        (
            {"value.format": "protobuf", "value.schema.register": "true", "value.schema.message.indexes": "1"},
            "value.schema is missing",
        ),
    ],
)
def test_a_mistake_is_named_before_anything_connects(options: dict[str, str], words: str) -> None:
    """Guards against an option that a user believes in and nobody reads, and against a secret in a log."""
    with pytest.raises(InvalidOption) as refusal:
        Registry.parse({"schema.registry.url": URL, **options}, "t")
    assert words in refusal.value.what
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize("option", ["value.schema", "key.schema.type", "schema.registry.ssl.ca.location"])
def test_schemas_without_a_registry_are_refused(option: str) -> None:
    """Guards against bytes without an id, where the user asked for one."""
    with pytest.raises(InvalidOption, match=r"schema\.registry\.url is not"):
        Registry.parse({option: "x"}, "t")


def test_the_sinks_options_bring_the_registry_and_never_show_its_secret() -> None:
    """The options' repr is the key of a cache, and stands in a debugger's and a logger's output."""
    options = {
        "sink.id": "s",
        "checkpointLocation": "/c",
        "kafka.bootstrap.servers": "h:1",
        "topic": "t",
        "Schema.Registry.Url": URL,
        "schema.registry.basic.auth.user.info": f"u:{SECRET}",
        "VALUE.SCHEMA": '"int"',
    }
    parsed = SinkOptions.parse(options)
    assert parsed.registry == Registry(URL, f"u:{SECRET}", None, (Side("value", "t-value", '"int"', "AVRO"),))
    assert SECRET not in repr(parsed)


# -- the wire -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema_id", "kind", "indexes", "expected"),
    [
        (1, "AVRO", (0,), "00 00000001"),
        (0x01020304, "JSON", (0,), "00 01020304"),
        (7, "PROTOBUF", (0,), "00 00000007 00"),
        (7, "PROTOBUF", (1,), "00 00000007 02 02"),
        (7, "PROTOBUF", (0, 0), "00 00000007 04 00 00"),
        (7, "PROTOBUF", (70, 3), "00 00000007 04 8c01 06"),
    ],
)
def test_a_prefix_is_magic_byte_id_and_message(
    schema_id: int, kind: str, indexes: tuple[int, ...], expected: str
) -> None:
    """One wrong byte and no reader in the company can read the topic."""
    assert prefix(schema_id, kind, indexes) == bytes.fromhex(expected)


@pytest.mark.parametrize("indexes", [(0,), (1,), (0, 0), (1, 0, 2), (63,), (64,), (8191, 8192)])
def test_confluents_own_reader_finds_the_message_behind_any_path(indexes: tuple[int, ...]) -> None:
    """Guards against a path that is a byte too long or too short: the message would begin somewhere inside."""
    kind = message_type("Delay")
    framed = prefix(9, "PROTOBUF", indexes) + kind(carrier="UA", minutes=-3).SerializeToString()
    read = ProtobufDeserializer(kind, {"use.deprecated.format": False})
    assert read(framed, SerializationContext("t", MessageField.VALUE)) == kind(carrier="UA", minutes=-3)


def test_the_framing_reaches_the_tasks() -> None:
    """It travels inside the pickled writer."""
    framing = Framing(b"\0k", b"\0v")
    assert pickle.loads(pickle.dumps(framing)) == framing


# -- answers --------------------------------------------------------------------------------------------------------


class Server:
    """A server that says one thing to everybody."""

    def __init__(self, status: int, body: bytes):
        server = self
        self.status, self.body, self.asked = status, body, 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked += 1
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(server.status)
                self.send_header("Content-Length", str(len(server.body)))
                self.end_headers()
                self.wfile.write(server.body)

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def secure(self, certificate: Path, key: Path) -> None:
        """Speak TLS from now on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = self.url.replace("http:", "https:")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


LATEST = {"subject": "t-value", "version": 3, "id": 11, "schema": '"int"'}


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server(200, json.dumps(LATEST).encode())
    yield one
    one.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second between two tries."""
    monkeypatch.setitem(schema_registry._RETRIES, "retries.wait.ms", 1)
    monkeypatch.setitem(schema_registry._RETRIES, "retries.max.wait.ms", 1)


def registry_at(url: str, **options: str) -> Registry:
    found = parse(schema_registry_url=url, schema_registry_basic_auth_user_info=f"u:{SECRET}", **options)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (401, {"error_code": 401, "message": f"no {SECRET}"}, NotAuthorized, "refuses access to subject 't-value'"),
        (403, {"error_code": 40301, "message": "no"}, NotAuthorized, "(403)"),
        (404, {"error_code": 40401, "message": "no"}, InvalidSchema, "subject 't-value' has no schema"),
        (404, {"error_code": 40402, "message": "no"}, InvalidSchema, "subject 't-value' has no schema"),
        (404, {"error_code": 40403, "message": "no"}, InvalidSchema, "is not registered under subject 't-value'"),
        (409, {"error_code": 409, "message": "no"}, InvalidSchema, "is incompatible with"),
        (422, {"error_code": 42201, "message": f"u:{SECRET}"}, InvalidSchema, "does not accept value.schema"),
        (500, {"error_code": 50001, "message": "store"}, RegistryUnreachable, "answers 500: store"),
        (503, {"error_code": 503, "message": "starting"}, RegistryUnreachable, "answers 503"),
        (429, {"error_code": 429, "message": "slow"}, RegistryUnreachable, "answers 429"),
        (404, None, InvalidOption, "answers 404"),
        (200, {"hello": "world"}, InvalidOption, "without a schema id"),
    ],
)
def test_each_answer_has_its_error_which_says_whether_a_restart_heals_it(
    status: int, body: dict[str, Any] | None, error: type[Exception], words: str, server: Server
) -> None:
    """A supervisor that restarts on a wrong password locks the account; one that does not restart on a registry that
    is starting up leaves a stream down for a night.
    """
    server.status, server.body = status, json.dumps(body).encode() if body else b"<html>not here</html>"
    with pytest.raises(error) as refusal:
        resolve(registry_at(server.url, value_schema='"int"'))
    assert words in str(refusal.value)
    assert SECRET not in str(refusal.value)
    assert refusal.value.__cause__ is None, "the library's own error is not shown below ours: it may hold the secret"


def test_a_registry_that_is_away_is_named_and_healed_by_a_restart() -> None:
    """Guards against a start that hangs, and against a library's stack trace."""
    away = Server(200, b"")
    away.close()
    with pytest.raises(RegistryUnreachable, match=f"at {away.url} does not answer") as refusal:
        resolve(registry_at(away.url))
    assert SECRET not in str(refusal.value)


def test_the_second_address_is_asked_when_the_first_is_away(server: Server) -> None:
    """A comma-separated list is there for that."""
    away = Server(200, b"")
    away.close()
    assert resolve(registry_at(f"{away.url},{server.url}")) == Framing(value=prefix(11, "AVRO"))


def test_the_latest_version_says_what_it_is_written_in(server: Server) -> None:
    """Guards against a Protobuf message without its path, which the user need not know about."""
    server.body = json.dumps({**LATEST, "schemaType": "PROTOBUF"}).encode()
    assert resolve(registry_at(server.url)) == Framing(value=prefix(11, "PROTOBUF"))


@pytest.mark.parametrize(
    "option", [{"value_schema_type": "JSON"}, {"value_schema_message_indexes": "1"}], ids=["type", "message"]
)
def test_what_contradicts_the_latest_version_is_refused(option: dict[str, str], server: Server) -> None:
    """The user means another subject than he wrote."""
    with pytest.raises(InvalidSchema, match="of type AVRO"):
        resolve(registry_at(server.url, **option))


def test_a_trust_store_that_is_none_is_refused(tmp_path: Path) -> None:
    """The user exported the wrong file."""
    (tmp_path / "ca.pem").write_text("nothing")
    registry = registry_at("https://127.0.0.1:9", schema_registry_ssl_ca_location=str(tmp_path / "ca.pem"))
    with pytest.raises(InvalidOption, match="refuses a setting"):
        resolve(registry)


def test_a_certificate_is_checked_against_the_users_own_authority(server: Server, tmp_path: Path) -> None:
    """Guards against a check that is left out, and against a "no answer" that sends people to the network team."""
    now, key = dt.datetime.now(dt.UTC), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "registry")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(key, hashes.SHA256())
    )
    ca, own = tmp_path / "ca.pem", tmp_path / "key.pem"
    ca.write_bytes(certificate.public_bytes(Encoding.PEM))
    own.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    server.secure(ca, own)
    with pytest.raises(InvalidOption, match=r"is not trusted.*schema\.registry\.ssl\.ca\.location"):
        resolve(registry_at(server.url))
    framing = resolve(registry_at(server.url, schema_registry_ssl_ca_location=str(ca)))
    assert framing == Framing(value=prefix(11, "AVRO"))


# -- the driver's life ----------------------------------------------------------------------------------------------


class _Planned:
    """A coordinator, as far as a run asks it about the registry."""

    def __init__(self, registry: Registry | None):
        self.options = SinkOptions("s", Connection("h:1"), "t", "/c", registry=registry)


def test_a_run_asks_once_and_keeps_what_it_was_told(server: Server) -> None:
    """Guards against a batch that a query runs again under another id, and a stream that dies with the registry."""
    run = QueryRun(_Planned(registry_at(server.url)))  # type: ignore[arg-type]
    assert run.framing(Plan.DRAIN) == Framing() and server.asked == 0, "nothing is written"
    first = run.framing(Plan.WRITE)
    server.body = json.dumps({**LATEST, "id": 12}).encode()
    assert run.framing(Plan.REPLAY) == first == Framing(value=prefix(11, "AVRO"))
    assert server.asked == 1
    again = QueryRun(_Planned(registry_at(server.url)))  # type: ignore[arg-type]
    assert again.framing(Plan.WRITE) == Framing(value=prefix(12, "AVRO")), "the next start asks anew"
