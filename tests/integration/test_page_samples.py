"""Each sample of Python in the users' pages does what its page says: those that no page runner, no recipe and no test
of a page of its own runs are run here.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Producer

import exactly_once
from dagster_exactly_once import (
    Checks,
    DeadLetters,
    exactly_once_definitions,
    exactly_once_resources,
    exactly_once_stream,
)
from exactly_once.kafka.connection import Connection
from exactly_once.options import SinkOptions
from testkit import broker as brokers
from testkit import oracle
from testkit.postgres import PostgresServer
from testkit.stream import PATIENCE_S, ROOT

#: Pages whose samples all have tests of their own.
ELSEWHERE = {"streams.md", "pipelines.md", "whole-batches.md"}

#: What needs a service of others, with the words that a test of its own would need: an identity of a cloud.
NOT_RUN = {"from aws_msk_iam_sasl_signer import MSKAuthTokenProvider"}

#: The samples of this file, by page and by words that no other sample of the page has.
RUN = {
    ("dead-letters.md", 'options["sink.dead.letter.topic"]'),
    ("dead-letters.md", "DeadLetters("),
    ("formats.md", '"schema.registry.url"'),
    ("one-bad-record.md", "orders = exactly_once.attempt(events, "),
    ("one-bad-record.md", "exactly_once.split(rows"),
    ("operate.md", "exactly_once.inspect("),
    ("operate.md", 'options["sink.trace"]'),
    ("operate.md", "exactly_once.trace_headers()"),
    ("participant.md", "DeltaParticipant("),
    ("reference.md", "exactly_once.configure("),
    ("reference.md", "df.write.format("),
    ("reference.md", "sink = exactly_once.foreach_batch("),
    ("security-oauth.md", '"kafka.sasl.oauthbearer.token.endpoint.url"'),
    ("security-oauth.md", "token.provider"),
    ("successor.md", "continues="),
    ("successor.md", "beside="),
    ("verify.md", "concat_ws("),
}

BASE = {"sink.id": "orders", "topic": "orders_out", "kafka.bootstrap.servers": "broker:9092"}


def samples(page: Path) -> list[tuple[str, str]]:
    """The info string and the text of each sample of a page."""
    return re.findall(r"^```python([^\n]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)


def run(page: str, words: str, places: dict[str, str] | None = None, **names: Any) -> dict[str, Any]:
    """Run a sample with these names, and with some of its words replaced; return all names that it leaves, and as
    ``_value`` that of its last line, if it is an expression.
    """
    assert (page, words) in RUN
    [text] = [text for _, text in samples(ROOT / "docs" / page) if words in text]
    for here, there in (places or {}).items():
        assert here in text
        text = text.replace(here, there)
    tree = ast.parse(text)
    if isinstance(last := tree.body[-1], ast.Expr):
        tree.body[-1] = ast.Assign([ast.Name("_value", ast.Store())], last.value)
    exec(compile(ast.fix_missing_locations(tree), page, "exec", dont_inherit=True), names)
    return names


def value(page: str, words: str, places: dict[str, str] | None = None, **names: Any) -> Any:
    """Run a sample likewise; return the value of its last line."""
    return run(page, words, places, **names)["_value"]


def test_each_sample_of_the_pages_is_run_somewhere() -> None:
    """Mishap: a sample with a mistake, which each reader finds anew."""
    left = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        own = [words for name, words in RUN if name == page.name]
        for info, text in samples(page):
            somewhere = "file=" in info or page.name in ELSEWHERE or any(words in text for words in own)
            tested = page.name == "participant.md" and "class " in text  # tests/integration/test_conformance_example.py
            if not (somewhere or tested or any(words in text for words in NOT_RUN)):
                left.append((page.name, text.splitlines()[0]))
    assert left == []


# -- options and declarations: they are read, and nothing starts


def test_options_of_the_pages_are_options_of_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mishap: the option that a page names is refused, or ignored."""
    options = BASE | {"checkpointLocation": "/data/checkpoints/orders"}
    run("dead-letters.md", 'options["sink.dead.letter.topic"]', options=options)
    run("operate.md", 'options["sink.trace"]', options=options)
    found = SinkOptions.parse(options)
    assert (found.dead_letters.topic, found.dead_letters.most, found.trace) == ("orders_dead", 100, True)

    made = run("security-oauth.md", '"kafka.sasl.oauthbearer.token.endpoint.url"', secret="s")["options"]
    assert Connection.from_options(made).oauth is not None
    theirs = ModuleType("my_company.kafka")
    theirs.token = lambda: ("a token", 2e9)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_company", ModuleType("my_company"))
    monkeypatch.setitem(sys.modules, "my_company.kafka", theirs)
    made = {k: v for k, v in made.items() if "oauthbearer" not in k}
    run("security-oauth.md", "token.provider", options=made)
    assert Connection.from_options(made).oauth is not None


