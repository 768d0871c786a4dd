"""What a real session lacks of Kafka's classes is said at register, by check and by the start. Each session in a driver
of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import exactly_once
from exactly_once.kafka.connection import Connection
from exactly_once.sparkenv.jars import connector_jars, session_jars
from exactly_once_local.cluster.spark_cluster import SparkCluster, spark_home
from testkit import broker as brokers
from testkit import oracle
from testkit.java import kafka_client
from testkit.renamed import renamed

#: Two Sparks beside it on two cores, and a start of a driver takes two minutes.
PATIENCE_S = 300

_DRIVER = """
import json, logging, sys, time
import exactly_once
from exactly_once.errors import sentence_in
from pyspark.sql import SparkSession
class Kept(logging.Handler):
    said = []
    def emit(self, record):
        self.said.append(record.getMessage())
logging.getLogger("exactly_once").addHandler(Kept())
jars, servers, topic, checkpoint = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.jars", jars)
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
spark = builder.config("spark.log.level", "OFF").getOrCreate()
exactly_once.register(spark)
warned = [m for m in Kept.said if m.startswith("EO-WARN-CONNECTOR")]
rows = spark.readStream.format("rate").load().selectExpr("string(value) value")
options = {"kafka.bootstrap.servers": servers, "sink.id": topic, "topic": topic, "checkpointLocation": checkpoint}
def refusal(act):
    try:
        return act()
    except Exception as e:
        return sentence_in(str(e)) or str(e)
def stream(options):
    query = rows.writeStream.format("kafka_exactly_once").options(**options).start()
    deadline = time.monotonic() + 60
    while query.isActive and not query.recentProgress and time.monotonic() < deadline:
        time.sleep(0.1)
    query.stop()
    if query.exception():
        raise query.exception()
print(json.dumps({
    "register": warned, "check": refusal(lambda: exactly_once.check(rows, options)),
    "start": refusal(lambda: stream(options)),
}))
spark.stop()
"""


def driver(jars: list[str], connection: Connection, folder: Path) -> dict[str, Any]:
    """What a driver with these jars hears."""
    environment = {**os.environ, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
    topic = brokers.create_topic(connection.bootstrap_servers)
    arguments = [",".join([*jars, exactly_once.jar()]), connection.bootstrap_servers, topic, str(folder / "c")]
    command = [sys.executable, "-c", _DRIVER, *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def without(*parts: str) -> list[str]:
    """The connector's jars but those with one of ``parts`` in their names."""
    return [jar for jar in connector_jars() if not any(part in Path(jar).name for part in parts)]


def assert_refused(found: dict[str, Any], *words: str) -> None:
    [warned] = found["register"]
    assert warned.startswith("EO-WARN-CONNECTOR ") and [w for w in words if w not in warned] == []
    for said in (found["check"], found["start"]):
        assert said.startswith("EO-CONNECTOR: ") and [w for w in words if w not in said] == []


@pytest.mark.long
def test_a_session_whose_kafka_has_another_name_is_refused_with_the_way_out(
    connection: Connection, tmp_path: Path
) -> None:
    """Mishap on Databricks: register and check pass, and the first batch ends with NoClassDefFoundError."""
    words = ("org.apache.kafka.clients.producer.KafkaProducer", "kafkashaded", "kafka-clients:3.9")
    assert_refused(driver(renamed(connector_jars(), tmp_path), connection, tmp_path), *words)


@pytest.mark.long
def test_the_way_out_of_renamed_classes_works(connection: Connection, tmp_path: Path) -> None:
    """Guards against advice that nobody has tried."""
    jars = [*renamed(connector_jars(), tmp_path), str(kafka_client("3.9.2"))]
    assert driver(jars, connection, tmp_path) == {"register": [], "check": None, "start": None}


@pytest.mark.long
@pytest.mark.parametrize(
    ("jars", "words"),
    [
        (without("kafka-clients"), ("KafkaProducer", "kafka-clients:3.9")),
        (without("spark-token-provider"), ("spark-token-provider-kafka-0-10", "spark.jars.packages=")),
        (without("commons-pool2"), ("commons-pool2", "spark.jars.packages=")),
    ],
)
def test_a_connector_without_one_of_its_jars_is_refused(
    connection: Connection, tmp_path: Path, jars: list[str], words: tuple[str, ...]
) -> None:
    """Mishap: the jar of one name was downloaded, and not what it depends on."""
    found = driver(jars, connection, tmp_path)
    assert [w for w in words if w not in found["register"][0]] == []
    assert found["check"].startswith("EO-CONNECTOR: ") and [w for w in words if w not in found["check"]] == []


