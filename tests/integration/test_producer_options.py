"""Options of Java's producer behind ``kafka.``: each acts on the stream, or is refused in one sentence."""

from __future__ import annotations

import zipfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from exactly_once.kafka import connection as connections
from exactly_once.kafka import producer_options
from exactly_once.kafka.admin import Admin
from exactly_once.sparkenv.jars import session_jars
from exactly_once.tools.verify import VerifyParameters, verify
from exactly_once.txn.scan import LogBatch, batches
from testkit import oracle
from testkit.broker import create_topic
from testkit.fixtures import Bench, StartDriver
from testkit.java import compiled
from testkit.stream import ROOT, SparkDriver

#: Kafka's numbers of the codecs, in the attributes of a batch (KIP-98), and where these are.
CODECS, ATTRIBUTES, CODEC_BITS = ("none", "gzip", "snappy", "lz4", "zstd"), 22, 0x07

#: How a client logs in and whom it trusts has tests of its own (test_secure, test_oauth, test_credentials).
LOGIN = ("sasl.", "ssl.", "security.", "config.providers")

#: Every other option, with a value that is not Kafka's default, where another one changes nothing here.
VALUES = {
    "auto.include.jmx.reporter": "false",
    "batch.size": "2000",
    "bootstrap.resolve.timeout.ms": "4000",
    "buffer.memory": "4000000",
    "buffer.memory.allocation.strategy": "full",
    "client.dns.lookup": "use_all_dns_ips",
    "client.id": "all-of-them",
    "client.rack": "a",
    "compression.gzip.level": "2",
    "compression.lz4.level": "2",
    "compression.type": "gzip",
    "compression.zstd.level": "2",
    "connections.max.idle.ms": "50000",
    "delivery.timeout.ms": "60000",
    "enable.metrics.push": "false",
    "interceptor.classes": "",
    "linger.ms": "7",
    "max.block.ms": "30000",
    "max.in.flight.requests.per.connection": "2",
    "max.request.size": "500000",
    "metadata.cluster.check.enable": "false",
    "metadata.max.age.ms": "200000",
    "metadata.max.idle.ms": "200000",
    "metadata.recovery.rebootstrap.trigger.ms": "200000",
    "metadata.recovery.strategy": "none",
    "metric.reporters": "",
    "metrics.num.samples": "3",
    "metrics.recording.level": "DEBUG",
    "metrics.sample.window.ms": "20000",
    "partitioner.adaptive.partitioning.enable": "false",
    "partitioner.availability.timeout.ms": "100",
    "partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner",
    "partitioner.ignore.keys": "true",
    "partitioner.rack.aware": "false",
    "receive.buffer.bytes": "65536",
    "reconnect.backoff.max.ms": "900",
    "reconnect.backoff.ms": "60",
    "request.timeout.ms": "20000",
    "retries": "1000",
    "retry.backoff.max.ms": "900",
    "retry.backoff.ms": "20",
    "send.buffer.bytes": "65536",
    "socket.connection.setup.timeout.max.ms": "20000",
    "socket.connection.setup.timeout.ms": "8000",
    "transaction.timeout.ms": "120000",
}


def placed(bench: Bench) -> dict[str, set[int]]:
    """Return the partitions of each key."""
    found: dict[str, set[int]] = defaultdict(set)
    for m in oracle.read(bench.connection, [bench.topic]):
        found[m.key or ""].add(m.partition)
    return found


def written(bench: Bench) -> list[LogBatch]:
    """Return every batch of records in the topic."""
    found: list[LogBatch] = []
    with Admin(bench.connection) as admin:
        for partition, marks in admin.watermarks(bench.topic).items():
            some = batches(admin, (bench.topic, partition), 0, marks.last_stable, marks.high)
            found += [b for b in some if b.marker is None]
    return found


def codec_of(batch: LogBatch) -> str:
    return CODECS[batch.raw[ATTRIBUTES] & CODEC_BITS]


def test_every_option_that_java_takes_is_tried_or_refused() -> None:
    """Guards against an option of a later client that nobody has looked at."""
    refused = producer_options.FIXED.keys() | producer_options.FOREIGN_LOGIN
    known = {n for n in producer_options.JAVA - refused if not n.startswith(LOGIN)} - {"bootstrap.servers"}
    assert VALUES.keys() == known
    assert not connections.OPTIONS & VALUES.keys()


def test_a_stream_takes_every_option_at_once_and_they_act(bench: Bench, warm: SparkDriver) -> None:
    """Guards against an option that stops a stream which Spark's own sink would run, and against one that is dropped on
    the way.
    """
    bench.complete(warm, bench.job.having(**{f"kafka.{name}": value for name, value in VALUES.items()}), batches=2)
    bench.assert_settled()
    assert sorted(bench.visible()) == sorted(bench.input.expected())
    assert {codec_of(b) for b in written(bench)} == {"gzip"}
    assert any(len(partitions) > 1 for partitions in placed(bench).values()), "keys are ignored"


