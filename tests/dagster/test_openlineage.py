"""What OpenLineage hears of a stream under Dagster, by ``dagster-openlineage``, which ``make test-lineage`` brings."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from importlib.util import find_spec

import dagster as dg
import pytest

from exactly_once_local.ports import free_port
from testkit.processes import kill_session, until
from testkit.shop import ORDERS, PRICED, price_orders

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("dagster_openlineage") is None, reason="make test-lineage brings dagster-openlineage"),
]

#: Its sensor reads the events of all runs at once, which Dagster's default, a file for each run, cannot tell.
ONE_DATABASE = """
event_log_storage:
  module: dagster._core.storage.event_log
  class: ConsolidatedSqliteEventLogStorage
  config: {base_dir: %s}
"""


@pytest.fixture
def events(site, monkeypatch, tmp_path, request):
    """A run in this mode over one order, and the events since its start that the sensor sends."""
    home, began = site.home / "dagster.yaml", datetime.now(UTC)
    if "Consolidated" not in home.read_text():
        home.write_text(home.read_text() + ONE_DATABASE % (site.home / "events"))
    site.kafka.create_topics({ORDERS: 1})
    site.send(ORDERS, '{"amount": 100}')
    config = {"ops": {price_orders.spec.op: {"config": {"mode": request.param}}}}
    log = site.folder / "stream.log"
    run = site.launch("testkit.shop", price_orders.spec.job, json.dumps(config), log=log)
    try:
        if request.param == "caught_up":
            assert run.wait(200) == 0, log.read_text()[-5000:]
        else:
            until("a report", lambda: reported(site, began) or run.poll() is not None, 200, every_s=0.5)
            assert run.poll() is None, log.read_text()[-5000:]
    finally:
        kill_session(run.pid)

    sent = tmp_path / "sent.jsonl"
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(sent))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    sensor = fresh_sensor(monkeypatch)
    with dg.DagsterInstance.from_config(str(site.home)) as instance:
        sensor.evaluate_tick(dg.build_sensor_context(instance))
    found = [json.loads(line) for line in sent.read_text().splitlines()]
    return [event for event in found if datetime.fromisoformat(event["eventTime"]) >= began]


def fresh_sensor(monkeypatch):
    """The sensor of a new process: the package looks at the environment when it is imported."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("dagster_openlineage", "openlineage")]:
        monkeypatch.delitem(sys.modules, name)
    from dagster_openlineage import openlineage_sensor

    return openlineage_sensor(include_asset_events=True, record_filter_limit=10_000)


def reported(site, began):
    """Return whether the output was observed since then."""
    with dg.DagsterInstance.from_config(str(site.home)) as instance:
        found = instance.fetch_observations(dg.AssetKey(PRICED), limit=1).records
        return bool(found) and found[0].timestamp >= began.timestamp()


def check_columns(facets):
    """The columns of the output, and what they are made from."""
    assert [field["name"] for field in facets["schema"]["fields"]] == ["to_pay"]
    [come_from] = facets["columnLineage"]["fields"]["to_pay"]["inputFields"]
    assert (come_from["name"], come_from["field"]) == (ORDERS, "amount")


@pytest.mark.parametrize("events", ["caught_up"], indirect=True)
def test_a_materialization_of_an_output_is_sent_with_its_columns_and_their_lineage(events):
    """Guards against a release, of Dagster or ours, whose materializations have nothing that lineage tools read."""
    written = [output for event in events for output in event.get("outputs", ()) if output["name"] == PRICED]
    check_columns(next(output["facets"] for output in reversed(written) if "columnLineage" in output["facets"]))


@pytest.mark.parametrize("events", ["until_stopped"], indirect=True)
def test_a_run_that_does_not_end_is_heard_of_with_its_columns_and_their_lineage(events):
    """Guards against streams of which lineage tools know nothing, since they never materialize an output."""
    observed = [event["dataset"] for event in events if event.get("dataset", {}).get("name") == PRICED]
    check_columns(next(dataset["facets"] for dataset in observed if "columnLineage" in dataset["facets"]))


def test_events_of_a_time_when_the_backend_is_away_are_sent_when_the_cursor_is_reset(monkeypatch, tmp_path):
    """operate.md says so: the tick is green and the cursor goes on, so nothing else would ever send them. Guards
    against a release that keeps them, of which the page need not warn.
    """

    @dg.asset
    def paid():
        """Any asset: what is sent of it does not matter here."""

    (tmp_path / "dagster.yaml").write_text(ONE_DATABASE % (tmp_path / "events"))
    sent = tmp_path / "sent.jsonl"
    sent.touch()
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert dg.materialize([paid], instance=instance).success

        def tick(cursor):
            context = dg.build_sensor_context(instance, cursor=cursor)
            tick = fresh_sensor(monkeypatch).evaluate_tick(context)
            return tick.skip_message, context.cursor

        monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{free_port()}")
        said, cursor = tick(None)
        assert said and cursor  # it is no failure, and it has passed the run

        monkeypatch.delenv("OPENLINEAGE_URL")
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(sent))
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
        assert (tick(cursor)[1], sent.read_text()) == (cursor, "")
        tick(None)
        of_paid = [line for line in sent.read_text().splitlines() if "paid" in line]
        assert of_paid
        tick(None)
        assert len([line for line in sent.read_text().splitlines() if "paid" in line]) > len(of_paid)
