"""A real S3 server on this machine (moto), a process that can be paused. It keeps its objects in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from dagster_exactly_once.resources.spark import FILE_MANAGER
from dagster_exactly_once.streaming.query import SAFE_FILE_MANAGER
from exactly_once_local.ports import free_port
from testkit import processes
from testkit.processes import until
from testkit.stream import ROOT

#: Where `make s3` puts what it needs: ``python`` (the server's packages) and ``jars`` (hadoop-aws, Amazon's SDK).
FOLDER = Path(os.environ.get("TEST_S3") or ROOT / ".run" / "s3").absolute()

BUCKET = "checkpoints"

#: From the start of the process to its answer, on a busy machine.
START_S = 60.0


class S3Missing(Exception):
    """The server's packages, or the jars of its clients, are not there."""


class S3:
    """An S3 server with one bucket; a context manager. Meanwhile this process, and those that it starts, have the
    server's address and credentials in their environment, as users give them to Python's and Java's clients.

    Parameters
    ----------
    folder : Path
        For its log.

    Attributes
    ----------
    uri : str
        Of the bucket.
    """

    uri = f"s3a://{BUCKET}"

    def __init__(self, folder: Path):
        check()
        port = free_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        self._log = folder / "log"
        self._command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        self._before: dict[str, str | None] = {}

    @property
    def conf(self) -> dict[str, str]:
        """Settings of a Spark session, in place of those for a local disk and of those that bring the connector."""
        return {
            "spark.jars": ",".join(str(jar) for jar in sorted((FOLDER / "jars").glob("*.jar"))),
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
            FILE_MANAGER: SAFE_FILE_MANAGER,
        }

    def __enter__(self) -> S3:
        environment = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self._before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                self._command,
                env={**os.environ, "PYTHONPATH": str(FOLDER / "python")},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            until("the S3 server", self._answers, START_S)
            urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT"), timeout=10)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        processes.kill_session(self._server.pid)
        self._server.wait()
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    def pause(self) -> None:
        """SIGSTOP of the server."""
        processes.stop_session(self._server.pid)

    def resume(self) -> None:
        """SIGCONT of the server."""
        processes.continue_session(self._server.pid)

    def _answers(self) -> bool:
        assert self._server.poll() is None, self._log.read_text(errors="replace")[-2000:]
        try:
            urllib.request.urlopen(self.endpoint, timeout=5)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True


def check() -> None:
    """Make sure that the server and the jars are there.

    Raises
    ------
    S3Missing
    """
    if not (FOLDER / "python" / "moto").is_dir() or not list((FOLDER / "jars").glob("hadoop-aws-*.jar")):
        raise S3Missing(f"There is no S3 server in {FOLDER}: run make s3")
