"""A checkpoint on an S3 server: Spark reads and writes it through s3a://, Python through pyarrow.

`make test-s3` brings the server (moto) and the jars (hadoop-aws, Amazon's SDK), which no other test needs.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dagster_exactly_once.resources.checkpoints import CheckpointReader
from exactly_once.checkpoint import read_checkpoint
from tests.support import processes
from tests.support.fixtures import Bench, StartDriver
from tests.support.processes import until
from tests.support.stream import Job

#: Where `make test-s3` puts what the tests need: ``python`` (packages of the server) and ``jars``.
S3 = Path(os.environ.get("TEST_S3", ""))

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not os.environ.get("TEST_S3"), reason="needs an S3 server, which make test-s3 brings"),
]
BUCKET = "checkpoints"


@dataclass(frozen=True)
class Store:
    """A running server; ``environment`` is that of its clients, in Python and in the JVM."""

    endpoint: str
    environment: dict[str, str]

    @property
    def conf(self) -> dict[str, str]:
        """Settings of a Spark session, in place of Spark's for a local disk."""
        return {
            "spark.jars": ",".join(str(jar) for jar in sorted((S3 / "jars").glob("*.jar"))),
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
            "spark.sql.streaming.checkpointFileManagerClass": (
                "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
            ),
        }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    environment = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            env={**os.environ, **environment, "PYTHONPATH": str(S3 / "python")},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        until("the S3 server", lambda: answers(server, endpoint, log), 60)
        request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=10)
        yield Store(endpoint, environment)
    finally:
        processes.kill_session(server.pid)
        server.wait()


def answers(server: subprocess.Popen[bytes], endpoint: str, log: Path) -> bool:
    assert server.poll() is None, log.read_text()[-2000:]
    try:
        urllib.request.urlopen(endpoint, timeout=5)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@pytest.fixture
def on_s3(store: Store, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Job:
    """The bench's query with its checkpoint in the bucket, which this process may read as a sensor does."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return bench.job.having(checkpointLocation=f"s3a://{BUCKET}/streams/{bench.sink_id}")


@pytest.mark.parametrize("point", ["some-sent", "decided", "completed"])
def test_a_driver_that_is_killed_continues_from_its_checkpoint_on_s3_and_nothing_is_lost_or_doubled(
    point: str, store: Store, on_s3: Job, bench: Bench, driver: StartDriver
) -> None:
    """A checkpoint that is behind or half written after the crash would be a loss, a duplicate or a refusal."""
    location = on_s3.options["checkpointLocation"]
    bench.input.add(2)
    killed = driver(conf=store.conf)
    run = killed.start(on_s3.until_stopped())
    run.await_true("two decided batches", lambda: bench.decided_batches()[-1:] == [1])
    killed.arm(point)
    bench.input.add()
    run.await_true(point, lambda: killed.has_reached(point))
    killed.kill9()

    found = CheckpointReader(root=f"s3a://{BUCKET}/streams").read(location)
    assert (found.last_offsets, found.last_commit, found.in_flight, found.torn) == (2, 1, 2, {})
    bench.input.add()
    driver(conf=store.conf).complete(on_s3)
    bench.assert_exactly_once()
    ended = read_checkpoint(location.replace("s3a://", "s3://"))
    assert (ended.in_flight, ended.last_commit, ended.torn) == (None, 3, {})
