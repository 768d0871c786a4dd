"""``exactly_once.check``: what a start would refuse later is refused before a query starts, and nothing is changed."""

from __future__ import annotations

import json
import re
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

import exactly_once
from exactly_once.coordinator.start import check
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka import asking
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.names import commit_log_topic
from exactly_once.protocol.row_schema import Column
from testkit.broker import create_topic, fresh_name
from testkit.fixtures import Bench, StartDriver
from testkit.made_sink import MadeSink
from testkit.stream import Refused, SparkDriver

#: A look takes 0.05 to 0.1 s. One that waits anywhere in a client, for 0.5 s or more, is never as fast.
SOON_S = 0.5

#: On a busy machine one of so many tries is fast.
TRIES = 10

VALUE: list[Column] = [("value", "string")]

T = TypeVar("T")


@pytest.fixture
def options(connection: Connection, tmp_path: Path) -> dict[str, str]:
    """Those of a stream that may start."""
    topic = create_topic(connection.bootstrap_servers)
    ours = {"sink.id": fresh_name("sink"), "topic": topic, "checkpointLocation": str(tmp_path / "c")}
    return {**connection.spark(), **ours}


def refusal(options: dict[str, str], columns: list[Column] | None = None, batch: bool = False) -> ExactlyOnceError:
    """What is refused, soon."""

    def look() -> ExactlyOnceError:
        with pytest.raises(ExactlyOnceError) as refused:
            check(options, VALUE if columns is None else columns, batch)
        return refused.value

    return soon(look)


def soon(look: Callable[[], T], limit_s: float = SOON_S) -> T:
    """What ``look`` returns; one of its tries is fast."""
    for _ in range(TRIES):
        began = time.monotonic()
        found = look()
        took_s = time.monotonic() - began
        print(f"{took_s * 1000:.0f} ms: {found}")
        if took_s < limit_s:
            return found
    raise AssertionError(f"none of {TRIES} tries took less than {limit_s} s")


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many clients of each kind connect to the brokers."""
    made: Counter[str] = Counter()

    def counting(module: ModuleType, name: str) -> None:
        kind = getattr(module, name)

        def make(*args: Any, **settings: Any) -> Any:
            made[name] += 1
            return kind(*args, **settings)

        monkeypatch.setattr(module, name, make)

    counting(asking, "_Client")
    return made


def planned(location: Path, batch: int, query: str = "q") -> None:
    """A checkpoint with this batch in flight."""
    for folder in ("offsets", "commits"):
        (location / folder).mkdir(parents=True, exist_ok=True)
    (location / "metadata").write_text(json.dumps({"id": query}))
    for n in range(batch + 1):
        (location / "offsets" / str(n)).write_text(f'v1\n{{"batchTimestampMs":1}}\n{{"t":{{"0":{n + 1}}}}}')
    for n in range(batch):
        (location / "commits" / str(n)).write_text("v1\n{}")


def test_a_stream_that_may_start_passes_and_leaves_nothing_behind(
    connection: Connection, options: dict[str, str]
) -> None:
    """Guards against a look that creates the commit log, or fences a driver."""
    assert soon(lambda: check(options, VALUE).sink_id) == options["sink.id"]
    with Admin(connection) as admin:
        assert commit_log_topic(options["sink.id"]) not in admin.topics()


def test_what_the_first_batch_would_refuse_is_refused(options: dict[str, str]) -> None:
    """Mishap: each of them came as line 9 to 25 of Spark's error, after the query had started."""
    assert "did you mean kafka.linger.ms?" in refusal({**options, "kafka.linger.m": "5"}).way_out
    assert refusal(options, [("value", "int")]).code == "EO-SCHEMA"
    found = refusal({**options, "topic": options["topic"] + "-2"})
    assert found.code == "EO-TOPIC" and options["topic"] in found.what
    assert refusal({**options, "kafka.transaction.timeout.ms": "900001"}).code == "EO-TIMEOUT"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        away = f"127.0.0.1:{closed.getsockname()[1]}"
        found = refusal({**options, "kafka.bootstrap.servers": away})
    assert found.code == "EO-UNREACHABLE" and away in found.what


