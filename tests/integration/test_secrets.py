"""Secrets are planted, and everything that streams, recoveries, failures and commands write is searched for them."""

from __future__ import annotations

import base64
import json
import logging
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from exactly_once.coordinator.recover import recover
from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.sink import inspect_sink
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.names import commit_log_topic
from exactly_once_local.ports import free_port
from faultlab.state import TRANSFORM
from testkit import oracle
from testkit.broker import create_topic, fresh_name
from testkit.dead_sink import DeadSink
from testkit.fixtures import StartDriver
from testkit.http_server import Answer, Asked, HttpServer
from testkit.planted import (
    DATABASE,
    REGISTRY,
    REGISTRY_USER,
    WRONG,
    CommandLines,
    planted_below,
    planted_in,
)
from testkit.postgres import PostgresServer
from testkit.secure import JAVAS, PASSPHRASE, PASSWORD, SCRAM, TEXTS, USER, SecureBroker
from testkit.stream import ROOT, Input, Job

SCHEMA = json.dumps({"type": "string"})

#: Spark's default, and what SECURITY.md adds to it.
REDACTED = "(?i)secret|password|token|access[.]?key|keystore[.]key|user[.]info"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    broker = SecureBroker(tmp_path_factory.mktemp("secrets"))
    try:
        yield broker.start()
    finally:
        broker.kill()
        broker.stop()


@contextmanager
def registry() -> Iterator[str]:
    """A schema registry with one schema, which repeats the password of whoever it does not let in; its URL."""
    expected = "Basic " + base64.b64encode(f"{REGISTRY_USER}:{REGISTRY}".encode()).decode()

    def answer(asked: Asked) -> Answer:
        given = asked.headers.get("Authorization", "")
        subject = asked.path.split("/")[2] if asked.path.count("/") > 2 else ""
        known = {"subject": subject, "id": 7, "version": 1, "schema": SCHEMA}
        refused = {"error_code": 401, "message": f"no entry for {given}"}
        body = json.dumps(known if given == expected else refused).encode()
        kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        return Answer(200 if given == expected else 401, body, kind)

    with HttpServer(answer) as server:
        yield server.url


def raw(connection: Connection, topics: list[str]) -> str:
    """Keys, values and headers of all records."""
    return repr(oracle.read(connection, topics, committed=False))


@pytest.mark.long
def test_no_secret_is_in_anything_that_streams_write(
    secure: SecureBroker, driver: StartDriver, postgres: PostgresServer, tmp_path: Path
) -> None:
    """Leak: whoever may see a log, Spark's UI, a checkpoint, a topic or ``ps`` on the host has the password."""
    plain, connection = Connection(secure.bootstrap_servers), secure.connection(SCRAM, passphrase=PASSPHRASE)
    topic, sinks = create_topic(secure.bootstrap_servers, partitions=2), [fresh_name("sink") for _ in range(3)]
    postgres.sql("DROP TABLE IF EXISTS secrets")
    postgres.sql("CREATE TABLE secrets (key text, value text)")
    data = Input(tmp_path / "input", parts=2, rows=20)
    data.add()
    events = tmp_path / "events"
    events.mkdir()
    port = free_port()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",  # the search reads bytes
        "spark.eventLog.dir": f"file://{events}",
        "spark.sql.ui.explainMode": "extended",  # the plan of a batch write then has its options
        "spark.redaction.regex": REDACTED,
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
    }
    database = f"{postgres.dsn(tcp=True)} password='{DATABASE}'"
    said, runs = list[str](), list[str]()
    with CommandLines() as commands, registry() as url:
        spark = driver(conf=conf)
        spark.ask("level", name="INFO")
        common = {**connection.spark(), "topic": topic}
        login = {name: value for name, value in common.items() if not name.startswith("kafka.ssl.")}
        stores, texts = ({**login, **secure.stores(form)} for form in (JAVAS, TEXTS))
        ids = {
            "schema.registry.url": url,
            "schema.registry.basic.auth.user.info": f"{REGISTRY_USER}:{REGISTRY}",
        }
        framed = {**ids, "sink.id": sinks[0], "checkpointLocation": str(tmp_path / "checkpoint-0")}
        first = Job(data.source(), {**stores, **framed}, transform=TRANSFORM).until_stopped()
        both = {"sink.id": sinks[1], "checkpointLocation": str(tmp_path / "checkpoint-1")}
        participant = {
            "class": "exactly_once.outputs.postgres:PostgresParticipant",
            "name": "warehouse",
            "dsn": database,
            "table": "secrets",
        }
        second = Job(data.source(), {**common, **both}, participants=[participant]).until_stopped()
        for job in (first, second):
            run = spark.start(job)
            run.await_commit(0)
            runs.append(run.run_id)
            said += [spark.ask("explain", run=run._run), *pages(port)]
            run.stop()()
            said.append(str(run.end()))
        said += batch_writes(spark, {**texts, **ids, "sink.id": sinks[2]}, port)
        said += failures(spark, Job(data.source(), first.options), second, participant)
    assert planted_in(PASSWORD) == ["the SASL password"], "the search works"
    assert planted_in(texts["kafka.ssl.keystore.key"]) == ["the private key"], "that for the key, too"
    kept = b"".join(path.read_bytes() for path in events.rglob("*") if path.is_file())
    assert b"kafka.ssl.keystore.key=" in kept, "Spark shows the options of a batch write"
    assert all(run.encode() in kept and any(run in text for text in said) for run in runs), "so does what is searched"
    assert list(tmp_path.glob("checkpoint-0/state/**/*.delta")), "one of them has state"
    assert any("java" in line.decode(errors="replace") for line in commands.seen), "the watch saw the driver"
    assert len(oracle.read(plain, [topic])) == 80 + 40 and len(postgres.sql("SELECT * FROM secrets")) == 40
    spark.close()
    assert commands.found == {}
    assert planted_in(raw(plain, [topic, *map(commit_log_topic, sinks)])) == []
    assert [planted_in(text) for text in said] == [[]] * len(said), said
    assert planted_below(tmp_path) == {}


