"""The backfill beside a live stream that began in the middle of a day: every record once, whoever was killed when.

One story on one cluster, told in order; each test leaves the topics where the next one takes them up. The input is fed
in transactions, so it holds markers with today's time between events of 2013.
"""

import signal
import time
from itertools import islice, takewhile

import dagster as dg
import pytest
from confluent_kafka import Producer

from dagster_exactly_once.backfill.asset import backfill_share
from dagster_exactly_once.backfill.days import start_ms, write_id
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import CheckpointUnusable
from exactly_once.kafka.admin import Admin
from exactly_once.protocol.names import namespace
from exactly_once.txn.coordinators import describe, list_transactions
from exactly_once_local.duel.departures import events
from platform_assets.constants import EVENT_TIME_TOPIC, FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS
from platform_assets.flights.names import BACKFILL_JOB, BACKFILL_SINK_ID, FLIGHT_DELAYS_BY_DAY, SINK_ID, STREAM_JOB
from platform_assets.flights.origin import origin
from platform_assets.flights.streams import flight_delays
from platform_assets.report.reader import read_committed
from testkit import oracle
from testkit.flights import findings
from testkit.processes import kill_session, until
from testkit.webserver import Dagster

pytestmark = pytest.mark.long

#: The input: the events of five days, of which the stream writes those since noon of the fourth.
LAST_DAY = "2013-01-05"
STREAM_STARTS = "2013-01-04T12:00:00Z"


def days(first, last):
    """The tags of one run for a range of days."""
    return {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}


@pytest.fixture(scope="module")
def fed(site):
    """Feed the five days; returns their number of events."""
    factory = KafkaTransactionalProducerFactory(bootstrap_servers=site.bootstrap_servers)
    factory.create_topics({FLIGHTS: 4}, EVENT_TIME_TOPIC)
    wanted = list(takewhile(lambda e: e.timestamp_ms < start_ms("2013-01-06"), events()))
    source = iter(wanted)
    aborted = Producer({**site.connection.librdkafka(), "transactional.id": "aborted-feed"})
    aborted.init_transactions(30)
    with factory.producer("test-feed") as producer:
        while batch := list(islice(source, 600)):
            aborted.begin_transaction()
            for event in batch[:100]:
                aborted.produce(FLIGHTS, event.value, event.key, timestamp=event.timestamp_ms)
            aborted.flush(30)
            aborted.abort_transaction(30)
            with producer.transaction():
                for event in batch:
                    producer.send(FLIGHTS, event.value, event.key, timestamp_ms=event.timestamp_ms)
    return len(wanted)


@pytest.fixture(scope="module")
def instance(site):
    with dg.DagsterInstance.from_config(str(site.home)) as found:
        yield found


def outputs(site):
    """The source of every output record that a reader sees, in no order."""
    return sorted(origin(FLIGHT_DELAYS, r) for r in read_committed(site.connection, FLIGHT_DELAYS))


def day_of_each_input(site):
    """By source, the day of every committed record of the input."""
    found = {}
    for m in oracle.read(site.connection, [FLIGHTS]):
        found[m.partition, m.offset] = time.strftime("%Y-%m-%d", time.gmtime(m.timestamp_ms / 1000))
    return found


def backfilled(site):
    """The days that are decided, with their numbers of records."""
    return {d.write_id.rpartition("/")[2]: d.records for d in read_log(site.connection, BACKFILL_SINK_ID).decisions}


def trace(site, sink_id):
    """Everything that another driver could disturb: the commit log's end, and each transactional id with its epoch."""
    with Admin(site.connection) as admin:
        ids = [t.transactional_id for t in list_transactions(admin, namespace(sink_id), ())]
        epochs = {i: (d.producer_id, d.producer_epoch, d.state) for i, d in describe(admin, ids).items()}
    return read_log(site.connection, sink_id).end, epochs


def assert_every_record_once(site, fed):
    """Both outputs together hold every input of the package once, as the package says it must be."""
    oracle.assert_settled(site.connection, BACKFILL_SINK_ID, [FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED])
    found, faults, examples = findings(site.connection, fed)
    # the days of the backfill come after the stream's records, so order holds within each of them only
    faults.pop("out of order", None)
    assert faults == {}, examples
    assert found.out == fed


