"""An archive of the classes that a JVM of Spark or of Kafka loads, made once by a trial: it saves half the processor
time of a JVM's start.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from exactly_once.sparkenv.jars import Progress, cache_folder, locked
from exactly_once.sparkenv.java import find_java

#: Time for a trial's JVM to end after its steps: it writes some 170 MB, in a minute or so on a busy machine.
TRIAL_S = 300.0

#: A function of a folder and a JVM's options, which make the archive when the JVM ends: starts it and awaits its end.
Trial = Callable[[Path, str], None]


class ClassArchive:
    """The archive of one kind of JVM, for this Java and this PySpark; see :meth:`options`.

    Parameters
    ----------
    name : str
        The kind.
    jars : object
        Others than PySpark's that the JVM loads.
    """

    def __init__(self, name: str, jars: object = ()):
        java = Path(find_java().executable).resolve()
        what = (java, java.stat().st_mtime_ns, version("pyspark"), jars)
        digest = hashlib.sha256(repr(what).encode()).hexdigest()[:12]
        self._file = cache_folder() / f"{name}-{digest}.jsa"

    @property
    def options(self) -> str:
        """The options with which a JVM uses it; one that cannot is slower, nothing else. "" when there is none."""
        return " ".join(self.arguments)

    @property
    def arguments(self) -> list[str]:
        """The same, one by one."""
        return [f"-XX:SharedArchiveFile={self._file}", "-Xshare:auto"] if self.made else []

    @property
    def made(self) -> bool:
        """True when it is there."""
        return self._file.is_file()

    def make(self, trial: Trial, say: Progress) -> None:
        """Make it by ``trial``, unless it is there; a process that makes it at this moment is awaited."""
        with locked(self._file.with_suffix(".lock"), say, "makes an archive of classes"):
            if self.made:
                return
            say("Once: a trial run, after which each start takes half the time")
            with tempfile.TemporaryDirectory(prefix="trial-", dir=cache_folder()) as folder:
                made = Path(folder) / "classes.jsa"
                trial(Path(folder), f"-XX:ArchiveClassesAtExit={made}")
                if made.is_file():  # a JVM without the feature is slower, nothing else
                    made.rename(self._file)
