"""Records, and batches of records, that come near what a topic takes, or go beyond."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from testkit.broker import create_topic
from testkit.fixtures import Bench
from testkit.stream import Job, SparkDriver

#: What the topics of these tests take at once, with compression.
LIMIT = 10_000


def limited(bench: Bench, value: str, **options: str) -> Job:
    """Return the job into a topic that takes :data:`LIMIT` bytes at once; ``value`` makes the value of a row."""
    settings = {"max.message.bytes": str(LIMIT)}
    bench.topic = create_topic(bench.connection.bootstrap_servers, partitions=2, config=settings)
    job = bench.job.having(topic=bench.topic, **options)
    return Job(**{**asdict(job), "select": ["split(value, '[|]')[0] key", f"{value} value"]})


@pytest.mark.long
def test_batches_that_compress_worse_than_those_before_are_split_and_every_row_is_there_once(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a stream that stops over rows which are small enough, and against the parts of a batch that was
    split: sent twice, in another order, or under sequence numbers that the driver's checksum does not expect.

    The client guesses from batches that it has sent how much a codec saves. Rows of one letter let it take ever more
    for one batch; then, when all of them are sent, come rows that no codec makes much smaller.
    """
    count = 900
    number = "cast(split(value, '-')[1] as int)"
    noise = "concat_ws('', transform(sequence(1, 12), i -> base64(unhex(sha2(concat(value, cast(i as string)), 256)))))"
    value = f"concat(split(value, '[|]')[1], '-', if({number} < {count * 2 // 3}, repeat('x', 5000), {noise}))"
    job = limited(bench, value, kafka_compression_type="gzip", kafka_batch_size="9000")
    for rows in (range(count * 2 // 3), range(count * 2 // 3, count)):
        bench.input.add_rows([[(f"k{p}.{n % 7}", f"{p}-{n}") for n in rows] for p in range(2)])
        warm.complete(job)
    log = warm.log.read_text(errors="replace").splitlines()
    assert any("splitting and retrying" in line and bench.topic in line for line in log), "no batch was too large"
    bench.assert_settled()
    found = [(key, (value or "").rpartition("-")[0]) for key, value in bench.visible()]
    assert sorted(found) == sorted(bench.input.expected())
    for key in {key for key, _ in found}:
        mine = [int(row.split("-")[1]) for k, row in found if k == key]
        assert mine == sorted(mine), f"{key} is out of order"


@pytest.mark.parametrize(
    "codec", ["none", *(pytest.param(c, marks=pytest.mark.long) for c in ("gzip", "snappy", "lz4", "zstd"))]
)
def test_of_many_rows_the_very_one_that_the_topic_refuses_as_too_large_is_named(
    codec: str, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against the key of an innocent row of the same batch, and against a batch that goes on without the row."""
    bench.input.add_rows([[(f"k{n}", f"{n}") for n in range(400)], [("other", "1")]])
    noise = "concat_ws('', transform(sequence(1, 300), i -> sha2(concat(value, cast(i as string)), 512)))"
    large = f"if(value like 'k257|%', {noise}, rpad('', 100, '.'))"
    job = limited(bench, large, kafka_compression_type=codec, kafka_batch_size="4000")
    ended = warm.run(job).with_code("EO-RECORD")
    assert f"(topic '{bench.topic}', key 'k257', value of 38400 bytes) is too large" in ended.sentence
    assert "max.message.bytes of the topic" in ended.sentence
    bench.assert_exactly([])
    assert bench.decided_batches() == []
