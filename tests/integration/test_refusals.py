"""What the sink refuses: each case with its code and a sentence that names the thing, and with the output topic
untouched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from exactly_once.commitlog.commit_log import CommitLog, read_log
from exactly_once.deadline import Deadline
from exactly_once.kafka.admin import Admin
from exactly_once.protocol.names import commit_log_topic
from exactly_once.protocol.records import Claim
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit.broker import delete_topic
from testkit.fixtures import Bench, StartDriver, make_bench
from testkit.processes import until
from testkit.stream import Ended, Job, Refused, Run, SparkDriver

MAY_BE_VISIBLE = (
    ". Records of this batch that were sent before may be visible: this sink's guarantee is {}, and the next start "
    "writes the batch again. What to do: "
)

RATE = {"format": "rate", "options": {"rowsPerSecond": "10", "numPartitions": "2"}}
RATE_COLUMNS = ["cast(value as string) key", "cast(value as string) value"]


@pytest.fixture
def refused(bench: Bench) -> Iterator[Bench]:
    """A bench with one row of input, whose output must be as empty after the test as before it."""
    bench.input.add_rows([[("a", "1")]])
    yield bench
    with Admin(bench.connection) as admin:
        assert {m.high for m in admin.watermarks(bench.topic).values()} == {0}


@pytest.fixture(scope="module", autouse=True)
def unreachable(
    broker: EmbeddedBroker, warm: SparkDriver, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, Bench]:
    """A query whose broker does not answer: it takes its whole time budget, so it starts before all other tests."""
    from exactly_once.kafka.connection import Connection

    connection = Connection.from_options({"kafka.bootstrap.servers": broker.bootstrap_servers})
    bench = make_bench(connection, tmp_path_factory.mktemp("unreachable") / "bench")
    bench.input.add()
    job = bench.job.having(kafka_bootstrap_servers="127.0.0.1:9")
    return warm.start(job), bench


def changed(job: Job, **fields: Any) -> Job:
    return Job(**{**asdict(job), **fields})


def expect(ended: Ended, code: str, *words: str) -> None:
    """The code, the words, and a whole sentence: what, what is safe, what to do."""
    assert ended.code == code, ended.failure
    for word in words:
        assert word in ended.sentence, ended.sentence
    assert ended.sentence.startswith(f"{code}: ") and ended.sentence.endswith("."), ended.sentence
    assert ended.sentence.count(". ") >= 2, ended.sentence


#: Which mishap an option leads to -> the option, the code and what the sentence names.
OPTIONS: dict[str, tuple[dict[str, str | None], str, list[str]]] = {
    "a broker makes a misspelt topic": ({"topic": "nowhere"}, "EO-TOPIC", ["nowhere", "Create the topic"]),
    "no restart finds its transactions": ({"sink.id": None}, "EO-OPTION", ["sink.id"]),
    "nor under a name that Kafka refuses": ({"sink.id": "no spaces"}, "EO-OPTION", ["no spaces"]),
    "a misspelt option is passed over": ({"sink.adpot": "true"}, "EO-OPTION", ["sink.adpot"]),
    "acks of one broker": ({"kafka.acks": "1"}, "EO-OPTION", ["kafka.acks"]),
    "each producer is refused": ({"kafka.transaction.timeout.ms": "900001"}, "EO-TIMEOUT", ["900001"]),
    "transactions end before their batch": ({"kafka.transaction.timeout.ms": "1000"}, "EO-TIMEOUT", ["1000"]),
}


@pytest.mark.quick(*(OPTIONS.keys() - {"a misspelt option is passed over", "acks of one broker"}))
@pytest.mark.parametrize(("options", "code", "words"), OPTIONS.values(), ids=OPTIONS)
def test_an_option_that_cannot_work_is_refused(
    options: dict[str, str | None], code: str, words: list[str], refused: Bench, warm: SparkDriver
) -> None:
    """Guards against what its case says."""
    expect(warm.run(refused.job.having(**options)), code, *words)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["value as key"], ["'value'", "key"]),
        (["value", "1 as key"], ["'key'", "int", "string or binary"]),
        (["struct(value) as value"], ["'value'", "struct", "to_json"]),
        (["value", "'0' as partition"], ["'partition'", "string", "int"]),
        (["value", "map('a', value) as headers"], ["'headers'", "map", "array<struct"]),
        (["value", "1L as timestamp"], ["'timestamp'", "bigint", "timestamp"]),
    ],
)
def test_columns_that_are_no_kafka_record_are_refused(
    columns: list[str], words: list[str], refused: Bench, warm: SparkDriver
) -> None:
    """Guards against rows that are written in part, or as something else than the user has in mind."""
    expect(warm.run(changed(refused.job, select=columns)), "EO-SCHEMA", *words)


@pytest.mark.long
def test_rows_without_any_topic_are_refused(refused: Bench, warm: SparkDriver) -> None:
    """Guards against rows that go nowhere."""
    expect(warm.run(refused.job.having(topic=None)), "EO-SCHEMA", "topic")
    null = changed(refused.job.having(topic=None), select=["value", "cast(null as string) topic"])
    null.options["sink.id"] += "-null"
    null.options["checkpointLocation"] += "-null"
    expect(warm.run(null), "EO-RECORD", "topic")


def test_a_row_that_names_a_commit_log_is_refused_and_the_log_is_as_it_was(refused: Bench, warm: SparkDriver) -> None:
    """Loss: a row of data that forges a claim or a decision of any sink whose log this one may write."""
    victim = f"{refused.sink_id}-victim"
    CommitLog(refused.connection, victim).claim(lambda _: Claim(1, "q", 0, "stream", "h", 1), Deadline(30))
    before, log = read_log(refused.connection, victim), commit_log_topic(victim)
    forging = changed(refused.job.having(topic=None), select=["'claim' key", "value", f"'{log}' topic"])
    forging = forging.having(sink_id=f"{refused.sink_id}-forging")
    forging.options["checkpointLocation"] += "-forging"
    expect(warm.run(forging), "EO-RECORD", log, "'claim'")
    expect(warm.run(refused.job.having(topic=log)), "EO-OPTION", log, "commit log of a sink")
    assert read_log(refused.connection, victim) == before
    delete_topic(refused.connection.bootstrap_servers, log)


def test_a_record_larger_than_max_request_size_is_refused_and_named(refused: Bench, warm: SparkDriver) -> None:
    """Guards against a batch that is written without the record (loss), or fails without a word on which one it is."""
    large = changed(refused.job, select=["'the-key' key", "repeat('x', 20000) value"]).having(
        kafka_max_request_size="10000"
    )
    expect(warm.run(large), "EO-RECORD", "the-key", "20000", "max.request.size")
    assert refused.decided_batches() == []
    assert refused.open_parts() == 0


@pytest.mark.parametrize(("cell", "where"), [("'nowhere' topic", "nowhere"), ("99 as partition", "{topic}-99")])
def test_a_row_for_a_topic_or_partition_that_does_not_exist_is_refused_and_named(
    cell: str, where: str, refused: Bench, warm: SparkDriver
) -> None:
    """A person looks for one row among millions, whose topic or partition an expression got wrong."""
    job = changed(refused.job, select=["'the-key' key", "value", cell])
    ended = warm.run(job.having(topic=None) if "topic" in cell else job)
    expect(ended, "EO-RECORD", f"does not exist ({where.format(topic=refused.topic)}, key 'the-key')")


@pytest.mark.long
@pytest.mark.parametrize("guarantee", [pytest.param("at_least_once", marks=pytest.mark.long), "none"])
def test_under_a_weaker_guarantee_a_refusal_says_that_rows_sent_before_may_be_visible(
    guarantee: str, bench: Bench, warm: SparkDriver
) -> None:
    """A wrong promise: whoever is told that nothing is visible does not look for the duplicates that the next start
    makes of the rows before the refused one.
    """
    bench.input.add_rows([[(str(n), str(n)) for n in range(10_000)]])
    last = "if(value like '9999|%', 99, null) partition"
    ended = warm.run(changed(bench.job, select=[*bench.job.select, last]).having(sink_guarantee=guarantee))
    expect(ended, "EO-RECORD", f"does not exist ({bench.topic}-99, key '9999')", MAY_BE_VISIBLE.format(guarantee))
    assert "None of this batch" not in ended.sentence
    until("rows of the failed batch", lambda: len(bench.visible()) > 0, 30)


@pytest.mark.long
@pytest.mark.parametrize("rows", [5_000, 500_000], ids=["at the flush", "while the task still sends"])
def test_of_a_batch_that_the_brokers_refuse_the_very_row_is_named(rows: int, bench: Bench, warm: SparkDriver) -> None:
    """Guards against the key of an innocent row: the client reports all rows of the batch, the first one first.

    Guards, too, against a log that has the contents of a row.
    """
    bench.input.add_rows([[(f"k{n}", str(n)) for n in range(rows)]])
    late = "if(value like 'k4570|%', timestamp'2200-01-01', current_timestamp()) timestamp"
    ended = warm.run(changed(bench.job, select=[*bench.job.select, late]))
    assert "k4570|" not in ended.sentence
    expect(
        ended,
        "EO-RECORD",
        f"(topic '{bench.topic}', key 'k4570'): ",
        "Timestamp",
        "message.timestamp.after.max.ms",
    )
    bench.assert_exactly([])


@pytest.mark.long
def test_a_sink_id_that_another_query_owns_is_refused(refused: Bench, warm: SparkDriver, tmp_path: Path) -> None:
    """Guards against two queries that fence each other, or abort each other's transactions."""
    owner = make_bench(refused.connection, tmp_path / "owner")
    owner.input.add()
    warm.complete(owner.job)
    expect(warm.run(refused.job.having(sink_id=owner.sink_id)), "EO-SINK-OWNED", owner.sink_id)
    owner.assert_exactly_once()


