"""A place where Dagster works: a broker, a run folder and an instance of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from exactly_once.kafka.connection import Connection
from testkit.processes import kill_session
from testkit.stream import ROOT


class Site:
    """A broker, a run folder and an instance; ``env`` is for the processes that work there."""

    def __init__(self, folder: Path, bootstrap_servers: str):
        self.folder = folder
        self.bootstrap_servers = bootstrap_servers
        self.connection = Connection(bootstrap_servers)
        self.home = folder / "dagster_home"
        self.home.mkdir()
        shutil.copy(ROOT / "dagster_exactly_once" / "dagster.yaml", self.home)
        self.env = {
            **os.environ,
            "KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers,
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "EXACTLY_ONCE_RUN_DIR": str(folder),
            "EXACTLY_ONCE_SENSORS": "stopped",  # a test that kills a run tells what happens next by itself
        }

    def start(
        self,
        job: str,
        config: dict[str, Any] | None = None,
        tags: dict[str, str] | None = None,
        log: Path | None = None,
        **env: str,
    ) -> subprocess.Popen[bytes]:
        """Start a run of ``job`` in a process of its own; its output goes to ``<folder>/<job>.log``.

        Its standard input stays open: when it closes, the run is interrupted.
        """
        command = [sys.executable, "-m", "platform_assets.launch", job, "--config", json.dumps(config or {})]
        command += ["--tags", json.dumps(tags or {})]
        with (log or self.log(job)).open("w") as out:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.env | env,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def log(self, job: str) -> Path:
        """Return where the output of a job's run goes."""
        return self.folder / f"{job}.log"

    def run(
        self,
        job: str,
        config: dict[str, Any] | None = None,
        tags: dict[str, str] | None = None,
        timeout_s: float = 180,
    ) -> str:
        """Run ``job`` to its success; returns its output."""
        process = self.start(job, config, tags)
        try:
            code = process.wait(timeout_s)
        finally:
            kill_session(process.pid)
        said = self.log(job).read_text()
        assert code == 0, said[-5000:]
        return said