@pytest.mark.long
def test_an_old_client_is_refused(connection: Connection, tmp_path: Path) -> None:
    """Mishap: a cluster's own kafka-clients stands before the connector's; NoSuchMethodError in a task."""
    old = tmp_path / "kafka-clients-2.8.jar"
    _without_class(kafka_client("3.1.2"), old, "org/apache/kafka/common/TopicCollection")
    assert_refused(driver([*without("kafka-clients"), str(old)], connection, tmp_path), "older than 3.1", "3.9")


def _without_class(jar: Path, to: Path, name: str) -> None:
    with zipfile.ZipFile(jar) as old, zipfile.ZipFile(to, "w") as new:
        for entry in old.namelist():
            if not entry.startswith(name):
                new.writestr(entry, old.read(entry))


_JOB = textwrap.dedent("""
    import os, sys
    import exactly_once
    from pyspark.sql import SparkSession
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    spark = exactly_once.configure(builder).getOrCreate()
    exactly_once.register(spark)
    servers, source, topic, checkpoint = sys.argv[1:]
    rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", source)
    rows = rows.option("startingOffsets", "earliest").load().select("key", "value")
    options = {"kafka.bootstrap.servers": servers, "sink.id": topic, "topic": topic, "checkpointLocation": checkpoint}
    rows.writeStream.format("kafka_exactly_once").options(**options).trigger(availableNow=True).start().awaitTermination()
""")


def _environment(**more: str) -> dict[str, str]:
    found = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **more}
    return {**found, "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture
def job(connection: Connection, tmp_path: Path) -> tuple[Path, list[str], str]:
    """A program, its arguments, and its output; the input has ten records."""
    (tmp_path / "job.py").write_text(_JOB)
    source, topic = (brokers.create_topic(connection.bootstrap_servers) for _ in range(2))
    producer = Producer(connection.librdkafka())
    for n in range(10):
        producer.produce(source, f"v{n}", f"k{n}")
    producer.flush(30)
    return tmp_path / "job.py", [connection.bootstrap_servers, source, topic, str(tmp_path / "c")], topic


def assert_written(connection: Connection, topic: str, ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-3000:]
    oracle.assert_exactly(oracle.read(connection, [topic]), [(f"k{n}", f"v{n}") for n in range(10)])


@pytest.mark.long
def test_configure_under_spark_submit_keeps_its_jars_for_the_executors(
    connection: Connection, tmp_path: Path, job: tuple[Path, list[str], str]
) -> None:
    """Mishap: spark.jars of the context is the sink's jar alone; ClassNotFoundException in a task, four times."""
    program, arguments, topic = job
    with SparkCluster(tmp_path / "cluster", workers=1) as cluster:
        submit = [str(spark_home() / "bin" / "spark-submit"), "--master", cluster.master, "--driver-memory", "512m"]
        submit += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"]
        submit += ["--executor-memory", "512m", "--jars", ",".join(session_jars()), str(program), *arguments]
        ended = subprocess.run(submit, capture_output=True, text=True, timeout=PATIENCE_S, env=_environment())
    assert_written(connection, topic, ended)


@pytest.mark.long
@pytest.mark.parametrize("where", ["spark-defaults.conf", "PYSPARK_SUBMIT_ARGS"])
def test_configure_under_python_keeps_the_jars_that_are_given_elsewhere(
    where: str, connection: Connection, tmp_path: Path, job: tuple[Path, list[str], str]
) -> None:
    """Mishap: a connector is downloaded although one is there, or what is there is replaced."""
    program, arguments, topic = job
    (tmp_path / "conf").mkdir()
    common = "spark.master local[1]\nspark.driver.host 127.0.0.1\nspark.driver.memory 512m\n"
    in_file = where == "spark-defaults.conf"
    jars = ",".join(connector_jars() if in_file else session_jars())
    text = common + (f"spark.jars {jars}\n" if in_file else "")
    (tmp_path / "conf" / "spark-defaults.conf").write_text(text)
    environment = _environment(SPARK_CONF_DIR=str(tmp_path / "conf"), HOME=str(tmp_path))  # nothing is in its .ivy2
    if not in_file:
        environment["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"
    command = [sys.executable, str(program), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)
    assert_written(connection, topic, ended)
    assert not (tmp_path / ".ivy2").exists() and not list(tmp_path.glob(".ivy2*"))
