"""Good and rejected rows of one batch under one decision: byte for byte, once, whatever is killed."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from dagster_exactly_once.declare.stream import Record
from exactly_once import error_headers
from exactly_once.error_headers import PREFIX, origin_in, reason_in
from exactly_once.kafka.connection import Connection
from platform_assets.report.reader import read_committed
from testkit import broker as brokers
from testkit import oracle, poison
from testkit.fixtures import StartDriver
from testkit.stream import Job, SparkDriver

PARTITIONS = 2

Pair = tuple[bytes | None, bytes | None]


@dataclass
class Bad:
    """A stream over an input with records that its function cannot process."""

    connection: Connection
    sink_id: str
    source: str
    good: str
    rejected: str
    job: Job
    sent: list[Pair]

    def send(self, values: list[bytes | None]) -> None:
        """Send them in a transaction, with keys and headers that are not all text."""
        producer = brokers.open_transaction(self.connection)
        for n, value in enumerate(values):
            key = (None, b"", b"\xff\x00", f"k{n}".encode())[n % 4]
            producer.produce(self.source, value, key, partition=n % PARTITIONS, headers=self.headers(n))
            self.sent.append((key, value))
        producer.commit_transaction(30)

    @staticmethod
    def headers(n: int) -> list[tuple[str, Any]]:
        return [("n", str(n).encode()), ("n", b"\x00\xff"), ("none", None)][: n % 4]

    def by(self, transform: str, **arguments: str) -> Job:
        """Return the job with a function of dev/testkit/poison.py."""
        names = {"good": self.good, "rejected": self.rejected}
        changed = {"transform": f"testkit.poison:{transform}", "arguments": {**names, **arguments}}
        return Job(**{**asdict(self.job), **changed})

    def found(self) -> tuple[list[Record], list[Record]]:
        """Return the good and the rejected records that a reader sees."""
        oracle.assert_settled(self.connection, self.sink_id, [self.good, self.rejected])
        good, rejected = (list(read_committed(self.connection, topic)) for topic in (self.good, self.rejected))
        return good, rejected

    def assert_each_once(self) -> tuple[list[Record], list[Record]]:
        """Each input is in one topic, once: what the function takes as it makes it, all else as it was."""
        good, rejected = self.found()
        made, bad = Counter[Pair](), Counter[Pair]()
        for key, value in self.sent:
            try:
                made[key, poison.with_tax(value).encode()] += 1
            except Exception:
                bad[key, value] += 1
        assert Counter((r.key, r.value) for r in good) == made
        assert Counter((r.key, r.value) for r in rejected) == bad
        assert bad and made
        return good, rejected

    def assert_letters(self, rejected: list[Record]) -> None:
        """Each rejected record is the one at the place that it names, with all of its headers before ours."""
        inputs = {(r.partition, r.offset): r for r in read_committed(self.connection, self.source)}
        places = []
        for letter in rejected:
            place = origin_in(letter.headers)
            assert place is not None and place[0] == self.source
            was = inputs[place[1:]]
            assert (letter.key, letter.value) == (was.key, was.value)
            assert letter.headers[: len(was.headers)] == was.headers
            ours = [name for name, _ in letter.headers[len(was.headers) :]]
            assert ours == [error_headers.CODE, error_headers.EXCEPTION, error_headers.MESSAGE, *ours[3:]]
            assert all(name.startswith(PREFIX) for name in ours) and len(ours) == 6
            assert dict(letter.headers)[error_headers.CODE] == b"EO-TRANSFORM"
            places.append(place)
        assert len(set(places)) == len(places)


@pytest.fixture
def bad(connection: Connection, tmp_path: Path) -> Bad:
    sink_id = brokers.fresh_name("split")
    names = [f"{sink_id}-{what}" for what in ("in", "good", "rejected")]
    source, good, rejected = (
        brokers.create_topic(connection.bootstrap_servers, n, partitions=PARTITIONS) for n in names
    )
    options = {**connection.spark(), "sink.id": sink_id, "checkpointLocation": str(tmp_path / "checkpoint")}
    reading = {
        **connection.spark(),
        "subscribe": source,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }
    job = Job({"format": "kafka", "options": reading}, options, select=[])
    return Bad(connection, sink_id, source, good, rejected, job, [])


@pytest.mark.long
def test_each_record_is_good_or_rejected_once_and_the_function_sees_it_once(
    bad: Bad, warm: SparkDriver, tmp_path: Path
) -> None:
    """Guards against a bad record that stops the stream, or comes out changed; and against a plan of Spark's that calls
    the function once for the result and once more for the reason.
    """
    calls = tmp_path / "calls"
    bad.send([b'{"amount": 1}', b'{"amuont": 1}', *poison.values(300)])
    warm.complete(bad.by("split_by_function", calls=str(calls)))
    _, rejected = bad.assert_each_once()
    bad.assert_letters(rejected)
    assert calls.stat().st_size == len(bad.sent)
    reasons = Counter(reason_in(r.headers) for r in rejected)
    assert reasons["KeyError: 'amount'"] >= 1 and reasons["AssertionError: no value"] >= 1
    assert not any(reason == "" for reason in reasons)


@pytest.mark.long
def test_a_good_row_continues_the_trace_of_its_record_beside_headers_of_its_own(bad: Bad, warm: SparkDriver) -> None:
    """Guards against a trace that ends at the stream or stands there twice, and against a secret that goes along; a
    trace that the stream has begun itself stays.
    """
    trace, mine = [("traceparent", b"00-1-2-01"), ("tracestate", b"a=1")], [("traceparent", b"00-3-4-01")]
    producer = Producer(bad.connection.librdkafka())
    for key in ("none", "other", "mine", "untraced"):
        headers = [("secret", b"x"), *trace] if key != "untraced" else None
        producer.produce(bad.source, b'{"amount": 1}', key, headers=headers)
    producer.flush(30)
    made = "named_struct('key', '{}', 'value', cast('{}' as binary))"
    own = f"case string(key) when 'other' then array({made.format('o', '1')})"
    own += f" when 'mine' then array({made.format('traceparent', '00-3-4-01')}) end"
    warm.complete(bad.by("traced_by_function", own=own))
    good, _ = bad.found()
    assert {r.key: list(r.headers) for r in good} == {
        b"none": trace,
        b"other": [("o", b"1"), *trace],
        b"mine": mine,
        b"untraced": [],
    }


@pytest.mark.long
def test_a_schema_a_condition_and_a_function_follow_each_other(bad: Bad, warm: SparkDriver) -> None:
    """Guards against a later attempt that forgets an earlier reason, or runs its function on what is bad already."""
    wanted = {
        b'{"amount": 50, "name": "a"}': "good",
        b'{"amount": 50, "name": 5}': "good",
        b'{"amount": 13}': "Rejected: unlucky",
        b'{"amount": 0}': "ZeroDivisionError: float division by zero",
        b'{"name": "a"}': "NotParsed: amount is missing",
        b'{"amount": null}': "NotParsed: amount is missing",
        b'{"amount": "much"}': "NotParsed: not a JSON object that fits the schema",
        b'{"amount": 5': "NotParsed: not a JSON object that fits the schema",
        b"[5]": "NotParsed: not a JSON object that fits the schema",
        b"": "NotParsed: not a JSON object that fits the schema",
        b"\xff\xfe\x00": "NotParsed: not a JSON object that fits the schema",
        None: "NotParsed: no value",
    }
    bad.send(list(wanted))
    warm.complete(bad.by("split_by_schema"))
    good, rejected = bad.found()
    assert [r.value for r in good] == [b"2.0", b"2.0"]
    assert {r.value: reason_in(r.headers) for r in rejected} == {v: w for v, w in wanted.items() if w != "good"}
    bad.assert_letters(rejected)


@pytest.mark.long
@pytest.mark.parametrize("point", ["mid-write", "all-prepared", "decided", "some-ended"])
@pytest.mark.parametrize("by", ["jvm", "foreach_batch"])
def test_kill_9_around_the_decision_leaves_each_record_in_one_topic_once(
    bad: Bad, driver: StartDriver, warm: SparkDriver, point: str, by: str
) -> None:
    """Guards against a rejected record that is written although its batch is not, or twice, or never."""
    job = bad.by("split_by_function")
    if by == "foreach_batch":
        job = Job(**{**asdict(job), "participants": []})
    bad.send([b'{"amount": 1}', b"{", *poison.values(60)])
    first = driver()
    run = first.start(job.until_stopped())
    run.await_commit(0)
    first.arm(point)
    bad.send([b'{"amount": 2}', b"}", *poison.values(60, seed=8)])
    run.await_true(point, lambda: first.has_reached(point))
    first.kill9()
    warm.complete(job)
    _, rejected = bad.assert_each_once()
    bad.assert_letters(rejected)


@pytest.mark.long
@pytest.mark.skipif(not poison.COLLECTIONS, reason=poison.NO_COLLECTIONS)
@pytest.mark.parametrize("transform", ["split_by_function", "split_by_schema"])
def test_collections_of_poison_that_nobody_here_wrote(bad: Bad, warm: SparkDriver, transform: str) -> None:
    """Guards against the record that nobody here has thought of."""
    values = poison.collections()
    assert len(values) > 700
    bad.send([b'{"amount": 1}', *values])
    warm.complete(bad.by(transform))
    good, rejected = bad.found()
    assert len(good) + len(rejected) == len(bad.sent)
    bad.assert_letters(rejected)
    if transform == "split_by_function":
        bad.assert_each_once()