@pytest.mark.long
def test_mode_and_columns_are_refused_before_the_owner_of_a_sink_and_no_mode_takes_a_sink_over(
    refused: Bench, warm: SparkDriver, tmp_path: Path
) -> None:
    """Mishap: EO-SINK-OWNED, with sink.takeover as its way out, of a query that cannot be written at all: who sets it
    takes the sink from its owner, and then hears why nothing works.
    """
    owner = make_bench(refused.connection, tmp_path / "owner")
    owner.input.add()
    warm.complete(owner.job)
    claim = owner.log().owner
    assert claim is not None
    others = refused.job.having(sink_id=owner.sink_id)
    with pytest.raises(Refused, match="EO-SINK-OWNED"):
        warm.start(others)  # by start() itself
    expect(warm.run(changed(others, select=["value as key"])), "EO-SCHEMA", "'value'")
    for mode in ("complete", "update"):
        counts = changed(others, transform="testkit.transforms:windowed_count", output_mode=mode)
        for job in (counts, counts.having(kafka_transaction_timeout_ms="900001")):
            with pytest.raises(Refused, match=f"EO-MODE.*{mode.title()}"):
                warm.start(job)
    taking = changed(counts.having(sink_takeover=claim.query_id), output_mode="complete")
    expect(warm.run(taking), "EO-MODE", "Complete")
    write = {k: v for k, v in others.options.items() if k != "checkpointLocation"} | {"write.id": "w1"}
    expect(warm.write_batch(write), "EO-SINK-OWNED", owner.sink_id)
    expect(warm.write_batch(write, mode="overwrite"), "EO-MODE", "Overwrite")
    assert owner.log().owner == claim


