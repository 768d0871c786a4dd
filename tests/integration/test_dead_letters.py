"""Rows that cannot be written: the dead letter topic has each of them once, in the transaction of its part, and the
output all others; a cluster that fails makes no dead letter.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from exactly_once.coordinator import start
from exactly_once.error_headers import origin_in
from exactly_once.errors import InvalidOption, UnknownTopic
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.outputs.files import FileParticipant
from exactly_once.protocol.dead_letters import own_headers
from exactly_once.protocol.names import VARIANTS, PartId, commit_log_topic, namespace
from exactly_once.tools.verify import VerifyParameters, verify
from exactly_once.txn.coordinators import initialise, list_transactions
from testkit import oracle, poison
from testkit.broker import change_topic, create_topic
from testkit.fixtures import Bench
from testkit.stream import Job, SparkDriver

#: What a topic with a low limit takes in one batch; the sink's own batches are far larger.
LIMIT = 30_000

KIND = "split(value, '[.]')[0]"
#: Random to any codec: some 76 KB, which stay above the limit of 30.
NOISE = "concat_ws('', transform(sequence(1, 600), i -> sha2(concat(value, cast(i as string)), 512)))"
HEADER = "named_struct('key', 'h', 'value', cast(value as binary))"
NO_KEY = "named_struct('key', cast(null as string), 'value', cast('v' as binary))"

#: What is wrong with a row, by its kind -> the class that says it, and words of the message.
WRONG = {
    "no_topic": ("InvalidTopicException", "has no topic"),
    "internal": ("InvalidTopicException", "Kafka's own"),
    "named": ("InvalidTopicException", "is not a name that Kafka allows"),
    "itself": ("InvalidTopicException", "is the dead letter topic of this sink"),
    "unknown": ("UnknownTopicOrPartitionException", "does not exist"),
    "negative": ("UnknownTopicOrPartitionException", r"negative partition \(-3\)"),
    "minus": ("UnknownTopicOrPartitionException", r"negative partition \(-1\)"),
    "beyond": ("UnknownTopicOrPartitionException", "-99,"),
    "ancient": ("InvalidTimestampException", "before 1970"),
    "future": ("InvalidTimestampException", "the brokers refuse"),
    "header": ("InvalidRecordException", "a header without a key"),
    "no_header": ("InvalidRecordException", "a header without a key"),
    "client": ("RecordTooLargeException", "max.request.size"),
    "topic": ("RecordTooLargeException", "is too large"),
    "no_key": ("InvalidRecordException", "the brokers refuse"),
}


@dataclass
class Shop:
    """A sink with a dead letter topic, and three outputs: a usual one, a compacted one, one with a low limit."""

    bench: Bench
    dead: str
    compacted: str
    small: str

    @property
    def outputs(self) -> list[str]:
        return [self.bench.topic, self.compacted, self.small]

    def job(self, columns: list[str], **options: str | None) -> Job:
        """The bench's job over these columns."""
        job = self.bench.job.having(sink_dead_letter_topic=self.dead, **options)
        return replace(job, transform="testkit.transforms:selected", arguments={"columns": columns})

    def verified(self, *others: FileParticipant) -> None:
        """Nothing is under way, and each part is proven, in both topics and in the other outputs."""
        topics = [*self.outputs, self.dead]
        oracle.assert_settled(self.bench.connection, self.bench.sink_id, topics)
        checkpoint = str(self.bench.checkpoint)
        report = verify(
            self.bench.connection,
            VerifyParameters(self.bench.sink_id, checkpoint=checkpoint, topics=topics, settle_s=5),
            outputs=others,
        )
        assert report.clean and not report.unproven, report


@pytest.fixture
def shop(bench: Bench) -> Shop:
    servers, name = bench.connection.bootstrap_servers, bench.sink_id
    settings: dict[str, dict[str, str]] = {
        "dead": {"max.message.bytes": "5000000"},
        "compacted": {"cleanup.policy": "compact"},
        "small": {"max.message.bytes": str(LIMIT)},
    }
    return Shop(bench, **{kind: create_topic(servers, f"{name}-{kind}", 2, of) for kind, of in settings.items()})


