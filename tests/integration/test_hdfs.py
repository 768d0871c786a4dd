"""A checkpoint on HDFS: Spark reads and writes it as its own, Python through hdfs-native or through libhdfs.

`make test-hdfs` brings a name node and a data node (one jar), which no other test needs. With libhdfs, which no package
brings, it also tries that: ARROW_LIBHDFS_DIR or HADOOP_HOME names it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyspark
import pytest

from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.runs.failures import diagnose
from exactly_once.checkpoint import file_system, read_checkpoint, read_text
from exactly_once.errors import CheckpointAway
from exactly_once.sparkenv.java import find_java
from exactly_once.tools.operation.repair.files import read_files
from testkit.fixtures import Bench, StartDriver
from testkit.hdfs import DATA_NODE, NAME_NODE, Hdfs
from testkit.processes import until
from testkit.stream import ROOT, Job, SparkDriver

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not os.environ.get("TEST_HDFS"), reason="needs a name node, which make test-hdfs brings"),
]
STREAMS = "/streams"


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with Hdfs(tmp_path_factory.mktemp("hdfs") / "servers") as running:
        yield running


@dataclass(frozen=True)
class Reader:
    """How Python reads HDFS: what its processes have in their environment."""

    environment: Mapping[str, str]

    def inspect(self, location: str) -> dict[str, Any]:
        """Run exactly-once checkpoint inspect, in a process of its own: libhdfs brings a JVM."""
        command = [sys.executable, "-m", "exactly_once.tools.cli", "checkpoint", "inspect", location, "--json"]
        environment = {**os.environ, **self.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document


@pytest.fixture(params=["hdfs-native", "libhdfs"])
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Reader:
    """Each client for HDFS."""
    return native() if request.param == "hdfs-native" else libhdfs(tmp_path)


def native() -> Reader:
    """The extra ``hdfs``: nothing to set."""
    return Reader({"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])})


def libhdfs(folder: Path) -> Reader:
    """Pyarrow's own way, with the jars of PySpark as Hadoop's."""
    if not {"ARROW_LIBHDFS_DIR", "HADOOP_HOME"} & set(os.environ):
        pytest.skip("needs libhdfs: ARROW_LIBHDFS_DIR or HADOOP_HOME")
    without = folder / "without"
    without.mkdir()
    (without / "hdfs_native.py").write_text("raise ModuleNotFoundError('hdfs_native')\n")
    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    home = Path(find_java().executable).resolve().parents[1]
    return Reader(
        {
            "PYTHONPATH": os.pathsep.join([str(without), str(ROOT)]),
            "CLASSPATH": os.pathsep.join(str(jar) for jar in jars),
            "JAVA_HOME": str(home),
        }
    )


@pytest.fixture
def on_hdfs(hdfs: Hdfs, bench: Bench) -> Job:
    """The bench's query with its checkpoint on HDFS."""
    return bench.job.having(checkpointLocation=f"{hdfs.uri}{STREAMS}/{bench.sink_id}")


@pytest.fixture
def start(hdfs: Hdfs, driver: StartDriver) -> Callable[[Reader], SparkDriver]:
    """Start a driver whose Python reads HDFS in this way."""
    return lambda reader: driver(conf=hdfs.conf, environment=dict(reader.environment))


@pytest.mark.parametrize("point", ["some-sent", "decided", "all-ended"])
def test_a_driver_that_is_killed_continues_from_its_checkpoint_on_hdfs_and_nothing_is_lost_or_doubled(
    point: str, hdfs: Hdfs, on_hdfs: Job, bench: Bench, start: Callable[[Reader], SparkDriver], reader: Reader
) -> None:
    """A checkpoint that is behind or half written after the crash would be a loss, a duplicate or a refusal."""
    location = on_hdfs.options["checkpointLocation"]
    killed = start(reader)
    bench.hold_third_batch(killed, on_hdfs, point)
    killed.kill9()

    sensor = CheckpointReader(root=f"{hdfs.uri}{STREAMS}")
    found = sensor.read(location)
    assert (found.last_offsets, found.last_commit, found.in_flight, found.torn) == (2, 1, 2, {})
    assert set(sensor.marked_ms(location, after=-1)) == {0, 1}, "a sensor reports how long ago a batch was committed"
    seen = reader.inspect(location)
    assert (seen["last_committed"], seen["in_flight"], seen["torn"]) == (1, 2, {})
    bench.input.add()
    start(reader).complete(on_hdfs)
    bench.assert_exactly_once()
    ended = read_checkpoint(location)
    assert (ended.in_flight, ended.last_commit, ended.torn) == (None, 3, {})


@pytest.mark.parametrize("participants", [None, []], ids=["format", "foreach_batch"])
def test_a_path_without_a_scheme_is_on_the_default_file_system_whatever_characters_it_has(
    participants: list[dict[str, Any]] | None, hdfs: Hdfs, bench: Bench, driver: StartDriver, reader: Reader
) -> None:
    """Outage: Spark writes to HDFS, and the sink says that there is no checkpoint on the local disk; or takes another
    query's there for it."""
    path = f"{STREAMS}/{bench.sink_id} my chk#2?x=a%20b"
    default = {**hdfs.conf, "spark.hadoop.fs.defaultFS": hdfs.uri}
    running = driver(conf=default, environment=dict(reader.environment))
    here = {**bench.job.source["options"], "path": f"file:{bench.input.folder}"}
    source = {**bench.job.source, "options": here}
    job = replace(bench.job, source=source, participants=participants).having(checkpointLocation=path)
    for _ in range(2):
        bench.input.add()
        running.ask("check", job=vars(job))
        running.complete(job)
    bench.assert_exactly_once()
    owner = bench.log().owner
    assert owner is not None and owner.checkpoint == f"{hdfs.uri}{path}"
    assert reader.inspect(f"{hdfs.uri}{path}")["last_committed"] == 1


