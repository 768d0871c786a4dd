"""Kafka's own Java client in a JVM, by py4j: neither the sink nor its checker is made of it. And the sink's own classes
in a JVM without Spark.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from exactly_once.spark.session import JAR
from exactly_once.sparkenv.jars import broker_classpath, resolve_configuration
from exactly_once.sparkenv.java import OLDEST_JAVA, find_java

ROOT = Path(__file__).resolve().parents[2]

#: A trial starts a JVM and a producer or two.
_TRIAL_S = 120.0

#: Of one poll: its answer comes at once where there is one.
_POLL_MS = 200


#: A release of kafka-clients that keeps the sequence numbers of partitions under another name than
#: TransactionalProducer.java looks for.
NOT_REUSABLE = "3.1.2"


class Record(NamedTuple):
    """One record as Java's consumer gets it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def sparks_jars(*names: str) -> list[str]:
    """Return the jars of this PySpark whose names begin like these."""
    jars = Path(pyspark.__file__).parent / "jars"
    return [str(jar) for name in names for jar in sorted(jars.glob(f"{name}-*.jar"))]


@contextmanager
def running_java(classes: Sequence[str] = ()) -> Iterator[Any]:
    """Yield a JVM with these jars; without any with the broker's, among them the client's and those of its codecs."""
    [py4j] = sparks_jars("py4j")
    classpath = os.pathsep.join(classes) or broker_classpath()
    port = launch_gateway(jarpath=py4j, classpath=classpath, die_on_exit=True, java_path=find_java().executable)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    yield gateway
    gateway.shutdown()


def read_with_java(
    jvm: Any, servers: str, topics: Sequence[str], committed: bool = True, timeout_s: float = 60.0
) -> list[Record]:
    """Everything in ``topics`` as Java's consumer gets it now, partition by partition in order of offset.

    ``committed``: with ``isolation.level=read_committed``, so up to the last stable offset.
    """
    java = jvm.jvm
    bytes_of = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    settings = java.java.util.Properties()
    for name, value in {
        "bootstrap.servers": servers,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "key.deserializer": bytes_of,
        "value.deserializer": bytes_of,
        "auto.offset.reset": "none",
        "enable.auto.commit": "false",
        "allow.auto.create.topics": "false",
    }.items():
        settings.setProperty(name, value)
    consumer = java.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
    try:
        places = java.java.util.ArrayList()
        for topic in topics:
            for info in consumer.partitionsFor(topic):
                places.add(java.org.apache.kafka.common.TopicPartition(topic, info.partition()))
        consumer.assign(places)
        consumer.seekToBeginning(places)
        ends = {place: consumer.endOffsets(places)[place] for place in places}
        found: list[Record] = []
        deadline = time.monotonic() + timeout_s
        while any(consumer.position(place) < end for place, end in ends.items()):
            assert time.monotonic() < deadline, f"Java's consumer does not come to {ends}: it has {len(found)} records"
            found += _each(consumer.poll(java.java.time.Duration.ofMillis(_POLL_MS)))
        return sorted(found)
    finally:
        consumer.close()


def _each(records: Any) -> Iterator[Record]:
    some = records.iterator()
    while some.hasNext():
        r = some.next()
        yield Record(r.topic(), r.partition(), r.offset(), r.key(), r.value())


def kafka_client(release: str) -> Path:
    """Return the jar of a release of kafka-clients, of ivy-clients.xml."""
    (jar,) = resolve_configuration(Path(__file__).with_name("ivy-clients.xml"), release)
    return jar


def jackson(release: str = "") -> list[Path]:
    """Return the jars of the JSON library that Spark brings: of this release, or those of the installed PySpark."""
    if release:
        return resolve_configuration(Path(__file__).with_name("ivy-clients.xml"), f"jackson-{release}")
    return sorted((Path(pyspark.__file__).parent / "jars").glob("jackson-*.jar"))


def compiled(source: Path, classes: Path, *with_jars: Path) -> Path:
    """Compile a source, which may use ``with_jars`` and other sources of tests, into the folder ``classes`` by the
    compiler of the jar; return the folder.
    """
    (compiler,) = resolve_configuration(ROOT / "java" / "ivy.xml", "compiler")
    command = ["-jar", str(compiler), "-proc:none", "-source", str(OLDEST_JAVA), "-target", str(OLDEST_JAVA)]
    command += ["-cp", os.pathsep.join(map(str, (JAR, kafka_client("3.4.1"), *with_jars))), "-d", str(classes)]
    _java([*command, "-sourcepath", str(ROOT / "tests" / "java"), str(source)])
    return classes


class Trial(NamedTuple):
    """``tests/java/exactlyonce/Trial.java``, compiled, with what lies in the rooms of the sink's own classes."""

    classes: Path

    @classmethod
    def compiled(cls, classes: Path) -> Trial:
        """Compile it into a folder."""
        return cls(compiled(ROOT / "tests" / "java" / "exactlyonce" / "Trial.java", classes))

    def run(self, client: Path, *arguments: str) -> list[str]:
        """Run it with this kafka-clients to its end; the lines that it prints."""
        return _java(self._command(client, *arguments))

    @contextmanager
    def talk(self, client: Path, *arguments: str) -> Iterator[Callable[..., str]]:
        """Run it beside the test: call what is yielded with a line for it, or with none, to get its next line."""
        process = subprocess.Popen(
            [find_java().executable, *self._command(client, *arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        said, asked = process.stdout, process.stdin
        limit = threading.Timer(_TRIAL_S, process.kill)  # ends a wait for a line that does not come
        limit.start()

        def ask(line: str = "") -> str:
            if line:
                asked.write(f"{line}\n")
                asked.flush()
            return said.readline().strip()

        try:
            yield ask
        finally:
            limit.cancel()
            process.kill()
            process.communicate()

    def _command(self, client: Path, *arguments: str) -> list[str]:
        logging = (Path(pyspark.__file__).parent / "jars").glob("slf4j-api-*.jar")
        path = os.pathsep.join(map(str, (self.classes, JAR, client, *logging)))
        return ["-cp", path, "exactlyonce.Trial", *arguments]


def _java(arguments: Sequence[str]) -> list[str]:
    done = subprocess.run([find_java().executable, *arguments], capture_output=True, text=True, timeout=_TRIAL_S)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()