def test_a_backfill_before_the_streams_first_start_is_refused_and_writes_nothing(site, fed):
    """The stream might start at the earliest offset afterwards, and everything would be there twice."""
    process = site.start(BACKFILL_JOB, tags=days("2013-01-01", "2013-01-03"))
    assert process.wait(120) == 1
    said = site.log(BACKFILL_JOB).read_text()
    assert "EO-BACKFILL-EARLY: " in said and "not started yet" in said and "Nothing was written" in said
    assert read_log(site.connection, BACKFILL_SINK_ID).end == 0


def test_a_stream_without_a_checkpoint_begins_at_the_first_record_since_the_time_that_is_asked_for(site, fed):
    """Spark's own option begins at the first marker of a transaction, which has today's time: here, days too early."""
    config = {"mode": "caught_up", "start_from": STREAM_STARTS}
    said = site.run(STREAM_JOB, {"ops": {"stream_flight_delays": {"config": config}}})
    assert f"the stream begins at {STREAM_STARTS}" in said
    wanted = sum(1 for e in islice(events(), fed) if e.timestamp_ms >= start_ms("2013-01-04") + 12 * 3600 * 1000)
    assert len(outputs(site)) == wanted > 1_000


def test_a_start_time_has_no_effect_once_there_is_a_checkpoint(site):
    config = {"mode": "caught_up", "start_from": "2013-01-01"}
    before = outputs(site)
    said = site.run(STREAM_JOB, {"ops": {"stream_flight_delays": {"config": config}}})
    assert "start_from=2013-01-01 has no effect" in said
    assert outputs(site) == before


def test_three_days_that_are_killed_half_way_and_run_again_are_there_once(site, fed, instance, tmp_path):
    """Guards against a day that is written in part, or again: kill -9 in the middle of the second or third day."""
    live = trace(site, SINK_ID)
    streamed, day_of = set(outputs(site)), day_of_each_input(site)
    process = site.start(BACKFILL_JOB, tags=days("2013-01-01", "2013-01-03"), EXACTLY_ONCE_FAILPOINTS=str(tmp_path))
    try:
        until("the first day", lambda: backfilled(site) or process.poll() is not None, 120)
        draft = tmp_path / ".draft"
        draft.write_text("hang")
        draft.rename(tmp_path / "all-prepared")
        until("a prepared day", lambda: (tmp_path / "all-prepared.reached").exists() or process.poll() is not None, 60)
    finally:
        kill_session(process.pid)
    done = backfilled(site)
    assert 1 <= len(done) < 3, site.log(BACKFILL_JOB).read_text()[-3000:]
    visible = set(outputs(site)) - streamed
    assert {day_of[place] for place in visible} == set(done)  # whole days, and nothing of the one it died in
    assert len(visible) == sum(done.values())
    reported = instance.get_materialized_partitions(dg.AssetKey(FLIGHT_DELAYS_BY_DAY))
    assert reported <= set(done)

    said = site.run(BACKFILL_JOB, tags=days("2013-01-01", "2013-01-03"))

    assert f"{min(done)} was written before" in said
    written = outputs(site)
    assert len(written) == len(set(written)), "a record is there twice"
    assert set(written) - streamed == {place for place, day in day_of.items() if day <= "2013-01-03"} - streamed
    assert instance.get_materialized_partitions(dg.AssetKey(FLIGHT_DELAYS_BY_DAY)) == {
        "2013-01-01", "2013-01-02", "2013-01-03"
    }  # fmt: skip
    assert trace(site, SINK_ID) == live  # its commit log and every transactional id as they were


def test_a_backfill_that_is_terminated_in_the_middle_of_a_day_holds_no_reader_back(site, instance, tmp_path):
    """Its transactions would block readers of the live stream's output for a quarter of an hour."""
    before = outputs(site)
    (tmp_path / "some-sent").write_text("hang")
    process = site.start(BACKFILL_JOB, tags=days("2013-01-04", "2013-01-04"), EXACTLY_ONCE_FAILPOINTS=str(tmp_path))
    try:
        until(
            "a day half written", lambda: (tmp_path / "some-sent.reached").exists() or process.poll() is not None, 180
        )
        (run,) = instance.get_runs(limit=1)
        instance.report_run_canceling(run)  # as the UI's button does, before it interrupts the process
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        kill_session(process.pid)
    run = instance.get_run_by_id(run.run_id)
    assert run.status is dg.DagsterRunStatus.CANCELED, site.log(BACKFILL_JOB).read_text()[-3000:]
    oracle.assert_settled(site.connection, BACKFILL_SINK_ID, [FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED])
    assert outputs(site) == before


