"""Hours of a stream whose query waits now and then: each is closed once, none is forgotten, on each Spark."""

import json
import signal
import subprocess
import sys
from collections import Counter

import dagster as dg
import pytest

from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from testkit.hours import COUNTED, SOON, VISITS, visits
from testkit.processes import kill_session, until
from testkit.stream import ROOT

#: From the launch of a run to what a test waits for, on a busy machine of two cores.
PATIENCE_S = 120


@pytest.fixture
def running(site):
    """A run of the stream over a topic that is still empty."""
    KafkaTransactionalProducerFactory(bootstrap_servers=site.bootstrap_servers).create_topics({VISITS: 1})
    config = {"ops": {visits.spec.op: {"config": {"trigger_interval_s": 0.1, "report_interval_s": 1}}}}
    command = [sys.executable, "-m", "testkit.hours", visits.spec.job, json.dumps(config)]
    log = site.folder / "hours.log"
    with log.open("w") as out:
        env = {**site.env, "EXACTLY_ONCE_SPARK_CONF": SOON}
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=out, start_new_session=True)
    yield process
    kill_session(process.pid)


def send(site, *times):
    kafka = KafkaTransactionalProducerFactory(bootstrap_servers=site.bootstrap_servers)
    with kafka.producer("visitors") as producer, producer.transaction():
        for time in times:
            producer.send(VISITS, f"2026-01-31 {time}:00".encode(), b"somebody")


def waits_for(site, running):
    """The newest batch that the query has waited for; -1 before it waited."""
    assert running.poll() is None, (site.folder / "hours.log").read_text()[-5000:]
    return max((int(path.name.rpartition("-")[2]) for path in site.folder.glob("waits-for-*")), default=-1)


def closed(site):
    with dg.DagsterInstance.from_config(str(site.home)) as instance:
        asked = dg.AssetRecordsFilter(asset_key=dg.AssetKey(visits.completed))
        return Counter(r.partition_key[-5:] for r in instance.fetch_materializations(asked, limit=500).records)


def reported(site, name):
    """The values of a number on the output, of all reports."""
    with dg.DagsterInstance.from_config(str(site.home)) as instance:
        records = instance.fetch_observations(dg.AssetKey(COUNTED), limit=500).records
        return [m[name].value for m in (r.asset_observation.metadata for r in records) if name in m]


def test_a_query_that_waits_at_its_start_and_between_batches_closes_each_hour(site, running):
    """Its hours were lost for good: it reports the batch that comes next before there is one, and the real one came
    under an id that was known.
    """
    waited = -1
    for times in ([f"{hour:02}:30" for hour in range(10)], ["11:30"], ["11:40"]):
        until("the query to wait", lambda behind=waited: waits_for(site, running) > behind, PATIENCE_S)
        waited = waits_for(site, running)
        send(site, *times)
    until("the hours", lambda: closed(site)["10:00"] and sum(reported(site, "read")) == 12, PATIENCE_S)
    running.send_signal(signal.SIGINT)
    running.wait(PATIENCE_S)
    assert closed(site) == {f"{hour:02}:00": 1 for hour in range(11)}
    assert (sum(reported(site, "read")), sum(reported(site, "records_committed"))) == (12, 12)
    # each batch with its durations, not with those of a trigger that found nothing
    assert len(reported(site, "sink_duration_ms")) == len(reported(site, "batch_duration_ms"))
