"""A checkpoint on an S3 server: Spark reads and writes it through s3a://, Python through pyarrow.

`make test-s3` brings the server (moto) and the jars (hadoop-aws, Amazon's SDK), which no other test needs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dagster_exactly_once.resources.checkpoints import CheckpointReader
from exactly_once.checkpoint import read_checkpoint
from tests.support.fixtures import Bench, StartDriver
from tests.support.s3 import S3
from tests.support.stream import Job

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


@pytest.mark.parametrize("point", ["some-sent", "decided", "completed"])
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
