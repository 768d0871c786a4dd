"""Real Dagster on a real broker: a cluster and an instance for each module, because the jobs' topics have fixed names."""

import os
import shutil
from pathlib import Path

import pytest

from exactly_once.kafka.connection import Connection
from tests.support import broker as brokers

ROOT = Path(__file__).resolve().parents[2]


class Site:
    """A broker, a run folder and an instance; ``env`` is for the processes that work there."""

    def __init__(self, folder: Path, bootstrap_servers: str):
        self.folder = folder
        self.bootstrap_servers = bootstrap_servers
        self.connection = Connection(bootstrap_servers)
        self.home = folder / "dagster_home"
        self.home.mkdir()
        shutil.copy(ROOT / "dagster.yaml", self.home)
        self.env = {
            **os.environ,
            "KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers,
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "EXACTLY_ONCE_RUN_DIR": str(folder),
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with brokers.test_broker(tmp_path_factory.mktemp("cluster")) as broker:
        yield Site(tmp_path_factory.mktemp("site"), broker.bootstrap_servers)
