"""What ``verify`` takes for visible, beside what Kafka's own Java consumer reads: a client of which neither the sink
nor its checker is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.participant import PartName
from exactly_once.protocol.names import incarnation
from exactly_once.protocol.records import PreparedTransaction
from exactly_once.tools.verify import VerifyParameters, verify
from exactly_once.tools.verify.report import OTHERS
from exactly_once.txn.scan import batches
from testkit import broker as brokers
from testkit import oracle
from testkit.java import Record, read_with_java, running_java
from testkit.kafka_part import KafkaPart
from testkit.made_sink import MadeSink
from testkit.processes import until

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.string()), ("partition", pa.int32())])
PARTITIONS = 3
ROWS = 40

#: Those that kafka-python's consumer reads by itself, and those that it lacks: there the oracle is left out.
READ_BY_ALL, READ_BY_TWO = ("none", "gzip", "lz4"), ("snappy", "zstd")
LOG = incarnation("cluster", "log")


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    with running_java() as java:
        yield java


class Written:
    """A sink whose parts this process writes, by each codec, and a test decides and ends."""

    def __init__(self, connection: Connection):
        topic = brokers.create_topic(connection.bootstrap_servers, partitions=PARTITIONS)
        self.sink = MadeSink(connection, topic)
        self.sink.claim()

    def begin(self, batch: int, part: int, codec: str) -> KafkaPart:
        """A part with its first rows; an empty key, an empty value and none are among them."""
        name = PartName(self.sink.sink_id, self.sink.token, batch, part, "0.0", LOG)
        config = {"compression.type": codec, "batch.size": "500"}  # so that a partition gets several batches
        begun = KafkaPart(self.sink.connection, self.sink.topic, name, config)
        made = [
            {
                "key": (None, "", f"k{n % 7}")[min(n % 5, 2)],
                "value": None if n % 11 == 3 else "" if n % 11 == 4 else f"{batch}-{part}-{n} " + "v\u00e4" * (n % 30),
                "partition": n % PARTITIONS,
            }
            for n in range(ROWS)
        ]
        begun.write(pa.RecordBatch.from_pylist(made, schema=SCHEMA))
        return begun


def prepared(part: KafkaPart) -> PreparedTransaction:
    handle = part.pre_commit()
    assert handle is not None
    return handle


def visible_to_verify(connection: Connection, topic: str) -> list[Record]:
    """The records of the batches that the checker's reader does not call hidden."""
    with Admin(connection) as admin:
        marks = admin.watermarks(topic)
        return sorted(
            Record(topic, p, r.offset, r.key, r.value)
            for p, w in marks.items()
            for batch in batches(admin, (topic, p), w.low, w.last_stable, w.high)
            if batch.marker is None and not batch.hidden
            for r in batch.records()
        )


def visible_to_the_oracle(connection: Connection, topic: str) -> list[Record]:
    def as_bytes(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    read = oracle.read(connection, [topic])
    return [Record(m.topic, m.partition, m.offset, as_bytes(m.key), as_bytes(m.value)) for m in read]


def readers_of(sink: MadeSink, partitions_held: int) -> None:
    """Wait until only as many partitions hold readers back: leaders get end markers after the coordinator answers."""
    with Admin(sink.connection) as admin:
        until("the markers", lambda: len(oracle.held_back(admin, [sink.topic])) == partitions_held, 20)


@pytest.mark.long
@pytest.mark.parametrize("codecs", [pytest.param(READ_BY_ALL, marks=pytest.mark.long), READ_BY_TWO], ids="-".join)
def test_verify_and_the_oracle_see_record_by_record_what_javas_consumer_reads(
    jvm: Any, connection: Connection, codecs: tuple[str, ...]
) -> None:
    """A mistake of the checker: a wrong notion of what is committed, aborted, open or packed in a batch."""
    written = Written(connection)
    sink, servers = written.sink, connection.bootstrap_servers
    committed = 0
    for batch, codec in enumerate(codecs):  # aborted and committed transactions that overlap
        parts = [written.begin(batch, n, codec) for n in range(4)]
        handles = [prepared(part) for part in parts]
        first, last, *kept = handles[batch % 4 :] + handles[: batch % 4]  # whose id was aborted commits later on
        sink.end([first], commit=False)
        sink.decide(batch, kept)
        sink.end(kept)
        sink.end([last], commit=False)
        sink.complete(batch)
        committed += sum(h.records for h in kept)
    under_way = prepared(written.begin(len(codecs), 0, "none"))
    other = brokers.open_transaction(connection)
    for n in range(9):
        other.produce(sink.topic, f"behind it {n}", partition=n % PARTITIONS)
    other.commit_transaction(30)

    for visible in (committed, committed + 9):
        readers_of(sink, PARTITIONS if visible == committed else 0)
        java = read_with_java(jvm, servers, [sink.topic])
        assert len(java) == visible
        assert visible_to_verify(connection, sink.topic) == java
        if codecs == READ_BY_ALL:
            assert visible_to_the_oracle(connection, sink.topic) == java
        report = verify(connection, VerifyParameters(sink.sink_id, settle_s=0))
        assert report.clean and report.unproven == {}, report
        assert report.records == report.balance.total.right == committed and report.balance.adds_up
        assert report.balance.total.not_judged == {OTHERS: 9}
        if visible == committed:  # what Java leaves out is there: aborted, open, and behind what is open
            everything = read_with_java(jvm, servers, [sink.topic], committed=False)
            assert len(everything) == 2 * committed + under_way.records + 9
            sink.end([under_way], commit=False)
