"""What OpenLineage hears of a stream under Dagster, by ``dagster-openlineage``, which ``make test-lineage`` brings."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import dagster as dg
import pytest

from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from testkit.processes import kill_session
from testkit.shop import ORDERS, PRICED, price_orders
from testkit.stream import ROOT

#: Its sensor reads the events of all runs at once, which Dagster's default, a file for each run, cannot tell.
ONE_DATABASE = """
event_log_storage:
  module: dagster._core.storage.event_log
  class: ConsolidatedSqliteEventLogStorage
  config: {base_dir: %s}
"""


@pytest.fixture
def events(site, monkeypatch, tmp_path):
    """A stream that has caught up on one order, and the events that the sensor sends of it."""
    home = site.home / "dagster.yaml"
    home.write_text(home.read_text() + ONE_DATABASE % (site.home / "events"))
    kafka = KafkaTransactionalProducerFactory(bootstrap_servers=site.bootstrap_servers)
    kafka.create_topics({ORDERS: 1})
    with kafka.producer("shop") as producer, producer.transaction():
        producer.send(ORDERS, b'{"amount": 100}', b"customer-1")
    config = {"ops": {price_orders.spec.op: {"config": {"mode": "caught_up"}}}}
    command = [sys.executable, "-m", "testkit.shop", price_orders.spec.job, json.dumps(config)]
    log = site.folder / "stream.log"
    with log.open("w") as out:
        run = subprocess.Popen(command, cwd=ROOT, env=site.env, stdout=out, stderr=out, start_new_session=True)
    try:
        assert run.wait(200) == 0, log.read_text()[-5000:]
    finally:
        kill_session(run.pid)

    sent = tmp_path / "sent.jsonl"
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(sent))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    from dagster_openlineage import openlineage_sensor  # it looks at the environment when it is imported

    sensor = openlineage_sensor(include_asset_events=True, record_filter_limit=10_000)
    with dg.DagsterInstance.from_config(str(site.home)) as instance:
        sensor.evaluate_tick(dg.build_sensor_context(instance))
    return [json.loads(line) for line in sent.read_text().splitlines()]


@pytest.mark.long
@pytest.mark.skipif(find_spec("dagster_openlineage") is None, reason="make test-lineage brings dagster-openlineage")
def test_a_materialization_of_an_output_is_sent_with_its_columns_and_their_lineage(events):
    """Guards against a release, of Dagster or ours, whose materializations have nothing that lineage tools read."""
    written = [output for event in events for output in event.get("outputs", ()) if output["name"] == PRICED]
    facets = next(output["facets"] for output in reversed(written) if "columnLineage" in output["facets"])
    assert [field["name"] for field in facets["schema"]["fields"]] == ["to_pay"]
    [come_from] = facets["columnLineage"]["fields"]["to_pay"]["inputFields"]
    assert (come_from["name"], come_from["field"]) == (ORDERS, "amount")