def test_complete_mode_is_refused(refused: Bench, warm: SparkDriver) -> None:
    """Guards against the whole result in the topic again with each batch."""
    job = changed(refused.job, transform="testkit.transforms:windowed_count", output_mode="complete")
    expect(warm.run(job), "EO-MODE", "Complete")


def test_continuous_mode_is_refused(refused: Bench, warm: SparkDriver) -> None:
    """Guards against the loss of every row: Spark never calls write() of a Python sink in this mode, and says
    nothing.
    """
    job = changed(refused.job, source=RATE, select=RATE_COLUMNS, trigger={"continuous": "1 second"})
    expect(warm.run(job), "EO-MODE", "continuous")


def test_a_missing_checkpoint_location_is_refused(refused: Bench, warm: SparkDriver, tmp_path: Path) -> None:
    """Guards against a query that cannot know after a restart what it has written. Spark refuses it too, but not when
    the session has a location of its own, which a sink cannot see.
    """
    job = refused.job.having(checkpointLocation=None)
    assert "checkpointLocation" in (warm.run(job).failure or "")
    with warm.having({"spark.sql.streaming.checkpointLocation": str(tmp_path / "of-the-session")}):
        expect(warm.run(job), "EO-CHECKPOINT", "checkpointLocation")


@pytest.mark.long
def test_speculation_is_refused_when_the_sink_is_registered(refused: Bench, driver: StartDriver) -> None:
    """Guards against copies of a task that each write its part."""
    ended = driver(conf={"spark.speculation": "true"}).run(refused.job)
    expect(ended, "EO-MODE", "spark.speculation")


@pytest.mark.parametrize("way", ["format", pytest.param("foreachBatch", marks=pytest.mark.long)])
def test_a_stop_timeout_is_refused(way: str, refused: Bench, warm: SparkDriver) -> None:
    """Guards against a stopped run that still aborts while the next one of the same application writes: it would abort
    what that one has prepared.
    """
    job = changed(refused.job, participants=None if way == "format" else [])
    with warm.having({"spark.sql.streaming.stopTimeout": "5s"}):
        expect(warm.run(job), "EO-MODE", "spark.sql.streaming.stopTimeout=5s")


@pytest.mark.long
def test_speculation_is_refused_by_the_tasks_where_nobody_registered_the_sink(
    refused: Bench, driver: StartDriver
) -> None:
    """Guards against copies of a task under a sink that Spark has found by its name: the task sees the setting."""
    ended = driver(conf={"spark.speculation": "true"}).run(changed(refused.job, register=False))
    expect(ended, "EO-MODE", "spark.speculation")


def test_a_broker_that_does_not_answer_is_named(unreachable: tuple[Run, Bench]) -> None:
    """Guards against a start that hangs forever, or ends with a client's stack trace."""
    run, bench = unreachable
    expect(run.end(), "EO-UNREACHABLE", "127.0.0.1:9", "kafka.bootstrap.servers")
    assert not run.is_committed(0)
    assert bench.visible() == []