def test_declarations_of_the_pages_load_in_dagster() -> None:
    """Mishap: the code location of a successor fails to load, when the older version is stopped already."""
    names = {"exactly_once_stream": exactly_once_stream, "Checks": Checks, "origin": "header:src"}
    where = {"(..., ": '(name="orders", source="orders", outputs=["orders_out"], '}
    dead = value("dead-letters.md", "DeadLetters(", where, DeadLetters=DeadLetters, **names)
    blue = exactly_once_stream(name="orders", source="orders", outputs=["orders_out"], checks=Checks(origin="key"))
    resources = exactly_once_resources(work_dir="spark", checkpoints="c", kafka={"bootstrap_servers": "127.0.0.1:1"})
    for streams in (
        [dead(lambda events: events)],
        [run("successor.md", "continues=", **names)["orders"]],
        [blue(lambda events: events), run("successor.md", "beside=", **names)["orders_v2"]],
    ):
        dg.Definitions.validate_loadable(exactly_once_definitions(*streams, resources=resources))


def test_outputs_of_the_pages_are_made_without_their_services() -> None:
    """Mishap: a code location that declares them does not load while the catalog is away."""
    run("participant.md", "DeltaParticipant(")


# -- what a query does with them


@pytest.fixture(scope="module")
def topic(connection: Connection) -> str:
    """An input: customer and cents, of which the second has headers, and the third is no order."""
    name = brokers.create_topic(connection.bootstrap_servers, partitions=1)
    producer, trace = Producer(connection.librdkafka()), [("traceparent", b"00-1-2-01"), ("more", b"x")]
    for order, headers in (({"customer": "ann", "cents": 5}, None), ({"customer": "bob", "cents": -1}, trace)):
        producer.produce(name, json.dumps(order), "k", headers=headers)
    producer.produce(name, "no order", "k")
    assert producer.flush(30) == 0
    return name


def events(reader: Any, connection: Connection, topic: str) -> Any:
    options = {**connection.spark(), "subscribe": topic, "includeHeaders": "true", "startingOffsets": "earliest"}
    return reader.format("kafka").options(**options).load()


@pytest.mark.long
def test_headers_of_the_pages_are_headers_of_records(spark: Any, connection: Connection, topic: str) -> None:
    """Mishap: records without the origin that ``verify --origin`` reads; or without any header, since Spark's source
    has null for a record without headers, and an array beside null is null.
    """
    rows = events(spark.read, connection, topic)
    traced = value("operate.md", "exactly_once.trace_headers()", events=rows, exactly_once=exactly_once).collect()
    assert [[h.key for h in row.headers or ()] for row in traced] == [[], ["traceparent"], []]
    made = run("verify.md", "concat_ws(", events=rows)
    origins = value("verify.md", "concat_ws(", events=rows).collect()
    assert [(h.key, h.value.decode()) for row in origins for h in row.headers] == [
        ("src", f"{topic}-0-{n}") for n in range(3)
    ]
    [kept] = re.findall(r"`(concat\(coalesce.*?\))`", (ROOT / "docs" / "verify.md").read_text(encoding="utf-8"))
    both = rows.selectExpr(kept.replace("...", made["headers"].removesuffix(" AS headers")) + " AS headers").collect()
    assert [[h.key for h in row.headers] for row in both] == [["src"], ["traceparent", "more", "src"], ["src"]]


