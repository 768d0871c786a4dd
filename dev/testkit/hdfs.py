"""A real HDFS on this machine: a name node and a data node, processes that can be killed, paused and started again.

Their classes are in one jar of Maven Central (56 MB), which is made to run beside the jars of PySpark's own Hadoop.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pyspark

from dagster_exactly_once.resources.spark import FILE_MANAGER
from dagster_exactly_once.streaming.query import SAFE_FILE_MANAGER
from exactly_once.checkpoint import file_system
from exactly_once.sparkenv.jars import cache_folder, resolve_other
from exactly_once.sparkenv.java import find_java
from exactly_once_local.ports import free_port
from testkit import processes
from testkit.processes import until

HADOOP = "3.5.0"
_JAR = f"hdfs/hadoop-client-minicluster-{HADOOP}.jar"
_SUMS = {_JAR: "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c"}

#: Of PySpark's jars, what Hadoop's servers need: its client, its shaded libraries, and logging.
_BESIDE = ("hadoop-client-*.jar", "slf4j-api-*.jar", "log4j-*.jar", "jcl-over-slf4j-*.jar")

NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"

#: From the start of a process to its answer, on a busy machine.
START_S = 60.0


def classpath() -> str:
    """Return the class path of Hadoop's servers, and of libhdfs. Downloads the jar the first time."""
    folder = cache_folder() / "jars" / f"hdfs-{HADOOP}"
    resolve_other(Path(__file__).with_name("ivy-hdfs.xml"), _SUMS, folder)
    jars = Path(pyspark.__file__).parent / "jars"
    beside = [jar for pattern in _BESIDE for jar in sorted(jars.glob(pattern))]
    return os.pathsep.join(str(jar) for jar in [folder / _JAR, *beside])


class Hdfs:
    """A name node and a data node; a context manager.

    Parameters
    ----------
    folder : Path
        For their settings, data and logs.

    Attributes
    ----------
    uri : str
        ``hdfs://127.0.0.1:<port>``
    conf : dict
        Settings of a Spark session, in place of those for a local disk.
    """

    #: One data node keeps one copy.
    conf: Mapping[str, str] = {"spark.hadoop.dfs.replication": "1", FILE_MANAGER: SAFE_FILE_MANAGER}

    def __init__(self, folder: Path):
        self.folder, self.uri = folder, f"hdfs://127.0.0.1:{free_port()}"
        # ports that stay: a data node that comes back is where the name node and its clients know it
        listening = ("dfs.datanode.address", "dfs.datanode.http.address", "dfs.datanode.ipc.address")
        self._ports = {name: f"127.0.0.1:{free_port()}" for name in (*listening, "dfs.namenode.http-address")}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._classpath = classpath()

    def __enter__(self) -> Hdfs:
        (self.folder / "conf").mkdir(parents=True)
        (self.folder / "conf" / "core-site.xml").write_text(_xml({"fs.defaultFS": self.uri}))
        (self.folder / "conf" / "hdfs-site.xml").write_text(_xml(self._settings()))
        (self.folder / "conf" / "log4j2.properties").write_text(_LOGGING)
        subprocess.run([*self._java(NAME_NODE), "-format"], check=True, capture_output=True, timeout=START_S)
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self._running):
            self.kill(name)

    def start(self, *names: str) -> None:
        """Start these servers, by default both, and wait until a client can read and write."""
        for name in names or (NAME_NODE, DATA_NODE):
            with self._log(name).open("ab") as log:
                self._running[name] = subprocess.Popen(self._java(name), stdout=log, stderr=log, start_new_session=True)
        until("HDFS", self._serves, START_S, 0.5)

    def kill(self, name: str) -> None:
        """Kill one server with ``kill -9``."""
        process = self._running.pop(name)
        processes.kill_session(process.pid)
        process.wait()

    def pause(self, name: str) -> None:
        """SIGSTOP of one server."""
        processes.stop_session(self._running[name].pid)

    def resume(self, name: str) -> None:
        """SIGCONT of one server."""
        processes.continue_session(self._running[name].pid)

    def said(self, name: str) -> str:
        """Return the end of a server's log."""
        return self._log(name).read_text(errors="replace")[-3000:]

    def _serves(self) -> bool:
        for name, process in self._running.items():
            assert process.poll() is None, self.said(name)
        host, _, port = self._ports["dfs.datanode.address"].rpartition(":")
        try:
            socket.create_connection((host, int(port)), 1).close()
            files, root = file_system(f"{self.uri}/probe")
            files.open_output_stream(root).close()  # empty: to write a block, a client would try for half a minute
        except (OSError, RuntimeError):  # nobody there, or safe mode
            return False
        return True

    def _java(self, main: str) -> list[str]:
        java = [find_java().executable, "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
        return [*java, "-cp", f"{self.folder / 'conf'}{os.pathsep}{self._classpath}", main]

    def _log(self, name: str) -> Path:
        return self.folder / f"{name.rpartition('.')[2]}.log"

    def _settings(self) -> dict[str, str]:
        return {
            **self._ports,
            "dfs.namenode.name.dir": (self.folder / "name").as_uri(),
            "dfs.datanode.data.dir": (self.folder / "data").as_uri(),
            "dfs.replication": "1",
            "dfs.heartbeat.interval": "1s",
            "dfs.namenode.safemode.min.datanodes": "1",  # it ends when the data node is there
            "dfs.namenode.safemode.extension": "0",  # by default it stays for 30 s after all blocks are there
        }


_LOGGING = """rootLogger.level = warn
rootLogger.appenderRef.all.ref = all
appender.all.type = Console
appender.all.name = all
appender.all.target = SYSTEM_ERR
appender.all.layout.type = PatternLayout
appender.all.layout.pattern = %d %p %c{1}: %m%n
"""


def _xml(settings: Mapping[str, str]) -> str:
    lines = [f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()]
    return "\n".join(["<configuration>", *lines, "</configuration>", ""])
