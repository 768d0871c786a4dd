"""A checkpoint on an S3 server: Spark reads and writes it through s3a://, Python through pyarrow.

`make test-s3` brings the server (moto) and the jars (hadoop-aws, Amazon's SDK), which no other test needs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.runs.failures import diagnose
from exactly_once.checkpoint import Checkpoint, read_checkpoint
from testkit.fixtures import Bench, StartDriver
from testkit.processes import until
from testkit.s3 import S3
from testkit.stream import Job

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not os.environ.get("TEST_S3"), reason="needs an S3 server, which make test-s3 brings"),
]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def on_s3(s3: S3, bench: Bench) -> Job:
    """The bench's query with its checkpoint in the bucket."""
    return bench.job.having(checkpointLocation=f"{s3.uri}/streams/{bench.sink_id}")


@pytest.mark.parametrize("point", ["some-sent", "decided", "all-ended"])
def test_a_driver_that_is_killed_continues_from_its_checkpoint_on_s3_and_nothing_is_lost_or_doubled(
    point: str, s3: S3, on_s3: Job, bench: Bench, driver: StartDriver
) -> None:
    """A checkpoint that is behind or half written after the crash would be a loss, a duplicate or a refusal."""
    location = on_s3.options["checkpointLocation"]
    killed = driver(conf=s3.conf)
    bench.hold_third_batch(killed, on_s3, point)
    killed.kill9()

    found = CheckpointReader(root=f"{s3.uri}/streams").read(location)
    assert (found.last_offsets, found.last_commit, found.in_flight, found.torn) == (2, 1, 2, {})
    bench.input.add()
    driver(conf=s3.conf).complete(on_s3)
    bench.assert_exactly_once()
    ended = read_checkpoint(location.replace("s3a://", "s3://"))
    assert (ended.in_flight, ended.last_commit, ended.torn) == (None, 3, {})


@pytest.mark.parametrize(
    ("participants", "register"), [(None, True), (None, False), ([], True)], ids=["format", "child", "foreach_batch"]
)
def test_a_path_without_a_scheme_is_in_the_bucket_that_is_the_default_file_system(
    participants: list[dict[str, Any]] | None, register: bool, s3: S3, bench: Bench, driver: StartDriver, tmp_path: Path
) -> None:
    """Outage: Spark writes to the bucket, and the sink says that there is no checkpoint on the local disk; or it takes
    another query's, which lies there under the same path, for this one's."""
    path = f"{tmp_path}/my chk#2?x=a%20b"
    stranger = Checkpoint(path, "stranger")
    (tmp_path / "my chk#2?x=a%20b").mkdir()
    (tmp_path / "my chk#2?x=a%20b" / "metadata").write_text('{"id":"stranger"}')
    assert read_checkpoint(path) == stranger
    here = {**bench.job.source["options"], "path": f"file:{bench.input.folder}"}
    source = {**bench.job.source, "options": here}
    job = replace(bench.job, source=source, participants=participants, register=register)
    job = job.having(checkpointLocation=path)
    running = driver(conf={**s3.conf, "spark.hadoop.fs.defaultFS": f"{s3.uri}/"})
    for batch in range(2):
        bench.input.add()
        running.ask("check", job=vars(job))
        running.complete(job)
        assert read_checkpoint(f"{s3.uri}{path}").last_commit == batch
    bench.assert_exactly_once()


#: Hadoop's client gives up after the least time that it allows, and not after many times that.
IMPATIENT = {
    "spark.hadoop.fs.s3a.attempts.maximum": "1",
    "spark.hadoop.fs.s3a.retry.limit": "1",
    "spark.hadoop.fs.s3a.retry.interval": "100ms",
    "spark.hadoop.fs.s3a.connection.establish.timeout": "15s",
    "spark.hadoop.fs.s3a.connection.timeout": "15s",
}

#: A port at which nobody listens.
NOBODY = "http://127.0.0.1:1"


def test_a_store_that_does_not_answer_spark_ends_the_stream_and_its_next_start_continues(
    s3: S3, on_s3: Job, bench: Bench, driver: StartDriver
) -> None:
    """An outage of the store at night must wake nobody, and what was decided before it must be there once."""
    bench.input.add(2)
    struck = driver(conf={**s3.conf, **IMPATIENT})
    run = struck.start(on_s3.until_stopped())
    run.await_true("two decided batches", lambda: bench.decided_batches()[-1:] == [1])
    s3.pause()
    try:
        bench.input.add()
        until("the end of the query", run.has_ended, 180)
        failure = run.end().failure
    finally:
        s3.resume()
    said = diagnose(RuntimeError(failure))
    assert (said.code, said.heals) == ("SPARK-CHECKPOINT-AWAY", True)
    bench.complete_exactly_once(struck, on_s3)


def test_a_store_that_does_not_answer_spark_at_a_start_or_python_in_a_batch_is_one_to_wait_for(
    s3: S3, on_s3: Job, bench: Bench, driver: StartDriver
) -> None:
    """Whoever meets the outage first, the next start heals it."""
    bench.input.add()
    python = driver(conf=s3.conf, environment={"AWS_ENDPOINT_URL": NOBODY}).run(on_s3)
    assert diagnose(RuntimeError(python.failure)).code == "EO-CHECKPOINT-AWAY", python.failure
    spark = driver(conf={**s3.conf, **IMPATIENT, "spark.hadoop.fs.s3a.endpoint": NOBODY}).run(on_s3)
    assert diagnose(RuntimeError(spark.failure)).code == "SPARK-CHECKPOINT-AWAY", spark.failure
    driver(conf=s3.conf).complete(on_s3)
    bench.assert_exactly_once()


def test_a_store_that_refuses_is_not_one_to_wait_for(s3: S3, bench: Bench, driver: StartDriver) -> None:
    """A wrong bucket or a wrong host must reach a person, and not be tried for hours."""
    bench.input.add()
    missing = bench.job.having(checkpointLocation="s3a://no-such-bucket/streams/clicks")
    refused = driver(conf={**s3.conf, **IMPATIENT}).run(missing)
    assert "bucket does not exist" in str(refused.failure)
    assert not diagnose(RuntimeError(refused.failure)).heals, refused.failure
    wrong = driver(conf={**s3.conf, **IMPATIENT, "spark.hadoop.fs.s3a.endpoint": "http://s3.invalid"}).run(missing)
    assert "UnknownHostException" in str(wrong.failure)
    assert not diagnose(RuntimeError(wrong.failure)).heals, wrong.failure