def raw(connection: Connection, topic: str) -> list[Any]:
    """The records of a topic that a read_committed reader gets, as bytes."""
    with Admin(connection) as admin:
        left = set(admin.watermarks(topic))
    reader = Consumer(
        {
            **connection.librdkafka(),
            "group.id": "raw",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        reader.assign([TopicPartition(topic, p, 0) for p in left])
        found = []
        while left:
            record = reader.poll(20)
            assert record is not None, f"no more records of {topic}"
            if record.error() is None:
                found.append(record)
            else:
                left.discard(record.partition())
        return found
    finally:
        reader.close()


def is_probe(part: PartId) -> bool:
    """Return whether it is an id under which a task shows rows to a broker."""
    return int(part.attempt.partition(".")[2]) >= VARIANTS


def every_kind(shop: Shop) -> Job:
    """A job whose rows are what the kind in their value says."""
    cases = {
        "topic": {
            "no_topic": "null",
            "internal": "'__consumer_offsets'",
            "named": "'a b'",
            "itself": f"'{shop.dead}'",
            "unknown": f"'{shop.dead}-none'",
            "no_key": f"'{shop.compacted}'",
            "tombstone": f"'{shop.compacted}'",
            "topic": f"'{shop.small}'",
            "shrinks": f"'{shop.small}'",
        },
        "partition": {"negative": "-3", "minus": "-1", "beyond": "99"},
        "timestamp": {
            "ancient": "timestamp '1969-12-30 00:00:00'",
            "timeless": "timestamp_millis(-1)",  # as Spark's source has it
            "future": "timestamp '2999-01-01 00:00:00'",
        },
        "headers": {
            "header": f"array({HEADER}, {NO_KEY})",
            "no_header": f"array(cast(null as struct<key: string, value: binary>), {HEADER})",
            "headed": f"array({HEADER})",
        },
        "value": {
            "client": "repeat(value, 200000)",
            "topic": NOISE,
            "shrinks": "concat(value, repeat('x', 60000))",
            "tombstone": "null",
        },
    }
    default = {"topic": f"'{shop.bench.topic}'", "value": "value"}
    columns = [f"if({KIND} = 'no_key', null, key) key"]
    for column, kinds in cases.items():
        whens = " ".join(f"when '{kind}' then {expression}" for kind, expression in kinds.items())
        columns.append(f"case {KIND} {whens} else {default.get(column, 'null')} end {column}")
    types = {"partition": "int", "timestamp": "timestamp"}
    columns = [
        f"cast({c.rpartition(' ')[0]} as {types[n]}) {n}" if (n := c.split()[-1]) in types else c for c in columns
    ]
    return shop.job(columns, topic=None, kafka_compression_type="lz4")


def test_a_row_of_each_kind_that_cannot_be_written_is_a_dead_letter_and_all_others_are_in_the_output(
    shop: Shop, warm: SparkDriver
) -> None:
    """Guards against a row that is lost, in both topics or twice; against one that changes on its way; and against one
    that stops all others.
    """
    bench, good = shop.bench, ["good", "headed", "timeless", "tombstone", "shrinks"]
    bench.input.add_rows([[(f"k{n}", f"{kind}.{n}") for n, kind in enumerate([*WRONG, *good])], [("g", "good.g")]])
    before = len(warm.log.read_bytes())
    warm.complete(every_kind(shop))
    bench.input.add_rows([[("only", "unknown.only")]])
    warm.complete(every_kind(shop))

    written = {(m.topic, m.key): m.value for m in oracle.read(bench.connection, shop.outputs)}
    number = {kind: n for n, kind in enumerate([*WRONG, *good])}
    shrinks = f"shrinks.{number['shrinks']}" + "x" * 60_000
    assert written == {
        (bench.topic, f"k{number['good']}"): f"good.{number['good']}",
        (bench.topic, f"k{number['headed']}"): f"headed.{number['headed']}",
        (bench.topic, f"k{number['timeless']}"): f"timeless.{number['timeless']}",
        (bench.topic, "g"): "good.g",
        (shop.compacted, f"k{number['tombstone']}"): None,
        (shop.small, f"k{number['shrinks']}"): shrinks,
    }
    letters = {m.key or "null": m for m in oracle.read(bench.connection, [shop.dead])}
    assert sorted(letters) == sorted(["only", *("null" if k == "no_key" else f"k{number[k]}" for k in WRONG)])
    for kind, (name, words) in WRONG.items():
        n = number[kind]
        letter = letters["null" if kind == "no_key" else f"k{n}"]
        own, said = own_headers(letter.headers)
        told = {key: (value or b"").decode() for key, value in said.items()}
        assert told["code"] == "EO-RECORD" and told["exception"].endswith(f".{name}"), (kind, told)
        assert re.search(words, told["message"]) and ". What to do: " in told["message"], (kind, told)
        assert (told["sink"], told["batch"]) == (bench.sink_id, "0")
        assert told.get("output.partition") == {"negative": "-3", "minus": "-1", "beyond": "99"}.get(kind)
        assert ("output.timestamp" in told) == (kind in ("ancient", "future"))
        assert ("output.topic" in told) == (kind != "no_topic")
        value = f"{kind}.{n}"
        if kind == "topic":
            assert len(letter.value or "") == 600 * 128
        else:
            assert letter.value == (value * 200_000 if kind == "client" else value)
        header = ("h", value.encode())
        assert own == {"header": [header, ("", b"v")], "no_header": [("", None), header]}.get(kind, [])
    first, second = bench.log().decisions
    assert (first.dead_letters, first.records) == (len(WRONG), len(WRONG) + len(good) + 1)
    assert (second.dead_letters, second.records) == (1, 1)
    assert second.counted is not None and second.counted.records[shop.dead] == len(WRONG) + 1
    warned = re.findall(r"EO-WARN-DEAD (.*)", warm.log.read_bytes()[before:].decode())
    assert len(warned) == 2 and f"{len(WRONG)} of {len(WRONG) + len(good) + 1} rows of batch 0" in warned[0]
    shop.verified()


#: What a row says of its origin -> the topic, the partition and the offset that its dead letter names.
ORIGINS = {
    "shop.orders-3-17": ("shop.orders", "3", "17"),
    "a-b-0-5#2": ("a-b", "0", "5"),
    "shop.orders/3/17": ("shop.orders", "3", "17"),
    "3-17": (None, "3", "17"),
    "17": (None, None, None),
    "shop.orders-3-x": (None, None, None),
    "": (None, None, None),
}


def test_a_dead_letter_names_the_input_record_that_its_row_came_from(shop: Shop, warm: SparkDriver) -> None:
    """Guards against a bad row that nobody finds in the input: tools for the dead letters of Kafka Streams look for
    these three headers.
    """
    bench = shop.bench
    bench.input.add_rows([[(f"k{n}", said) for n, said in enumerate(ORIGINS)], [("other", "none")]])
    pair = "named_struct('key', '{}', 'value', cast(value as binary))"
    headers = f"array({pair.format('h')}, {pair.format('src')}, named_struct('key', 'src', 'value', null))"
    columns = ["key", "value", "77 partition", f"if(key = 'other', null, {headers}) headers"]
    warm.complete(shop.job(columns, sink_dead_letter_origin="header:src"))
    letters = {m.key: m for m in oracle.read(bench.connection, [shop.dead])}
    for n, (said, place) in enumerate(ORIGINS.items()):
        own, ours = own_headers(letters[f"k{n}"].headers)
        assert own == [("h", said.encode()), ("src", said.encode()), ("src", None)]
        names = ("topic", "partition", "offset")
        assert tuple(ours[x].decode() if x in ours else None for x in names) == place, said
        whole = ("shop.orders", 3, 17) if said.startswith("shop") and place[0] else None
        assert said == "a-b-0-5#2" or origin_in(letters[f"k{n}"].headers) == whole
    assert not {"topic", "partition", "offset"} & set(own_headers(letters["other"].headers)[1])
    shop.verified()


ODD = (
    b"",
    b"\0",
    b"\xff\xfe\x00",
    bytes(range(256)),
    "\u202eabc\u200b\ufeff".encode(),
    "\U0001f469\u200d\U0001f4bb".encode(),
    b"\xed\xa0\x80",
    b"\xc3\x28",
    b"\x1b[2J\r\n\x07",
    b'{"a":[1e400,-0,"\\ud800"]}',
    b"'; DROP TABLE t; --",
    ("\u0301" * 999).encode(),
)


@pytest.mark.long
def test_odd_bytes_of_a_good_row_and_of_a_dead_letter_are_those_that_the_query_made(
    shop: Shop, warm: SparkDriver
) -> None:
    """Guards against text that is taken apart and put together again, and against a message that a reader's terminal
    obeys.
    """
    bench = shop.bench
    rows = [(f"{where}{odd.hex()}", odd.hex()) for odd in ODD for where in ("g", "b")]
    bench.input.add_rows([rows[: len(rows) // 2], rows[len(rows) // 2 :]])
    columns = ["unhex(substr(key, 2)) key", "unhex(value) value", "if(key like 'b%', 77, null) partition"]
    warm.complete(shop.job([*columns[:2], f"cast({columns[2].rpartition(' ')[0]} as int) partition"]))
    expected = sorted((odd, odd) for odd in ODD)
    for topic in (bench.topic, shop.dead):
        assert sorted((r.key(), r.value()) for r in raw(bench.connection, topic)) == expected
    for letter in raw(bench.connection, shop.dead):
        message = dict(letter.headers())["__exactly_once.errors.message"].decode()
        assert message.isprintable() and len(message) < 500
    shop.verified()


@pytest.mark.long
@pytest.mark.parametrize("where", ["in one part", "in two parts"])
def test_a_batch_with_more_than_the_allowed_dead_letters_stops_the_stream_with_the_error_of_its_first_row(
    where: str, shop: Shop, warm: SparkDriver
) -> None:
    """Guards against a mistake in the query that sends a whole topic to the dead letters, and against a part of such a
    batch that is written.
    """
    bench = shop.bench
    job = shop.job(["key", f"if(value like 'bad%', {NOISE}, value) value"], topic=shop.small, sink_dead_letter_max="2")
    bench.input.add_rows([[("a", "good.0"), ("b", "bad.0"), ("c", "bad.1")]])
    warm.complete(job)
    bad = [[("d", "bad.2"), ("e", "bad.3")], [("f", "bad.4"), ("g", "good.1")]]
    bench.input.add_rows(bad if where == "in two parts" else [bad[0] + bad[1]])

    ended = warm.run(job)

    assert ended.code == "EO-RECORD" and "value of 76800 bytes) is too large" in ended.sentence, ended.failure
    assert "more than sink.dead.letter.max=2" in ended.sentence and "or raise sink.dead.letter.max" in ended.sentence
    assert [m.key for m in oracle.read(bench.connection, [shop.small])] == ["a"]
    assert sorted(str(m.key) for m in oracle.read(bench.connection, [shop.dead])) == ["b", "c"]
    shop.verified()
    warm.complete(job.having(sink_dead_letter_max="3"))
    assert sorted(str(m.key) for m in oracle.read(bench.connection, [shop.small])) == ["a", "g"]
    assert sorted(str(m.key) for m in oracle.read(bench.connection, [shop.dead])) == ["b", "c", "d", "e", "f"]
    shop.verified()


@pytest.mark.long
@pytest.mark.parametrize("whose", ["of the row that is shown", pytest.param("of the part", marks=pytest.mark.long)])
def test_a_producer_that_was_fenced_makes_no_dead_letter(whose: str, shop: Shop, warm: SparkDriver) -> None:
    """Guards against rows among the bad ones because another client, or another driver, has taken a transactional id:
    that says nothing of a row.
    """
    bench = shop.bench
    job = shop.job(["key", f"if(value like 'bad%', {NOISE}, value) value"], topic=shop.small)
    bench.input.add_rows([[("a", "good.0"), ("b", "bad.0"), ("c", "good.1")]])
    # with it, a part's producer does not wait for more rows, and has its id by then
    run = warm.hold(job.having(kafka_linger_ms="0"), "shown", "wait")
    with Admin(bench.connection) as admin:
        ids = {t.transactional_id for t in list_transactions(admin, namespace(bench.sink_id), ())}
        parts = [
            i for i in ids if (part := PartId.parse(i)) and is_probe(part) == (whose == "of the row that is shown")
        ]
        assert parts
        for name in parts:
            initialise(admin, name, 10_000)
    warm.release("shown")

    run.end().with_code("EO-PREPARE")
    assert oracle.read(bench.connection, [shop.small, shop.dead]) == []
    warm.complete(job)
    assert sorted(str(m.key) for m in oracle.read(bench.connection, [shop.small])) == ["a", "c"]
    assert [m.key for m in oracle.read(bench.connection, [shop.dead])] == ["b"]
    shop.verified()


def test_a_limit_that_was_lowered_and_a_topic_that_was_made_while_the_stream_runs_hold_for_the_next_batch(
    shop: Shop, warm: SparkDriver
) -> None:
    """Guards against a stream that remembers the settings of its first batch: a row that the topic refuses by now would
    stop it, and one for a topic that is there by now would be a dead letter.
    """
    bench, late = shop.bench, f"{shop.bench.sink_id}-late"
    topic = f"if(value like 'late%', '{late}', '{bench.topic}') topic"
    job = shop.job(["key", f"if(value like 'bad%', {NOISE}, value) value", topic], topic=None).until_stopped()
    bench.input.add_rows([[("a", "bad.0"), ("b", "late.0")]])
    run = warm.start(job)
    run.await_commit(0)
    change_topic(bench.connection.bootstrap_servers, bench.topic, "max.message.bytes", str(LIMIT))
    create_topic(bench.connection.bootstrap_servers, late, 1)
    bench.input.add_rows([[("c", "bad.1"), ("d", "late.1")]])
    run.await_commit(1)
    run.stop()()
    assert sorted(str(m.key) for m in oracle.read(bench.connection, [bench.topic, late])) == ["a", "d"]
    assert sorted(str(m.key) for m in oracle.read(bench.connection, [shop.dead])) == ["b", "c"]
    shop.verified()


@pytest.mark.long
def test_a_batch_write_has_its_dead_letters_once_however_often_it_is_tried(shop: Shop, warm: SparkDriver) -> None:
    """Guards against a backfill whose bad rows come again with each try."""
    bench = shop.bench
    options = {**bench.job.options, "sink.dead.letter.topic": shop.dead, "write.id": "w"}
    del options["checkpointLocation"]
    columns = ["concat('k', id) key", "concat('w-', id) value", "if(id % 4 = 3, 99, null) partition"]
    for _ in range(2):
        ended = warm.write_batch(options, columns=columns)
        assert ended.failure is None, ended.failure
    for topic, bad in ((bench.topic, False), (shop.dead, True)):
        found = oracle.read(bench.connection, [topic])
        assert sorted(str(m.value) for m in found) == sorted(f"w-{n}" for n in range(40) if (n % 4 == 3) == bad)
    decision = bench.log().write("w")
    assert decision is not None and decision.totals["kafka"][3] == decision.dead_letters == 10


REFUSED: dict[str, tuple[dict[str, str], type[Exception], str]] = {
    "no such topic": ({"sink.dead.letter.topic": "{sink}-none"}, UnknownTopic, "-none' does not exist"),
    "a compacted topic": ({"sink.dead.letter.topic": "{sink}-compacted"}, InvalidOption, "is compacted"),
    "the output": ({"sink.dead.letter.topic": "{sink}-out"}, InvalidOption, "is the topic of the rows too"),
}


@pytest.mark.parametrize(("given", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_a_dead_letter_topic_that_cannot_hold_every_row_is_refused_at_the_start(
    given: dict[str, str], error: type[Exception], words: str, shop: Shop
) -> None:
    """Guards against a stream that runs until its first bad row, and finds out then."""
    options = {name: value.format(sink=shop.bench.sink_id) for name, value in given.items()}
    with pytest.raises(error, match=words):
        start.check({**shop.bench.job.options, **options})
    with Admin(shop.bench.connection) as admin:  # nothing was claimed
        assert commit_log_topic(shop.bench.sink_id) not in admin.topics()


def test_a_dead_letter_is_a_row_of_every_other_output(shop: Shop, warm: SparkDriver, tmp_path: Path) -> None:
    """Loss: a row that Kafka alone cannot take, and that the archive, which could, never gets; or a stream that stops
    at it.
    """
    archive = {"class": "exactly_once.outputs.files:FileParticipant", "name": "archive", "url": str(tmp_path / "files")}
    columns = ["key", f"if(value like 'bad%', {NOISE}, value) value"]
    job = replace(shop.job(columns, topic=shop.small), participants=[archive])
    shop.bench.input.add_rows([[("a", "good"), ("b", "bad 1")], [("c", "bad 2")], [("d", "fine")]])
    warm.complete(job)
    connection = shop.bench.connection
    assert sorted(str(m.key) for m in oracle.read(connection, [shop.small])) == ["a", "d"]
    assert sorted(str(m.key) for m in oracle.read(connection, [shop.dead])) == ["b", "c"]
    assert sorted(row["key"] for row in oracle.in_files(tmp_path / "files")) == list("abcd")
    [decision] = shop.bench.log().decisions
    assert (decision.dead_letters, decision.records) == (2, 4)
    shop.verified(FileParticipant("archive", archive["url"]))


@pytest.mark.long
@pytest.mark.skipif(not poison.COLLECTIONS, reason=poison.NO_COLLECTIONS)
def test_keys_and_values_that_nobody_here_wrote_come_out_byte_for_byte(shop: Shop, warm: SparkDriver) -> None:
    """Guards against a key or a value that changes on its way, or that goes to the dead letters without a fault."""
    connection, source = shop.bench.connection, create_topic(shop.bench.connection.bootstrap_servers, partitions=2)
    texts = [*poison.collections(), *filter(None, poison.values(300))]
    assert len(texts) > 1_000
    sent = [
        *zip(texts, reversed(texts), strict=True),
        *((None, text) for text in texts),
        *((text, None) for text in texts),
    ]
    producer = Producer(connection.librdkafka())
    for key, value in sent:
        producer.produce(source, value, key)
    assert producer.flush(60) == 0
    options = {**connection.spark(), "subscribe": source, "startingOffsets": "earliest"}
    job = shop.job(["key", "value"])
    warm.complete(replace(job, source={"format": "kafka", "options": options}, select=["key", "value"]))
    assert Counter((r.key(), r.value()) for r in raw(connection, shop.bench.topic)) == Counter(sent)
    assert raw(connection, shop.dead) == []
    shop.verified()
