"""The driver process as the duel handles it: started, killed with kill -9, started again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from exactly_once.sparkenv.java import find_java
from exactly_once_local.cluster.guard import kill_session, of_session
from exactly_once_local.duel.moment import last_batch
from exactly_once_local.duel.sinks import FINISH, SINKS, DuelFailed, Sink
from exactly_once_local.run_folder import checkout

#: Last lines that are shown of the log of a driver that failed.
TAIL_LINES = 15


class Driver:
    """A driver (see :mod:`exactly_once_local.duel.driver`): one process at a time, its folder, its log.

    Parameters
    ----------
    batch : int
        Rows of a micro-batch, at most.
    java : str
        Options for its JVM.

    Attributes
    ----------
    kills : int
        How often it was killed.
    """

    def __init__(self, brokers: str, folder: Path, batch: int, java: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.kills = 0
        self._folder = folder
        self._command = [sys.executable, "-m", "exactly_once_local.duel.driver", brokers, str(folder), str(batch), java]
        self._log = (folder / "driver.log").open("wb")
        self._process: subprocess.Popen[bytes] | None = None
        self._committed_at_start: dict[str, int] = {}

    def start(self) -> None:
        """Start the process, in a session of its own; it ends when we do."""
        self._committed_at_start = {sink.name: last_batch(self._folder, sink, "commits") for sink in SINKS}
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            env=environment(),
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kill the whole driver with ``kill -9``. It does nothing when the driver has ended by itself."""
        if not self.done:
            self.close()
            self.kills += 1

    def finish(self) -> None:
        """Tell it to write what is in the input now, and to end."""
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself, which `done` tells
            self._process.stdin.write(FINISH + b"\n")
            self._process.stdin.flush()

    @property
    def done(self) -> bool:
        """True when the driver has written everything and ended.

        Raises
        ------
        DuelFailed
            It ended, and nobody had killed it.
        """
        code = self._process.poll() if self._process else None
        if code:
            raise DuelFailed(f"The driver ended by itself with {code}:\n{self.log_tail()}")
        return code == 0

    @property
    def gone(self) -> bool:
        """True when none of its processes is left; the JVM outlives its Python by a moment."""
        return self._process is None or not of_session(self._process.pid)

    @property
    def at_work(self) -> bool:
        """True when both queries work (see :meth:`works`)."""
        return all(self.works(sink) for sink in SINKS)

    def works(self, sink: Sink) -> bool:
        """Return whether Spark has marked a batch of this query as committed since the last start, or all is done."""
        return last_batch(self._folder, sink, "commits") > self._committed_at_start.get(sink.name, -1) or self.done

    def log_tail(self) -> str:
        """Return the last lines of its log."""
        return "\n".join(Path(self._log.name).read_text(errors="replace").splitlines()[-TAIL_LINES:])

    def close(self) -> None:
        """Leave no process behind."""
        if self._process:
            kill_session(self._process.pid)
            self._process.wait()


def environment() -> dict[str, str]:
    """Return the environment of the driver."""
    java, project = find_java(), checkout()
    # a checkout's own code first: another one may be installed
    own = [str(project), str(project / "dev")] if project else []
    path = os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        # not the options of another JVM: one that is told to use an archive of classes cannot make one, and ends
        **{name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"},
        **({"JAVA_HOME": java.home} if java.home else {}),
        **({"PYTHONPATH": path} if path else {}),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