@pytest.mark.parametrize("codec", [pytest.param(c, marks=() if c == "zstd" else pytest.mark.long) for c in CODECS])
def test_a_batch_is_compressed_by_the_codec_that_the_user_names(codec: str, bench: Bench, warm: SparkDriver) -> None:
    """Guards against a library of a codec that the executors lack, and a setting that changes nothing."""
    bench.complete(warm, bench.job.having(kafka_compression_type=codec), batches=2)
    bench.assert_settled()
    assert {codec_of(b) for b in written(bench)} == {codec}
    rows = [(r.key.decode(), r.value.decode()) for b in written(bench) if not b.hidden for r in b.records()]
    assert sorted(rows) == sorted(bench.input.expected())


REFUSED = {
    "acks": ({"acks": "1"}, "EO-OPTION", ["kafka.acks=1"]),
    "idempotence": ({"enable.idempotence": "false"}, "EO-OPTION", ["kafka.enable.idempotence=false"]),
    "transactional id": ({"transactional.id": "mine"}, "EO-OPTION", ["kafka.transactional.id"]),
    "no retries": ({"retries": "0"}, "EO-OPTION", ["retries"]),
    "too many in flight": (
        {"max.in.flight.requests.per.connection": "6"},
        "EO-OPTION",
        ["max.in.flight.requests.per.connection"],
    ),
    "a codec that nobody has": ({"compression.type": "brotli"}, "EO-OPTION", ["compression.type", "brotli"]),
    "a level that the codec has not": ({"compression.gzip.level": "99"}, "EO-OPTION", ["compression.gzip.level"]),
    "a class that is not there": ({"partitioner.class": "no.Such"}, "EO-OPTION", ["no.Such", "partitioner.class"]),
    "an interceptor that is not there": ({"interceptor.classes": "no.Such"}, "EO-OPTION", ["no.Such"]),
    "linger beyond the time for deliveries": (
        {"linger.ms": "5000", "delivery.timeout.ms": "4000"},
        "EO-OPTION",
        ["delivery.timeout.ms", "linger.ms"],
    ),
    "a request beyond the time for deliveries": (
        {"linger.ms": "1000", "request.timeout.ms": "20000", "delivery.timeout.ms": "20000"},
        "EO-OPTION",
        ["delivery.timeout.ms", "request.timeout.ms", "21000"],
    ),
    "a buffer below a record": ({"buffer.memory": "2000"}, "EO-RECORD", ["key 'k", "buffer.memory"]),
}


@pytest.mark.quick("no retries", "a class that is not there", "idempotence", "acks", "transactional id")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_in_one_sentence(case: str, bench: Bench, warm: SparkDriver) -> None:
    """Guards against a client's exception without a code, and a restart storm over a setting."""
    options, code, words = REFUSED[case]
    bench.input.add()
    job = bench.job.having(**{f"kafka.{name}": value for name, value in options.items()})
    job.select[1] = "rpad(split(value, '[|]')[1], 3000, '.') value"
    ended = warm.run(job).with_code(code)
    assert all(word in ended.sentence for word in words), ended.sentence
    bench.assert_exactly([])


@pytest.mark.long
def test_a_users_own_interceptor_sees_every_record_once(bench: Bench, driver: StartDriver, tmp_path: Path) -> None:
    """Guards against a class that the driver finds and the tasks' producers do not, as an agent of tracing is; and
    against headers of its own that verify takes for damage.
    """
    source = ROOT / "tests" / "java" / "exactlyonce" / "Stamp.java"
    with zipfile.ZipFile(tmp_path / "stamp.jar", "w") as jar:
        for path in compiled(source, tmp_path / "classes").rglob("*.class"):
            jar.write(path, path.relative_to(tmp_path / "classes"))
    dead = create_topic(bench.connection.bootstrap_servers)
    job = bench.job.having(kafka_interceptor_classes="exactlyonce.Stamp")
    own = "array(named_struct('key', 'h', 'value', cast(value as binary))) headers"
    bad = "if(value like '%-7', 99, null) partition"
    jars = ",".join([*session_jars(), str(tmp_path / "stamp.jar")])
    stamped = driver(conf={"spark.jars": jars})
    forms: list[tuple[list[str], dict[str, str | None]]] = [
        ([], {}),
        ([own], {}),
        ([own], {"sink.batch.headers": "true"}),
        ([own, bad], {"sink.dead.letter.topic": dead}),
    ]
    for columns, more in forms:
        bench.input.add()
        chosen = {"columns": ["key", "value", *columns]}
        stamped.complete(replace(job.having(**more), transform="testkit.transforms:selected", arguments=chosen))
    found = oracle.read(bench.connection, [bench.topic, dead])
    assert sorted((m.key or "", m.value or "") for m in found) == sorted(bench.input.expected())
    assert all([h for h in m.headers if h[0] == "stamp"] == [("stamp", b"seen")] for m in found)
    asked = VerifyParameters(bench.sink_id, checkpoint=str(bench.checkpoint), topics=[bench.topic, dead], settle_s=5)
    report = verify(bench.connection, asked)
    assert report.clean and not report.unproven, report
