"""The environment of a command: the project's one lock, a broker, a Dagster instance, and their folders."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dagster_exactly_once.instance import settings
from exactly_once.errors import ExactlyOnceError
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from exactly_once_local.run_folder import run_folder

PROJECT = Path(__file__).resolve().parents[2]

#: The file that locks a folder for the one command that works in it.
LOCK = "command.lock"


class Busy(ExactlyOnceError):
    """Another command works in this project folder."""

    code = "EO-BUSY"
    default_safe = "Nothing was started"


@dataclass(frozen=True)
class Environment:
    """The places of the environment. ``os.environ`` already has the variables for child processes.

    Attributes
    ----------
    embedded : bool
        Whether this command started the brokers.
    """

    folder: Path
    bootstrap_servers: str
    embedded: bool

    @property
    def logs(self) -> Path:
        """The folder of log files."""
        return self.folder / "logs"

    @property
    def workspace(self) -> Path:
        """Dagster's workspace file."""
        return PROJECT / "workspace.yaml"


@contextmanager
def local_environment(fresh: str = "") -> Iterator[Environment]:
    """Provide the environment of one command, for the length of the block.

    With ``KAFKA_BOOTSTRAP_SERVERS`` set, uses those brokers; otherwise starts an embedded one and stops it again. Its
    data stays for the next command.

    Parameters
    ----------
    fresh : str
        Use this folder below the usual one instead, and empty it first.

    Raises
    ------
    Busy
        Another command runs in the same folder.
    BrokerFailed
        The embedded broker did not start.
    """
    folder = run_folder() / fresh
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(
                f"another command (make run, make cluster or make ui) is running in {folder}",
                "Stop that command with Ctrl-C first",
            ) from None
        if fresh:
            _empty(folder)
        for name in ("logs", "tmp", "dagster_home"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "dagster_home" / "dagster.yaml").write_text(settings(), encoding="utf-8")
        os.environ |= {
            "DAGSTER_HOME": str(folder / "dagster_home"),
            "EXACTLY_ONCE_RUN_DIR": str(folder),
            "TMPDIR": str(folder / "tmp"),
            "PYTHONUNBUFFERED": "1",
        }
        servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "")
        if servers:
            yield Environment(folder, servers, embedded=False)
            return
        with EmbeddedBroker(folder / "broker") as broker:
            os.environ["KAFKA_BOOTSTRAP_SERVERS"] = broker.bootstrap_servers
            try:
                yield Environment(folder, broker.bootstrap_servers, embedded=True)
            finally:
                del os.environ["KAFKA_BOOTSTRAP_SERVERS"]


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()