def test_two_backfills_of_the_same_days_at_once_write_each_record_once(site, fed, tmp_path):
    """Two processes beside any pool: the later claim fences the earlier one, and what is decided is written."""
    live = trace(site, SINK_ID)
    tags, logs = days("2013-01-03", LAST_DAY), [tmp_path / "one.log", tmp_path / "two.log"]
    both = [site.start(BACKFILL_JOB, tags=tags, log=log) for log in logs]
    try:
        codes = [process.wait(300) for process in both]
    finally:
        for process in both:
            kill_session(process.pid)
    said = "\n".join(log.read_text() for log in logs)
    assert 0 in codes, said[-5000:]
    assert codes == [0, 0] or "EO-FENCED" in said or "EO-EXPIRING" in said, said[-5000:]
    assert_every_record_once(site, fed)
    assert trace(site, SINK_ID) == live


def test_the_day_in_which_the_stream_began_is_shared_and_later_days_are_the_streams(site, fed, instance):
    def last(day):
        """The metadata of the newest materialization of a day."""
        wanted = dg.AssetRecordsFilter(asset_key=dg.AssetKey(FLIGHT_DELAYS_BY_DAY), asset_partitions=[day])
        return instance.fetch_materializations(wanted, limit=1).records[0].asset_materialization.metadata

    shared = backfilled(site)["2013-01-04"]
    in_all = sum(1 for day in day_of_each_input(site).values() if day == "2013-01-04")
    assert 0 < shared < in_all
    assert last("2013-01-04")["records_written"].value == shared
    assert last("2013-01-04")["write_id"].value == write_id(FLIGHT_DELAYS_BY_DAY, "2013-01-04")
    assert last(LAST_DAY)["records_written"].value == 0
    assert "live stream" in last(LAST_DAY)["said"].value


def test_days_that_are_written_are_not_written_again_and_start_no_spark(site, fed):
    before = trace(site, BACKFILL_SINK_ID)
    began = time.monotonic()
    said = site.run(BACKFILL_JOB, tags=days("2013-01-01", "2013-01-04"))
    assert said.count("was written before") >= 4
    assert "Spark" not in said and time.monotonic() - began < 30
    assert trace(site, BACKFILL_SINK_ID) == before
    assert_every_record_once(site, fed)


def test_the_stream_goes_on_and_the_backfill_has_taken_nothing_of_it(site, fed):
    """Guards against a backfill that moves the stream's position, fences it, or writes what comes later."""
    factory = KafkaTransactionalProducerFactory(bootstrap_servers=site.bootstrap_servers)
    more = list(islice(events(fed), 500))
    with factory.producer("test-feed") as producer, producer.transaction():
        for event in more:
            producer.send(FLIGHTS, event.value, event.key, timestamp_ms=event.timestamp_ms)
    site.run(STREAM_JOB, {"ops": {"stream_flight_delays": {"config": {"mode": "caught_up"}}}})
    site.run(BACKFILL_JOB, tags=days("2013-01-06", "2013-01-07"))
    assert_every_record_once(site, fed + len(more))


def test_a_checkpoint_that_is_not_there_is_not_taken_for_a_stream_that_never_started(site):
    """On another machine, or after a loss: the backfill must not ask for a first start, which would be a second one."""
    kafka = KafkaTransactionalProducerFactory(bootstrap_servers=site.bootstrap_servers)
    with pytest.raises(CheckpointUnusable, match=r"has run, .*checkpoint /nowhere is missing"):
        backfill_share(flight_delays, kafka, CheckpointReader(root="/nowhere"), "/nowhere")


def test_launch_backfill_in_the_ui_is_one_run_that_marks_each_day(site, instance):
    """What the button of the asset's page asks for; all the days are written, so no Spark is needed to see it."""
    asked = ["2013-01-01", "2013-01-02", "2013-01-03"]
    before = trace(site, BACKFILL_SINK_ID)
    with Dagster(site) as dagster:
        backfill = dagster.backfill(FLIGHT_DELAYS_BY_DAY, asked)
        until(
            "the end of the backfill",
            lambda: dagster.backfill_status(backfill)["status"] not in ("REQUESTED",),
            180,
            every_s=1.0,
        )
        found = dagster.backfill_status(backfill)
        assert found["status"] == "COMPLETED_SUCCESS", found
        (run,) = found["runs"]
        assert len(dagster.materialized(run["runId"], FLIGHT_DELAYS_BY_DAY)) == len(asked)  # each day once
    assert trace(site, BACKFILL_SINK_ID) == before