def test_a_name_node_that_is_killed_ends_the_stream_and_its_next_start_continues(
    hdfs: Hdfs, on_hdfs: Job, bench: Bench, start: Callable[[Reader], SparkDriver]
) -> None:
    """A batch may be decided while nobody can write its commits/N; and nobody need be called for an outage."""
    location = on_hdfs.options["checkpointLocation"]
    struck = start(native())
    bench.hold_third_batch(struck, on_hdfs, "decided")
    hdfs.kill(NAME_NODE)
    with pytest.raises(CheckpointAway, match=r"EO-CHECKPOINT-AWAY: HDFS .*Wait until hdfs dfs"):
        read_checkpoint(location)
    struck.kill9()
    refused = start(native()).run(on_hdfs)
    said = diagnose(RuntimeError(refused.failure))
    print(refused.failure)
    hdfs.start(NAME_NODE)
    assert (said.code, said.heals) == ("SPARK-CHECKPOINT-AWAY", True)
    bench.input.add()
    start(native()).complete(on_hdfs)
    bench.assert_exactly_once()


def test_a_stream_runs_on_through_a_restart_of_the_name_node(
    hdfs: Hdfs, on_hdfs: Job, bench: Bench, start: Callable[[Reader], SparkDriver]
) -> None:
    """Whatever ends in the outage, Spark or the sink, must be restarted by the sensors, and be exactly once."""
    bench.input.add()
    struck = start(native())
    run = struck.start(on_hdfs.until_stopped())
    run.await_true("a decided batch", lambda: bench.decided_batches()[-1:] == [0])
    hdfs.kill(NAME_NODE)
    bench.input.add(3)
    until("the end of the query", run.has_ended, 120)
    ended = run.end()
    print(ended.failure)
    hdfs.start(NAME_NODE)
    said = diagnose(RuntimeError(ended.failure))
    assert said.heals, said
    bench.complete_exactly_once(struck, on_hdfs, batches=0)


def test_a_data_node_that_is_paused_holds_the_stream_up_and_no_more(
    hdfs: Hdfs, on_hdfs: Job, bench: Bench, start: Callable[[Reader], SparkDriver]
) -> None:
    """The name node answers, and no file can be read or written: a batch must wait or fail, not be skipped."""
    bench.input.add()
    held = start(native())
    run = held.start(on_hdfs.until_stopped())
    run.await_true("a decided batch", lambda: bench.decided_batches()[-1:] == [0])
    hdfs.pause(DATA_NODE)
    try:
        bench.input.add(2)
        with pytest.raises(AssertionError):
            until("another decided batch", lambda: bench.decided_batches()[-1:] != [0], 10)
    finally:
        hdfs.resume(DATA_NODE)
    run.await_true("all batches", lambda: bench.decided_batches()[-1:] == [2])
    run.stop()()
    bench.complete_exactly_once(held, on_hdfs, batches=0)


def test_data_nodes_that_are_gone_are_waited_for(hdfs: Hdfs) -> None:
    """The name node answers, so a sensor or a batch finds the checkpoint, and cannot read it: nobody need be called."""
    location = f"{hdfs.uri}{STREAMS}/gone"
    files, root = file_system(location)
    files.create_dir(f"{root}/offsets", recursive=True)
    with files.open_output_stream(f"{root}/metadata") as metadata:
        metadata.write(b'{"id":"query"}')
    hdfs.kill(DATA_NODE)
    for look in (read_checkpoint, read_files, lambda _: read_text(location, "metadata")):
        with pytest.raises(CheckpointAway, match=r"EO-CHECKPOINT-AWAY: HDFS .*All DataNodes failed"):
            look(location)
    hdfs.start(DATA_NODE)
    assert read_checkpoint(location).query_id == "query"


def test_torn_files_on_hdfs_are_repaired_and_the_stream_goes_on(
    hdfs: Hdfs, on_hdfs: Job, bench: Bench, start: Callable[[Reader], SparkDriver]
) -> None:
    """A file that a client was writing as it died is empty on HDFS; the repair writes there without Spark."""
    location = on_hdfs.options["checkpointLocation"]
    bench.input.add(2)
    first = start(native())
    first.complete(on_hdfs)
    files, root = file_system(location)
    with files.open_output_stream(f"{root}/commits/1"):
        pass
    refused = first.run(on_hdfs)
    assert diagnose(RuntimeError(refused.failure)).code in ("EO-CHECKPOINT", "SPARK-CHECKPOINT-TORN")
    first.kill9()
    command = [
        sys.executable,
        "-m",
        "exactly_once.tools.cli",
        "--bootstrap-servers",
        bench.connection.bootstrap_servers,
    ]
    command += ["checkpoint", "repair", location, "--sink", bench.sink_id, "--apply"]
    environment = {**os.environ, **native().environment}
    mended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    bench.input.add()
    start(native()).complete(on_hdfs)
    bench.assert_exactly_once()