def test_a_look_connects_as_often_as_it_must(
    connection: Connection, options: dict[str, str], tmp_path: Path, clients: Counter[str]
) -> None:
    """Guards against a start that gets slower with each question: a new client costs a connection and a log-in."""

    def made_by(given: dict[str, str], columns: list[Column] = VALUE) -> dict[str, int]:
        clients.clear()
        with suppress(ExactlyOnceError):
            check(given, columns)
        return dict(clients)

    assert made_by({**options, "kafka.linger.m": "5"}) == {}
    assert made_by(options, [("value", "int")]) == {}
    assert made_by(options).get("_Client", 0) <= 1
    assert made_by(options) == {}  # the client is kept
    assert made_by({**options, "topic": options["topic"] + "-2"}) == {}
    theirs = MadeSink(connection, options["topic"], query_id=f"query-{uuid.uuid4()}")
    theirs.claim()
    theirs.batch(0, [("k", "v", 0)])
    assert made_by({**options, "sink.id": theirs.sink_id}) == {}
    planned(tmp_path / "c", 0, theirs.query_id)
    assert made_by(options) == {}


def test_a_checkpoint_that_another_sink_wrote_is_refused_and_that_sink_is_named(
    connection: Connection, options: dict[str, str], tmp_path: Path
) -> None:
    """Duplicates: after a slip in sink.id a query ran for a minute without a word, until its first record came."""
    query_id = f"query-{uuid.uuid4()}"  # other tests of this broker have sinks of the query "q"
    theirs = MadeSink(connection, options["topic"], query_id=query_id)
    theirs.claim()
    theirs.batch(0, [("k", "v", 0)])
    planned(tmp_path / "c", 0, query_id)
    found = refusal(options)
    assert found.code == "EO-REWOUND" and f"sink {theirs.sink_id} holds batch 0 of this query" in found.what
    assert f"Set sink.id back to {theirs.sink_id}" in found.way_out
    planned(tmp_path / "c", 1, query_id)
    found = refusal(options)
    assert found.code == "EO-REWOUND" and f"Sink {theirs.sink_id} holds batch 0 of this query" in found.what
    check({**options, "sink.guarantee": "at_least_once"}, VALUE)
    check({**options, "sink.id": theirs.sink_id}, VALUE)


def test_a_sink_of_another_checkpoint_is_refused_with_the_path_of_that_checkpoint(
    connection: Connection, options: dict[str, str]
) -> None:
    """Mishap: two UUIDs, of which nobody knows whose they are."""
    theirs = MadeSink(connection, options["topic"])
    theirs.claim()
    found = refusal({**options, "sink.id": theirs.sink_id})
    assert found.code == "EO-SINK-OWNED" and "query q (checkpoint /c)" in found.what
    write = {name: value for name, value in options.items() if name != "checkpointLocation"} | {"write.id": "w"}
    assert "query q (checkpoint /c)" in refusal({**write, "sink.id": theirs.sink_id}, batch=True).what
    check(write, VALUE, batch=True)


def test_a_dataframe_is_checked_without_a_trace_of_the_jvm(bench: Bench, warm: SparkDriver) -> None:
    """The thin adapter: columns, session and mode are those of a real DataFrame."""
    soon(lambda: warm.ask("check", job=vars(bench.job)), 2 * SOON_S)
    wrong = {
        "EO-SCHEMA": replace(bench.job, select=["1 value"]),
        "EO-OPTION": bench.job.having(kafka_compresion_type="lz4"),
        "EO-TOPIC": bench.job.having(topic=f"{bench.topic}-2"),
        "EO-MODE": replace(bench.job, output_mode="update"),
    }
    for code, job in wrong.items():
        with pytest.raises(Refused, match=rf"\d s, {code}: .*What to do: ") as refused:
            warm.ask("check", job=vars(job))
        assert "at org.apache" not in str(refused.value)
    assert bench.decided_batches() == [] and not bench.checkpoint.exists()


def test_foreach_batch_refuses_before_a_query_starts(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a refusal that comes with the first batch, wrapped twice, or never."""
    job = replace(bench.job.having(topic=f"{bench.topic}-2"), participants=[])
    with pytest.raises(Refused, match=r"EO-TOPIC: .*What to do: "):
        warm.start(job)
    assert not bench.checkpoint.exists()


@pytest.mark.long
def test_a_session_is_told_at_its_registration_that_it_cannot_read_kafka(
    bench: Bench, warm: SparkDriver, driver: StartDriver
) -> None:
    """Mishap: KAFKA_DATA_SOURCE_NOT_ENABLED, "as per the deployment section of the Guide". Tasks cannot send either."""
    bare = driver(conf={"spark.jars": exactly_once.jar()})
    with pytest.raises(Refused, match=r"EO-CONNECTOR: .*KafkaProducer"):
        bare.ask("check", job=vars(bench.job))
    assert re.search(r"EO-WARN-CONNECTOR .*no Kafka connector", bare.log.read_text())
    assert "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:" in bare.log.read_text()
    warm.ask("check", job=vars(bench.job))
    assert "EO-WARN-CONNECTOR" not in warm.log.read_text()
