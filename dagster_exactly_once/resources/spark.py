"""A SparkSession for streaming ops, which ends with the op; its settings were measured, and each has its reason.

This module imports no pyspark (nor dagster_pyspark, which does), so loading the code location starts no JVM.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dagster import ConfigurableResource, InitResourceContext
from pydantic import Field, PrivateAttr

import exactly_once
from dagster_exactly_once.resources import set_fields
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.connection import Connection
from exactly_once.spark import launch
from exactly_once.spark.session import file_manager, with_jar
from exactly_once.sparkenv.jars import connector_jars
from exactly_once.sparkenv.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Settings of every session. The figures are from two cores, Kafka -> Spark -> Kafka.
TUNED: Mapping[str, str] = {
    # 10-20 % more records per second than G1: batches make short-lived garbage, and single pauses do not matter.
    "spark.executor.extraJavaOptions": "-XX:+UseParallelGC",
    # Copies of a slow task would each hold a transaction open; the sink refuses to start with it.
    "spark.speculation": "false",
    # Times in records must not depend on the machine that formats them.
    "spark.sql.session.timeZone": "UTC",
    # ui=True brings it back, on whatever port is free: several streams share a host.
    "spark.ui.enabled": "false",
    "spark.ui.port": "0",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}

#: Settings of queries that keep state, by :func:`use_state_store`. Not of every session: format 2 raises the version of
#: the commit files of stateless streams too, which an older session then cannot read.
STATE_STORE: Mapping[str, str] = {
    # State lies outside of the heap, so its size costs no garbage collection.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A batch uploads what it changed, not a snapshot of everything.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # commits/N names the very files that batch N wrote: a task of a batch that was tried before, or of a driver that
    # was replaced, cannot put its own files in their place.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
}

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"

#: Settings for checkpoints on a local disk: walCommit 37 -> 13 ms and commitOffsets 50 -> 16 ms per batch. They are
#: weaker at refusing a second writer of the checkpoint, which the sink does not lean on: the commit log fences. Not for
#: state outside of :data:`STATE_STORE`: see :mod:`dagster_exactly_once.streaming.query`.
LOCAL_CHECKPOINTS: Mapping[str, str] = {
    FILE_MANAGER: file_manager("FileSystemBased"),
}

#: Settings for everything in one process: no port is open to other machines, and a laptop may change its network.
LOCAL_MASTER: Mapping[str, str] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

#: Options of Spark's Kafka source: with them it reads 1.5 times as fast as with the defaults.
TUNED_SOURCE: Mapping[str, str] = {
    # Without it, Spark reads open and aborted transactions: no exactly-once input from a transactional topic.
    "kafka.isolation.level": "read_committed",
    # 500 by default: a poll costs the same for 20,000 small records.
    "kafka.max.poll.records": "20000",
    # 1 MB and 50 MB by default: fewer, larger fetches for a reader that wants everything there is.
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
    # Where the brokers allow it, Spark's consumer would recreate a deleted topic: empty, and without an error.
    "kafka.allow.auto.create.topics": "false",
    # Deleted input is an error, not a gap to skip silently.
    "failOnDataLoss": "true",
}


class SessionExists(ExactlyOnceError):
    """The error of a second Spark session in a process that already has one."""

    code = "EO-SESSION"
    default_safe = "Nothing was started"


def kafka_source_options(
    connection: Connection, topic: str, max_offsets_per_trigger: int | None = None
) -> dict[str, str]:
    """Options for ``spark.readStream.format("kafka")``: :data:`TUNED_SOURCE` on ``topic``, from its beginning.

    Parameters
    ----------
    max_offsets_per_trigger : int, optional
        An upper limit for one batch. It counts offsets, transaction markers included.
    """
    options = {**connection.spark(), **TUNED_SOURCE, "subscribe": topic, "startingOffsets": "earliest"}
    if max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(max_offsets_per_trigger)
    return options


def use_state_store(spark: SparkSession, partitions: int) -> None:
    """Make stateful queries that this session starts from now on use :data:`STATE_STORE`.

    Parameters
    ----------
    partitions : int
        State partitions of such a query, and tasks of each of its batches. Its first start fixes them in the
        checkpoint.
    """
    for name, value in {**STATE_STORE, "spark.sql.shuffle.partitions": str(partitions)}.items():
        spark.conf.set(name, value)


class SparkSessionResource(ConfigurableResource):
    """The SparkSession of an op, opened at its first use and stopped when the op's resources end.

    ``with spark.session() as session:`` stops it earlier. ``format("kafka_exactly_once")`` is registered.

    Only the thread that opens the session should talk to it: Dagster interrupts the main thread of an op, and an
    interrupt in the middle of a call leaves the connection to the JVM out of step (or waiting forever).
    """

    master: str = Field(default="local[*]", description="Spark master URL.")
    app_name: str = Field(default="kafka-exactly-once", description="Name of the application.")
    driver_memory: str = Field(default="1g", description="Heap of the driver; in local mode, the tasks share it.")
    work_dir: str = Field(description="Folder for warehouse, shuffle files and sockets; created if it is missing.")
    local_checkpoints: bool = Field(
        default=True, description="Checkpoints lie on a local disk: use the faster file manager."
    )
    ui: bool = Field(default=False, description="Serve Spark's own UI, on a free port; a stream's reports link to it.")
    connector: bool = Field(
        default=True, description="Add Spark's Kafka connector; False where the runtime or the image has it already."
    )
    worker_python: str | None = Field(default=None, description="Python of the workers; by default that of the driver.")
    conf: dict[str, str] = Field(
        default={}, description="More Spark settings, which override all others. The sink's jar is added to spark.jars."
    )

    _open: ExitStack = PrivateAttr(default_factory=ExitStack)
    _session: Any = PrivateAttr(default=None)

    @property
    def spark_session(self) -> SparkSession:
        """The session, under the name that dagster-pyspark's ``PySparkResource`` gives it; opened at the first use.

        ```python
        import dagster as dg
        from dagster_exactly_once import SparkSessionResource


        @dg.op
        def count(spark: SparkSessionResource) -> int:
            return spark.spark_session.range(100).count()
        ```

        Raises
        ------
        SessionExists, JavaUnusable, JarsUnusable
            As :meth:`session`.
        """
        if self._session is None:
            self._session = self._open.enter_context(self.session())
        session: SparkSession = self._session
        return session

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Stop the session that :attr:`spark_session` opened."""
        self._session = None
        self._open.close()

    @classmethod
    def from_environment(cls, prefix: str = "EXACTLY_ONCE_SPARK_", **fields: Any) -> Self:
        """Return ``fields``, with those that ``<prefix><FIELD>`` variables set: MASTER, DRIVER_MEMORY, CONNECTOR, ...

        ``<prefix>CONF`` is a JSON object.
        """
        given: dict[str, Any] = {**set_fields(cls.model_fields, prefix)}
        if "conf" in given:
            given["conf"] = json.loads(given["conf"])
        return cls(**{**fields, **given})

    def settings(self) -> dict[str, str]:
        """Every Spark setting of the session."""
        work = Path(self.work_dir).absolute()
        # Spark's and the JVM's temporary files stay in the work folder too.
        java = f'-XX:+UseParallelGC -XX:-UsePerfData "-Djava.io.tmpdir={work / "tmp"}"'
        settings = {
            **TUNED,
            **(LOCAL_CHECKPOINTS if self.local_checkpoints else {}),
            **(LOCAL_MASTER if self.master.startswith("local") else {}),
            "spark.master": self.master,
            "spark.app.name": self.app_name,
            "spark.driver.memory": self.driver_memory,
            "spark.driver.extraJavaOptions": java,
            **({"spark.jars": ",".join(connector_jars())} if self.connector else {}),
            "spark.sql.warehouse.dir": str(work / "warehouse"),
            "spark.local.dir": str(work / "local"),
        }
        if self.ui:
            settings["spark.ui.enabled"] = "true"
        settings |= self.conf
        return settings | {"spark.jars": with_jar(settings.get("spark.jars") or launch.setting("spark.jars"))}

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Yield a new session with ``format("kafka_exactly_once")`` registered; stop it when the block ends.

        Raises
        ------
        SessionExists
            In a process with a session: Spark would silently ignore these settings.
        JavaUnusable
            No Java of a supported version is installed.
        JarsUnusable
            The connector cannot be downloaded, or its checksum is wrong.
        """
        java = find_java()
        if java.home:
            os.environ["JAVA_HOME"] = java.home
        # Spark takes the workers' Python from the environment of its JVM, and that of the driver must be the same
        # version.
        os.environ["PYSPARK_PYTHON"] = self.worker_python or sys.executable
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        if self.master.startswith("local"):  # else it looks the host name up, and warns that it is a loopback address
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        for folder in ("tmp", "local"):
            (Path(self.work_dir).absolute() / folder).mkdir(parents=True, exist_ok=True)

        from dagster_pyspark.resources import spark_session_from_config
        from pyspark import SparkContext

        if SparkContext._active_spark_context is not None:
            raise SessionExists(
                "this process has a Spark session already",
                "Run the op in a process of its own, or stop that session first",
            )
        session = spark_session_from_config(self.settings())  # type: ignore[no-untyped-call]
        try:
            _quieten(session)
            exactly_once.register(session)
            yield session
        finally:
            session.stop()

    @staticmethod
    def kill() -> None:
        """End the JVM of this process at once, for a session that does not stop. Safe from any thread, at any time."""
        from pyspark import SparkContext

        process = getattr(SparkContext._gateway, "proc", None)
        if process is not None:
            process.kill()


def _quieten(session: SparkSession) -> None:
    """Let the JVM not log a warning for each batch that takes longer than the trigger's interval: the check ``health``
    says whether the stream is behind.
    """
    log: Any = session.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    for package in ("streaming", "streaming.runtime"):  # before Spark 4.1, and since
        executor = f"org.apache.spark.sql.execution.{package}.ProcessingTimeExecutor"
        log.core.config.Configurator.setLevel(executor, log.Level.ERROR)


class BorrowedSession:
    """Any resource with a ``spark_session``, such as dagster-pyspark's ``PySparkResource``, in place of ours.

    The session stays open: who opened it stops it. Its settings are the owner's; a stream needs
    ``spark.sql.session.timeZone=UTC``, ``spark.speculation=false``, Spark's Kafka connector and the sink's jar, which
    :func:`exactly_once.jar` names.
    """

    def __init__(self, resource: Any):
        self._resource = resource

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Yield the session with ``format("kafka_exactly_once")`` registered."""
        session = self._resource.spark_session
        exactly_once.register(session)
        yield session

    kill = staticmethod(SparkSessionResource.kill)


def driver_pid(session: SparkSession) -> int:
    """Return the process id of the session's JVM, on the JVM's own host; only the session's thread may ask."""
    jvm: Any = session.sparkContext._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


def opener(resource: Any) -> SparkSessionResource | BorrowedSession:
    """Return what opens a session: ``resource`` itself, or an adapter around its ``spark_session``."""
    return resource if hasattr(resource, "session") else BorrowedSession(resource)
