"""One node of the embedded broker: its folder, its configuration, its JVM."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from exactly_once.sparkenv.jars import broker_classpath, resolve
from exactly_once.sparkenv.java import find_java
from exactly_once_local.class_archive import ClassArchive
from exactly_once_local.cluster.guard import end_all, guarded

_LOG4J = """\
shutdownHook = disable
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {folder}/server.log
appender.file.filePattern = {folder}/server.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %-5p [%t] %c{{1}}: %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 20MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""


class Node:
    """A broker and controller in one JVM, in a process group of its own.

    Its folder holds ``server.properties``, ``server.log`` (rolled at 20 MB, three kept), ``console.log`` (what the JVM
    itself says) and ``data``.

    Parameters
    ----------
    number : int
        Its node id.
    folder : Path
        Made when it does not exist.
    classpath : str, optional
        Of another release of Kafka. Default: the pinned one.
    """

    def __init__(self, number: int, folder: Path, classpath: str | None = None):
        self.number = number
        self.folder = folder
        self._classpath = classpath
        self.log = folder / "server.log"
        self.console = folder / "console.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the running JVM, or None."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def ended(self) -> bool:
        """True if it was launched and is gone although this process did not end it."""
        return self._process is not None and self._process.poll() is not None

    def configure(self, settings: Mapping[str, str]) -> None:
        """Write its configuration."""
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        rendered = {**settings, "node.id": str(self.number), "log.dirs": str(self.folder / "data")}
        (self.folder / "server.properties").write_text("".join(f"{k}={v}\n" for k, v in rendered.items()))
        (self.folder / "log4j2.properties").write_text(_LOG4J.format(folder=self.folder))

    def start_format(self, cluster_id: str) -> subprocess.Popen[bytes] | None:
        """Start to format its storage; None when it has one. Call :meth:`formatted` when the process has succeeded."""
        if (self.folder / "formatted").exists():
            return None
        shutil.rmtree(self.folder / "data", ignore_errors=True)  # half-made by a start that was killed
        command = self._java("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        command += ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self.folder / "server.properties")]
        with self.console.open("w") as console:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, cwd=self.folder
            )

    def formatted(self) -> None:
        """Remember that the storage is complete."""
        (self.folder / "formatted").touch()

    def launch(self, inherited: int, options: str = "") -> None:
        """Start the JVM.

        Parameters
        ----------
        inherited : int
            A file descriptor that it holds as long as it lives (the lock of the folder).
        options : str
            More options of the JVM.
        """
        command = self._java("-Xms128m", "-Xmx512m", *options.split())
        command += ["kafka.Kafka", str(self.folder / "server.properties")]
        with self.console.open("a") as console:
            self._process = guarded(command, console, self.folder, inherited=[inherited])

    def log_tail(self, lines: int) -> str:
        """Return the end of its logs, each under its path, after the errors since the last start."""
        shown = [(path, _last_lines(path, lines)) for path in (self.log, self.console)]
        return "\n".join(f"{path}:\n{text}" for path, text in shown if text)

    def _java(self, *options: str) -> list[str]:
        return [
            find_java().executable,
            *options,
            *class_archive().arguments,
            *("-Xlog:disable", "-Xlog:all=error:stderr"),  # no warnings about classes that cannot be in the archive
            "-XX:+ExitOnOutOfMemoryError",
            "-XX:-UsePerfData",  # its files are in the system's temporary folder
            f"-Djava.io.tmpdir={self.folder / 'tmp'}",
            f"-XX:ErrorFile={self.folder / 'jvm-crash.log'}",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            *("-cp", self._classpath or broker_classpath()),
        ]


def end_nodes(nodes: Iterable[Node], *, graceful_s: float) -> None:
    """End the running nodes, together: gracefully, and after ``graceful_s`` seconds (0: at once) by kill -9."""
    ending = [(node, node._process) for node in nodes if node._process is not None]
    try:
        end_all([process for _, process in ending], graceful_s=graceful_s)
    finally:
        for node, _ in ending:
            node._process = None


def class_archive() -> ClassArchive:
    """Return the archive of Kafka's classes: loading some 8,000 of them is more than half of a start."""
    return ClassArchive("kafka-classes", resolve().name)


def _last_lines(path: Path, lines: int) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 256 * 1024))
        text = stream.read().decode(errors="replace").splitlines()
    starts = [n for n, line in enumerate(text) if "Log4jControllerRegistration" in line]  # the first line of each start
    earlier = text[starts[-1] if starts else 0 : -lines]
    # The orderly end after an error fills more than the tail; an exception stands in the lines below its error.
    errors = [n for n, line in enumerate(earlier) if " ERROR " in line or " FATAL " in line]
    picked = [line for n in errors[:3] for line in [*earlier[n : n + 4], "..."]]
    return "\n".join(picked + text[-lines:])
