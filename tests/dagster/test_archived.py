"""A declared stream with an output beside Kafka: both hold every row once, also when the driver dies before both do."""

from __future__ import annotations

import dagster as dg
import pytest

from dagster_exactly_once.declare.config import ANOTHER_SINK
from dagster_exactly_once.names import RECOVERY_JOB, RECOVERY_OP
from testkit import oracle
from testkit.archived import OUTPUT, SOURCE, archived, definitions
from testkit.processes import kill_session, until

pytestmark = pytest.mark.long  # starts of Spark

#: A start of Spark and two batches, on a busy machine of two cores.
PATIENCE_S = 150


def run_until(site, point, folder):
    """Run the stream in a process of its own, and kill it with kill -9 at a point."""
    (folder / point).write_text("hang")
    with site.launch("testkit.archived", log=folder / "log", EXACTLY_ONCE_FAILPOINTS=str(folder)) as process:
        try:
            until(f"the point {point}", lambda: (folder / f"{point}.reached").exists(), PATIENCE_S, every_s=0.1)
        finally:
            kill_session(process.pid)


def in_kafka(site):
    return sorted(m.value for m in oracle.read(site.connection, [OUTPUT]))


def in_files(site):
    """The rows of published files; readers skip what is staged."""
    return sorted(row["value"] for row in oracle.in_files(site.folder / "archive"))


def test_the_recovery_job_commits_the_batch_of_a_killed_driver_in_kafka_and_in_the_files(site, monkeypatch, tmp_path):
    """Guards against a recovery that knows Kafka alone: the files would miss a batch that readers of Kafka see, until
    the next start of the stream.
    """
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", site.bootstrap_servers)
    monkeypatch.setenv("EXACTLY_ONCE_RUN_DIR", str(site.folder))
    site.kafka.create_topics({SOURCE: 2})
    first, later = [f"a{n}" for n in range(40)], [f"b{n}" for n in range(40)]
    site.send(SOURCE, *first)
    run_until(site, "decided", tmp_path)
    assert in_files(site) == []

    recovery = definitions(site.folder).resolve_job_def(RECOVERY_JOB)
    where = {"stream": ANOTHER_SINK, "sink_id": archived.sink_id, "dry_run": False}
    config = {"ops": {RECOVERY_OP: {"config": where}}}
    assert recovery.execute_in_process(config, instance=dg.DagsterInstance.ephemeral()).success
    assert in_kafka(site) == in_files(site) == sorted(first)

    site.send(SOURCE, *later)
    succeeded, said = site.finished("testkit.archived", timeout_s=PATIENCE_S)
    assert succeeded, said[-5000:]
    assert in_kafka(site) == in_files(site) == sorted([*first, *later])
    oracle.assert_settled(site.connection, archived.sink_id, [OUTPUT])