def batch_writes(spark: Any, options: dict[str, str], port: int) -> list[str]:
    """What a batch write shows, and one that is refused: Spark's plan of such a write has its options."""
    said = []
    for name, more in {"good": {}, "refused": {"topic": "nowhere"}}.items():
        ended = spark.write_batch({**options, "write.id": name, **more})
        assert (ended.failure is None) == (name == "good"), ended.failure
        said += [str(ended), *pages(port)]
    return said


def pages(port: int) -> list[str]:
    """What Spark's UI shows of the session and of its queries."""
    found = []
    for page in ("environment/", "StreamingQuery/", "SQL/", "SQL/execution/?id=0", "jobs/", "stages/", "executors/"):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=30) as answer:
            found.append(answer.read().decode())
    return found


def failures(spark: Any, framed: Job, both: Job, participant: dict[str, str]) -> list[str]:
    """What queries say that nobody lets in."""
    jaas = framed.options["kafka.sasl.jaas.config"].replace(PASSWORD.replace('"', '\\"'), WRONG)
    assert WRONG in jaas
    wrong = [
        framed.having(kafka_sasl_jaas_config=jaas),
        framed.having(kafka_ssl_key_password=WRONG),
        framed.having(kafka_ssl_truststore_password=WRONG),
        both.having(kafka_ssl_key_password=WRONG),
        framed.having(schema_registry_basic_auth_user_info=f"{REGISTRY_USER}:{WRONG}"),
    ]
    said = []
    for n, job in enumerate(wrong):
        job.options["checkpointLocation"] += f"-wrong-{n}"
        job.options["sink.id"] += f"-wrong-{n}"
        ended = spark.run(job)
        assert ended.code in ("EO-DENIED", "EO-UNREACHABLE", "EO-REGISTRY", "EO-OPTION"), ended.failure
        said.append(ended.failure)
    dsn = participant["dsn"].replace(DATABASE, WRONG)
    refused = Job(both.source, dict(both.options), participants=[{**participant, "dsn": dsn}])
    refused.options["checkpointLocation"] += "-wrong"
    refused.options["sink.id"] += "-wrong"
    ended = spark.run(refused)
    assert ended.failure
    return [*said, ended.failure]


COMMANDS = (
    ["transactions", "list", "--all"],
    ["transactions", "list", "--sink", "{sink}", "--json"],
    ["transactions", "explain", "{id}"],
    ["recover", "{sink}", "--dry-run"],
    ["recover", "{sink}"],
    ["doctor", "--sink", "{sink}"],
    ["checkpoint", "inspect", "{folder}", "--sink", "{sink}"],
)


@pytest.mark.long
@pytest.mark.parametrize("password", [PASSWORD, WRONG], ids=["right", "wrong"])
def test_no_secret_is_in_what_the_command_line_prints(secure: SecureBroker, password: str, tmp_path: Path) -> None:
    """Leak: what a person pastes into a ticket."""
    sink = DeadSink(Connection(secure.bootstrap_servers), create_topic(secure.bootstrap_servers, partitions=2))
    name = sink.open_part(0)
    settings = secure.connection(SCRAM, password, PASSPHRASE)
    environment = {
        "KAFKA_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
        "KAFKA_SASL_USERNAME": USER,
        "KAFKA_SASL_PASSWORD": password,
        "KAFKA_SSL_CA_LOCATION": str(settings.ssl_ca),
        "KAFKA_SSL_IDENTITY_LOCATION": str(settings.ssl_identity),
        "KAFKA_SSL_KEY_PASSWORD": PASSPHRASE,
    }
    some = COMMANDS if password == PASSWORD else COMMANDS[:1]
    with CommandLines() as commands:
        for command in some:
            filled = [word.format(sink=sink.sink_id, id=name, folder=tmp_path) for word in command]
            ended = subprocess.run(
                [sys.executable, "-m", "exactly_once.tools.cli", *filled],
                env={**os.environ, **environment},
                cwd=ROOT,
                capture_output=True,
                timeout=60,
            )
            assert planted_in(ended.stdout + ended.stderr) == [], command
    assert commands.found == {}


@pytest.mark.long  # a broker with TLS of its own; make test has the connection's and the options' logs in tests/unit
def test_no_secret_is_in_the_log_of_a_process_that_logs_everything(
    secure: SecureBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Leak: somebody sets the root logger to DEBUG for an hour, and the clients log their configuration."""
    sink = DeadSink(Connection(secure.bootstrap_servers), create_topic(secure.bootstrap_servers, partitions=2))
    sink.decide(sink.open_part(0), placed=True)
    connection = secure.connection(SCRAM, passphrase=PASSPHRASE)
    with caplog.at_level(logging.DEBUG):
        inspect_sink(connection, sink.sink_id)
        assert recover(connection, sink.sink_id).clean
        for wrong in (secure.connection(SCRAM, WRONG, PASSPHRASE), secure.connection(SCRAM, passphrase=WRONG)):
            began = time.monotonic()
            with pytest.raises(ExactlyOnceError) as refused:
                Admin(wrong, 3)
            assert time.monotonic() - began < 15
            assert planted_in(repr(refused.value) + repr(refused.value.__cause__) + repr(wrong)) == []
    assert caplog.records and planted_in(caplog.text) == []