@pytest.mark.long
def test_good_and_rejected_rows_of_the_page_are_written_as_it_says(
    spark: Any, connection: Connection, topic: str, tmp_path: Path
) -> None:
    """Mishap: the functions of the page do not fit together, or the rejected rows are lost."""
    good, rejected = (brokers.create_topic(connection.bootstrap_servers, partitions=1) for _ in range(2))
    rows = run(
        "one-bad-record.md",
        "orders = exactly_once.attempt(events, ",
        events=events(spark.readStream, connection, topic),
    )["rows"]
    places = {"orders_clean": good, "orders_rejected": rejected}
    writer = value("one-bad-record.md", "exactly_once.split(rows", places, rows=rows, exactly_once=exactly_once)
    options = {"sink.id": brokers.fresh_name("sample"), "checkpointLocation": str(tmp_path / "checkpoint")}
    query = writer.options(**connection.spark(), **options).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S) and query.exception() is None
    assert [m.key for m in oracle.read(connection, [good])] == ["ann"]
    values = [m.value for m in oracle.read(connection, [rejected])]
    assert sorted(values) == sorted(['{"customer": "bob", "cents": -1}', "no order"])


def test_a_batch_write_of_the_page_is_written_once_and_looked_at_as_the_page_does(
    spark: Any, connection: Connection
) -> None:
    """Mishap: a script for the night that does not know the names of what it gets."""
    out, sink_id = brokers.create_topic(connection.bootstrap_servers, partitions=1), brokers.fresh_name("sample")
    places = {"broker:9092": connection.bootstrap_servers, "orders_out": out, "orders-backfill": sink_id}
    df = spark.sql("SELECT 'a' key, 'b' value")
    for _ in range(2):
        value("reference.md", "df.write.format(", places, df=df)
    assert [(m.key, m.value) for m in oracle.read(connection, [out])] == [("a", "b")]
    looked = run(
        "operate.md", "exactly_once.inspect(", {"broker:9092": connection.bootstrap_servers, '"orders"': f'"{sink_id}"'}
    )
    assert looked["proof"].clean and not looked["found"].open


def test_the_session_of_the_page_has_the_jar(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mishap: a session to which nobody has given the sink."""
    assert exactly_once.jar() in run("reference.md", "exactly_once.configure(")["spark"].conf.get("spark.jars")


@pytest.mark.long
def test_several_outputs_of_the_page_get_each_row(
    spark: Any, connection: Connection, topic: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    """Mishap: the outputs of the page do not work together."""
    import pyarrow.dataset as ds

    out, checkpoint = brokers.create_topic(connection.bootstrap_servers, partitions=1), str(tmp_path / "checkpoint")
    postgres.sql("CREATE TABLE page_orders (key text, value text)")
    options = {**connection.spark(), "sink.id": brokers.fresh_name("sample"), "checkpointLocation": checkpoint}
    df = events(spark.readStream, connection, topic).selectExpr("string(key) key", "string(value) value")
    places = {
        '"orders_out"': f'"{out}"',
        "/data/orders": str(tmp_path / "files"),
        '"host=db dbname=shop", "orders"': f'"{postgres.dsn()}", "page_orders"',
    }
    query = value(
        "reference.md", "sink = exactly_once.foreach_batch(", places, df=df, options=options, checkpoint=checkpoint
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert len(oracle.read(connection, [out])) == 3
    assert ds.dataset(str(tmp_path / "files"), format="parquet").count_rows() == 3
    assert postgres.sql("SELECT count(*) FROM page_orders") == [(3,)]


def test_the_rows_and_options_of_a_format_are_those_that_the_sink_takes(spark: Any, tmp_path: Path) -> None:
    """Mishap: the first try of a format ends with a name that the sink does not know."""
    orders = spark.readStream.schema("id STRING, amount DOUBLE, placed_at TIMESTAMP").json(str(tmp_path))
    refused = {"broker:9092": "127.0.0.1:1", "df.writeStream": "exactly_once.check(df, options); df.writeStream"}
    with pytest.raises(exactly_once.errors.ExactlyOnceError) as found:  # behind all that it says of options and rows
        run("formats.md", '"schema.registry.url"', refused, orders=orders, exactly_once=exactly_once)
    assert found.value.code == "EO-UNREACHABLE", found.value
