"""A place where Dagster works: a broker, a run folder and an instance of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from exactly_once.kafka.connection import Connection
from testkit.processes import kill_session
from testkit.stream import ROOT


class Site:
    """A broker, a run folder and an instance; ``env`` is for the processes that work there."""

    def __init__(self, folder: Path, bootstrap_servers: str):
        self.folder = folder
        self.bootstrap_servers = bootstrap_servers
        self.connection = Connection(bootstrap_servers)
        self.kafka = KafkaTransactionalProducerFactory(bootstrap_servers=bootstrap_servers)
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

    def send(self, topic: str, *values: str | bytes) -> None:
        """Send records in one transaction, of three customers in turn."""
        with self.kafka.producer("shop") as producer, producer.transaction():
            for n, value in enumerate(values):
                value = value.encode() if isinstance(value, str) else value
                producer.send(topic, value, f"customer-{n % 3}".encode())

    def start(
        self,
        job: str,
        config: dict[str, Any] | None = None,
        tags: dict[str, str] | None = None,
        log: Path | None = None,
        **env: str,
    ) -> subprocess.Popen[bytes]:
        """Start a run of ``job`` in a process of its own; its output goes to ``<folder>/<job>.log``."""
        return self.launch("platform_assets.launch", *_options(job, config, tags), log=log or self.log(job), **env)

    def launch(self, module: str, *arguments: str, log: Path, **env: str) -> subprocess.Popen[bytes]:
        """Start a module in a process of its own, whose output goes to ``log``.

        Its standard input stays open: when it closes, a run of ``platform_assets.launch`` is interrupted.
        """
        with log.open("w") as out:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env=self.env | env,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def finished(
        self, module: str, *arguments: str, log: Path | None = None, timeout_s: float = 300, **env: str
    ) -> tuple[bool, str]:
        """Run a module to its end, and leave none of its processes; returns whether it succeeded, and its output."""
        log = log or self.log(module)
        process = self.launch(module, *arguments, log=log, **env)
        try:
            code = process.wait(timeout_s)
        finally:
            kill_session(process.pid)
        return code == 0, log.read_text()

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
        succeeded, said = self.finished(
            "platform_assets.launch", *_options(job, config, tags), log=self.log(job), timeout_s=timeout_s
        )
        assert succeeded, said[-5000:]
        return said


def _options(job: str, config: dict[str, Any] | None, tags: dict[str, str] | None) -> list[str]:
    return [job, "--config", json.dumps(config or {}), "--tags", json.dumps(tags or {})]
