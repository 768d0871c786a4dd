"""One sensor over several streams: what a tick says, keeps and requests of each of them."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_exactly_once.names import ALL_STREAMS, RECOVERY_JOB, RECOVERY_OP
from dagster_exactly_once.private import RUN_FAILURE_REASON_TAG
from dagster_exactly_once.runs.tags import (
    TAG_PID,
    TAG_RECOVERS,
    TAG_RESTART_OF,
    TAG_SINK,
    TAG_STREAM,
)
from dagster_exactly_once.sensors import checkpoint_progress, run_failure, sink_state, stale_transactions
from dagster_exactly_once.sensors.liveness import liveness_sensor
from dagster_exactly_once.sensors.settings import RestartPolicy
from dagster_exactly_once.sensors.stale_transactions import LEADERS_AT_ONCE
from dagster_exactly_once.sensors.tick import Judged, Tick, ask_each, read_cursor
from exactly_once import deadline
from exactly_once.checkpoint import Checkpoint
from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable, CommitLogDamaged, InvalidOption
from exactly_once.inspection.findings import Inspection, OpenTransaction, Owner
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Claim
from testkit.dagster_runs import brought_to, process_tags
from testkit.sensing import failed_run, failure, sensing
from testkit.sensor_facts import spec

S = dg.DagsterRunStatus
ORDERS, CLICKS = spec("orders", "orders"), spec("clicks", "clicks")
BOTH = (ORDERS, CLICKS)
OUT_OF_TIME = "The tick ran out of time before this stream; the next tick checks it first."
MINE = process_tags()
GONE = {**MINE, TAG_PID: "1@1000.00"}  # another process has that id now
AT_ONCE = RestartPolicy(strategy="fixed-delay", delay_s=0.0)


def job_of(stream):
    @dg.op(name=stream.op)
    def step():
        pass

    @dg.job(name=stream.job)
    def job():
        step()

    return job


def tick(instance, name, streams=BOTH, cursor=None, servers="127.0.0.1:1", **policy):
    sensors = sensing(instance, streams, servers, AT_ONCE, **policy)
    sensors.cursors[name] = cursor
    return sensors.look(name)


def said(result):
    return result.skip_reason.skip_message.split("\n")


def new(instance, stream, status, job=None, **rest):
    tags = {TAG_STREAM: stream.name, **rest.pop("tags", {})}
    run = create_run_for_test(instance, job or stream.job, status=S.NOT_STARTED, tags=tags, **rest)
    return brought_to(instance, run.run_id, status)


def fails(instance, stream, code):
    """A run of a stream that a restart does not heal."""
    failed_run(instance, failure(code), stream.name, stream.job)


def recovered(instance, stream, failed):
    """A recovery that has succeeded and wants a restart of ``failed``, as ``exactly_once_run_failure`` requests it."""
    tags = {TAG_RECOVERS: stream.sink_id, TAG_RESTART_OF: failed, "dagster/sensor_name": "exactly_once_run_failure"}
    return brought_to(instance, create_run_for_test(instance, RECOVERY_JOB, tags=tags).run_id, S.SUCCESS)


def inspection(sink_id, *open_transactions):
    return Inspection(sink_id, None, open_transactions, (), (), (), None, 0, LogState())


def unreachable(sink_id):
    return BrokerUnreachable(f"no answer about {sink_id}", "Check the brokers")


# -- one tick over several streams -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["exactly_once_checkpoint_progress", "exactly_once_stale_transactions"])
def test_a_stream_that_cannot_be_looked_at_does_not_hide_the_others(instance, monkeypatch, name):
    """One damaged commit log would else blind the sensor for every stream: an outage that nobody sees."""

    def inspect(connection, sink_id, budget_s, alive_of=None):
        if sink_id == "orders":
            raise CommitLogDamaged("a stray record", "Stop its writer")
        return inspection(sink_id)

    monkeypatch.setattr(sink_state, "inspect_sink", inspect)
    monkeypatch.setattr(stale_transactions, "inspect_sink", inspect)
    first, second = said(tick(instance, name, (CLICKS, ORDERS), hanging_every_s=1e12))
    assert first.startswith("orders: ") and "a stray record" in first and "This sensor did nothing." in first
    assert second.startswith("clicks: ") and "stray" not in second


@pytest.mark.parametrize("name", ["exactly_once_checkpoint_progress", "exactly_once_stale_transactions"])
def test_a_tick_without_brokers_fails_and_is_not_skipped(instance, name):
    """Mishap: an empty KAFKA_BOOTSTRAP_SERVERS made every tick "skipped", for ever, below a green code location."""
    with pytest.raises(InvalidOption, match="KAFKA_BOOTSTRAP_SERVERS is empty"):
        tick(instance, name, servers="")


def test_an_owner_that_cannot_be_found_does_not_keep_another_stream_down(instance, monkeypatch):
    """Whether a fenced driver may come back takes a look at its log; the other stream's failure does not."""
    fails(instance, ORDERS, "EO-FENCED")
    failed = new(instance, CLICKS, S.FAILURE)

    def read(connection, sink_id, budget_s):
        raise unreachable(sink_id)

    monkeypatch.setattr(run_failure, "read_log", read)
    recovery, start = tick(instance, "exactly_once_run_failure").run_requests
    assert recovery.tags[TAG_RESTART_OF] == failed and recovery.tags[TAG_RECOVERS] == "clicks"
    assert start.tags[TAG_RESTART_OF] == failed and start.job_name == CLICKS.job


def test_failures_of_two_streams_are_recovered_in_one_tick(instance):
    """A second stream that waits for the next tick is down for longer than it has to be."""
    failed = {s.sink_id: new(instance, s, S.FAILURE) for s in BOTH}
    requests = tick(instance, "exactly_once_run_failure").run_requests
    assert [r.job_name for r in requests] == [RECOVERY_JOB, ORDERS.job, RECOVERY_JOB, CLICKS.job]
    assert len({r.run_key for r in requests}) == 4
    requests = [r for r in requests if r.job_name == RECOVERY_JOB]
    assert {r.tags[TAG_RECOVERS]: r.tags[TAG_RESTART_OF] for r in requests} == failed
    assert {r.run_config["ops"][RECOVERY_OP]["config"]["stream"] for r in requests} == {s.name for s in BOTH}
    assert {r.run_config["ops"][RECOVERY_OP]["config"]["dry_run"] for r in requests} == {False}, "a sensor acts"


def test_the_same_incident_of_two_streams_has_two_run_keys(instance, monkeypatch):
    """One sensor has one set of run keys: Dagster would drop the second stream's recovery forever."""
    t = OpenTransaction("eo:x:1:0:0.0", 0, "0.0", "Ongoing", 4_000, 2, 900.0, 900.0, (("out", 0),), "undecided")
    monkeypatch.setattr(
        stale_transactions, "inspect_sink", lambda connection, sink_id, *_, **more: inspection(sink_id, t)
    )
    requests = tick(instance, "exactly_once_stale_transactions", hanging_every_s=1e12).run_requests
    assert len({r.run_key for r in requests}) == 2


def test_with_one_stream_the_sentence_stands_alone_and_with_several_each_is_named(instance):
    """Who reads the tick must know which stream each sentence is about."""
    [alone] = said(tick(instance, "exactly_once_run_failure", [ORDERS]))
    assert "no run yet" in alone and "orders" not in alone
    new(instance, CLICKS, S.STARTED)
    orders, clicks = said(tick(instance, "exactly_once_run_failure"))
    assert orders == f"orders: {alone}" and clicks.startswith("clicks: Run ")


def test_the_streams_that_need_attention_come_first(instance):
    """Among fifty sentences nobody finds the one that matters."""
    new(instance, ORDERS, S.STARTED)
    new(instance, CLICKS, S.FAILURE, tags={RUN_FAILURE_REASON_TAG: "RUN_EXCEPTION"})
    first, _ = said(tick(instance, "exactly_once_run_failure"))
    assert first.startswith("clicks: HEALTH-FAILED: ") and "RUN_EXCEPTION" in first


# -- what a tick keeps -----------------------------------------------------------------------------------------------


def test_each_stream_is_reported_to_a_person_once(instance):
    """A cursor that the streams shared would report a failure at every tick, or that of the second stream never."""
    hopeless = {RUN_FAILURE_REASON_TAG: "RUN_EXCEPTION"}
    new(instance, ORDERS, S.FAILURE, tags=hopeless)
    one = tick(instance, "exactly_once_run_failure")
    assert len(one.asset_events) == 1
    new(instance, CLICKS, S.FAILURE, tags=hopeless)
    two = tick(instance, "exactly_once_run_failure", cursor=one.cursor)
    assert [e.asset_key.to_user_string() for e in two.asset_events] == ["clicks_transactions"]
    assert tick(instance, "exactly_once_run_failure", cursor=two.cursor).asset_events == []


def test_the_cursor_keeps_each_stream_by_its_sink_and_forgets_removed_ones(instance):
    """A stream that is declared anew under an old name must not begin with another sink's memory."""
    cursor = json.dumps({"version": 2, "streams": {"orders": {"raised": "r1"}, "old": {"raised": "r0"}}})
    kept = read_cursor(tick(instance, "exactly_once_run_failure", cursor=cursor).cursor)
    assert {sink_id: memory["raised"] for sink_id, memory in kept["streams"].items()} == {
        "orders": "r1",
        "clicks": None,
    }


def test_a_look_that_failed_keeps_what_was_known(instance, monkeypatch):
    """Else every broker that restarts makes a stream that stands still look as if it had just begun to."""

    def inspect(connection, sink_id, budget_s, alive_of=None):
        raise unreachable(sink_id)

    monkeypatch.setattr(sink_state, "inspect_sink", inspect)
    known = {"orders": {"waits_since": 1.0}, "clicks": {"waits_since": 2.0}}
    cursor = json.dumps({"version": 2, "streams": known, "missed": []})
    assert read_cursor(tick(instance, "exactly_once_checkpoint_progress", cursor=cursor).cursor)["streams"] == known


# -- the time of a tick ----------------------------------------------------------------------------------------------


def test_a_stream_without_its_turn_says_so_and_comes_first_in_the_next_tick():
    """A stream behind many slow ones would never be looked at."""
    streams = [spec(name, name) for name in "abcd"]
    first = Tick(dg.build_sensor_context(), streams)
    for stream in first.streams[:2]:
        first.add(stream, Judged("fine."))
    for stream in first.streams[2:]:
        first.missed(stream)
    result = first.result()
    assert said(result)[0] == f"c, d: {OUT_OF_TIME}"  # what is true of several streams is said once

    second = Tick(dg.build_sensor_context(cursor=result.cursor), streams)
    assert [s.name for s in second.streams] == ["c", "d", "a", "b"]
    second.add(second.streams[0], Judged("fine."))
    for stream in second.streams[1:]:
        second.missed(stream)
    third = Tick(dg.build_sensor_context(cursor=second.result().cursor), streams)
    assert [s.name for s in third.streams] == ["d", "a", "b", "c"]


@pytest.mark.parametrize("name", ["exactly_once_run_failure", "exactly_once_liveness"])
def test_a_slow_run_storage_ends_the_tick_and_not_the_turn_of_the_streams(instance, monkeypatch, name):
    """After a broker's outage fifty histories are read at once, and a tick that takes too long holds up the others."""
    for stream in BOTH:
        recovered(instance, stream, new(instance, stream, S.FAILURE))
    monkeypatch.setattr("dagster_exactly_once.sensors.tick.BUDGET_S", 0.0)
    result = tick(instance, name)
    assert said(result) == [f"orders, clicks: {OUT_OF_TIME}"]
    assert read_cursor(result.cursor)["missed"] == ["orders", "clicks"]


def test_looks_go_on_at_once_and_end_with_the_time_of_the_tick(monkeypatch):
    """A tick that takes longer is given up by Dagster, with everything that it found out."""
    monkeypatch.setattr("dagster_exactly_once.sensors.tick.ENOUGH_S", 0.1)
    monkeypatch.setattr("dagster_exactly_once.sensors.tick.AT_ONCE", 2)
    streams = [spec(name, name) for name in "abcdefgh"]

    def look(stream, budget_s):
        time.sleep(min(0.4, budget_s))
        return stream.name

    began = time.monotonic()
    found = ask_each(streams, look, Deadline(0.6))
    assert time.monotonic() - began < 1.5
    assert list(found) == ["a", "b", "c", "d"]


def test_not_all_streams_ask_the_partition_leaders_in_one_tick(instance, monkeypatch):
    """Fifty of these looks do not fit into a tick; each has its turn within the next ones."""
    streams = [spec(f"s{n}", f"s{n}") for n in range(LEADERS_AT_ONCE + 5)]
    asked = []
    monkeypatch.setattr(stale_transactions, "inspect_sink", lambda connection, sink_id, *_, **more: inspection(sink_id))
    monkeypatch.setattr(stale_transactions, "_others", lambda connection, stream, *_: asked.append(stream.name) or {})
    one = tick(instance, "exactly_once_stale_transactions", streams)
    assert len(set(asked)) == LEADERS_AT_ONCE
    tick(instance, "exactly_once_stale_transactions", streams, one.cursor)
    assert sorted(asked) == sorted(s.name for s in streams)


# -- the page of all streams -----------------------------------------------------------------------------------------


def look(sink_id, run_id="", lag=0, alive=True):
    claim = Claim(3, "q", int((time.time() - 60) * 1000), "stream", "host-a", 4711, operator=f"dagster/i/{run_id}")
    found = Inspection(sink_id, Owner(claim, alive))
    return sink_state.SinkState(found, Checkpoint("/c"), {}, (lag,), time.time())


def unused(sink_id):
    return sink_state.SinkState(Inspection(sink_id), Checkpoint(""))


@pytest.fixture
def pages(instance, monkeypatch):
    """Tick after the last one, over streams whose sinks look so: the events, by the asset on whose page they are."""
    cursor = None

    def ticked(streams, looks, **policy):
        nonlocal cursor
        monkeypatch.setattr(checkpoint_progress, "sink_states", lambda *args: looks)
        result = tick(instance, "exactly_once_checkpoint_progress", streams, cursor, **policy)
        cursor = result.cursor
        return {e.asset_key.to_user_string(): e for e in result.asset_events}

    return ticked


def test_one_table_shows_which_streams_need_somebody_and_why_and_where_to_click(instance, pages):
    """At 3 a.m. a person opens one page: a stream that failed, lags or cannot be looked at must not hide in it."""
    names = ("calm", "lagging", "failed", "torn", "unused")
    calm, lagging, failed, *_ = streams = [spec(name, name) for name in names]
    runs = {stream: new(instance, stream, S.STARTED, tags=MINE) for stream in (calm, lagging)}
    fails(instance, failed, "EO-REWOUND")
    found = {
        "calm": look("calm", runs[calm], 5),
        "lagging": look("lagging", runs[lagging], 9_999),
        "failed": look("failed", alive=False),
        "torn": CommitLogDamaged("a stray record", "Stop its writer"),
        "unused": unused("unused"),
    }
    page = pages(streams, found, lag_limit=1_000)[ALL_STREAMS]
    rows = [record.data for record in page.metadata["streams"].records]
    shown = [(r["stream"], r["state"], r["lag"]) for r in rows]
    assert shown == [
        ("lagging", "lagging", "9,999"),
        ("failed", "failed (EO-REWOUND)", "0"),
        ("torn", "not checked", ""),
        ("calm", "healthy", "5"),
        ("unused", "never used", ""),
    ]
    assert {r["stream"]: r["run"] for r in rows}["calm"] == f"{runs[calm][:8]} STARTED"
    assert {r["sink"] for r in rows} == set(names)  # what the launchpad of a recovery wants
    needy = ("lagging", "failed", "torn")
    below = {"streams", "looked_at", *(f"{n}: {what}" for n in needy for what in ("says", "asset"))}
    linked = {name.removesuffix(": run"): v.run_id for name, v in page.metadata.items() if name.endswith(": run")}
    assert set(page.metadata) == {*below, *(f"{n}: run" for n in linked)}  # a sentence in the table would fill the page
    assert {r["stream"]: r["run"][:8] for r in rows if r["run"]} == {n: run[:8] for n, run in linked.items()}
    assert linked["failed"] and time.time() - page.metadata["looked_at"].value < 60  # how old the lag is
    assert page.metadata["lagging: says"].value.startswith("HEALTH-LAGGING: ")
    failure = page.metadata["failed: says"].value  # as health says it: Mishap: "never used", and no cause
    assert all(text in failure for text in ("HEALTH-FAILED", "EO-REWOUND: c. w.")), failure
    assert "a stray record" in page.metadata["torn: says"].value
    links = [page.metadata[f"{n}: asset"].asset_key.to_user_string() for n in needy]
    assert links == [f"{n}_transactions" for n in needy]
    counts = "1 lagging, 1 failed (EO-REWOUND), 1 not checked, 1 healthy, 1 never used."
    assert page.description.startswith(f"{counts} Checked at 20") and page.description.endswith(" UTC.")
    assert pages(streams, found, lag_limit=1_000) == {}  # nothing has changed


def test_a_stream_that_fails_anew_says_so_in_the_table_as_in_health(instance, pages):
    """Mishap: health had the new cause, and the table that of the run before, as the state was "failed" in both."""
    calm = spec("calm", "calm")
    runs = new(instance, calm, S.STARTED, tags=MINE)
    found = {"calm": look("calm", runs), "orders": look("orders", alive=False)}
    for code in ("EO-REWOUND", "EO-TRANSFORM"):
        fails(instance, ORDERS, code)
        shown = pages([calm, ORDERS], found)
        page, health = shown[ALL_STREAMS], shown["shop/orders"]
        assert not health.passed
        says = page.metadata["orders: says"].value
        assert says == f"{health.metadata['code'].value}: {health.description}" and code in says
        assert page.metadata["streams"].records[0].data["state"] == f"failed ({code})"


def test_the_lag_of_a_dead_stream_grows_on_every_page_that_shows_it(instance, pages, monkeypatch):
    """Mishap: the table said 7 offsets, of the tick in which the stream died, while 90,000 were waiting."""
    dead = replace(spec("dead", "dead"), source_keys=("orders",))
    new(instance, dead, S.SUCCESS)

    def behind(lag, measured):
        return pages([dead], {"dead": replace(look("dead", lag=lag, alive=False), measured=measured)})

    assert set(behind(7, 1_000.0)) == {ALL_STREAMS, "orders", "dead_transactions", "shop/dead"}
    assert behind(8, 1_010.0) == {}  # no more often than a person looks
    monkeypatch.setattr(checkpoint_progress, "SHOW_EVERY_S", 0.0)
    found = behind(90_000, 1_030.0)
    assert set(found) == {ALL_STREAMS, "orders", "shop/dead"}
    assert [r.data["lag"] for r in found[ALL_STREAMS].metadata["streams"].records] == ["90,000"]
    assert found["orders"].metadata["lag_offsets_dead"].value == 90_000
    assert "90,000 offsets of input" in found["shop/dead"].description
    measured = {found[ALL_STREAMS].metadata["looked_at"].value, found["orders"].metadata["lag_measured_dead"].value}
    assert measured == {found["shop/dead"].metadata["lag_measured"].value} == {1_030.0}
    assert behind(90_000, 1_040.0) == {}  # a lag that stands still is not written again


def test_a_lag_that_moves_while_a_run_works_is_one_row_in_the_table_alone(instance, pages, monkeypatch):
    """Mishap: a write storm: the run reports its own lag, and many streams would write each of theirs at every tick."""
    runs = {s.name: new(instance, s, S.STARTED, tags=MINE) for s in BOTH}

    def written(lag):
        return [*pages(BOTH, {name: look(name, run, lag) for name, run in runs.items()})]

    assert ALL_STREAMS in written(3)
    assert written(4) == []
    monkeypatch.setattr(checkpoint_progress, "SHOW_EVERY_S", 0.0)
    assert written(5) == [ALL_STREAMS] and written(5) == []


def test_the_checks_are_evaluated_when_a_stream_begins_to_work_and_when_it_stays_failed(instance):
    """They were red for ten minutes while the stream ran, and green for as long after it had failed."""
    keys = {"orders": [dg.AssetCheckKey("orders", "freshness")], "clicks": [dg.AssetCheckKey("clicks", "freshness")]}

    def asked(before, now, checked=""):
        cursor = json.dumps({"version": 2, "streams": {"orders": {"state": before, "checked": checked}}, "missed": []})
        found = Tick(dg.build_sensor_context(cursor=cursor), BOTH)
        found.add(ORDERS, Judged("m", memory={"state": now, "failed": "r1" if now == "failed" else ""}))
        wanted = [r.asset_check_keys for r in checkpoint_progress.rechecks(found, BOTH, keys)]
        assert not wanted or now != "failed" or found.memory["orders"]["checked"] == "r1"
        return wanted

    for before, now in (("", "healthy"), ("starting", "idle"), ("stalled", "lagging"), ("failed", "failed")):
        assert asked(before, now) == [keys["orders"]], (before, now)
    assert asked("failed", "failed", checked="r1") == [], "once for each failed run"
    # a stream that has just failed: its next run starts, and needs the processors
    same = (("healthy", "lagging"), ("idle", "healthy"), ("healthy", "failed"))
    for before, now in (*same, ("healthy", "stopped"), ("stopped", "starting")):
        assert asked(before, now) == [], (before, now)


def test_a_tick_that_observes_a_stream_observes_the_lag_on_its_inputs_too(pages):
    """The topic's page said nothing of a stream that stands: a run alone reports there while it works."""
    stream = replace(spec("paid", "paid"), sources=("orders", "refunds"), source_keys=("shop/orders", "refunds"))
    behind = {"paid": replace(look("paid", lag=7), lags=(4, 3))}
    lags = {key: event.metadata.get("lag_offsets_paid") for key, event in pages([stream], behind).items()}
    assert {key: lag.value for key, lag in lags.items() if lag} == {"shop/orders": 4, "refunds": 3}
    assert pages([stream], behind) == {}  # no more often than the state itself


def test_a_stream_that_fails_before_its_first_batch_turns_red(instance, pages):
    """A new stream with a mistaken option never uses its sink: a check that stays grey says that nothing is wrong."""
    stream = spec("new", "new")
    fails(instance, stream, "EO-OPTION")
    found = pages([stream], {"new": unused("new")})
    check, page = found["shop/new"], found[ALL_STREAMS]
    assert not check.passed and check.severity is dg.AssetCheckSeverity.ERROR
    codes = {name: check.metadata[name].value for name in ("code", "failure", "state", "way_out")}
    assert codes == {"code": "HEALTH-FAILED", "failure": "EO-OPTION", "state": "failed", "way_out": "w"}
    assert [r.data["state"] for r in page.metadata["streams"].records] == ["failed (EO-OPTION)"]
    assert pages([stream], {"new": unused("new")}) == {}


def test_the_first_run_of_a_stream_is_starting_and_its_check_green(instance, pages):
    """Mishap: "The sink was never used", in amber, of a run that had just been launched."""
    stream = spec("new", "new")
    assert [*pages([stream], {"new": unused("new")})] == [ALL_STREAMS]
    new(instance, stream, S.STARTED, tags=MINE)
    check = pages([stream], {"new": unused("new")})["shop/new"]
    assert (check.passed, check.metadata["code"].value) == (True, "HEALTH-STARTING")


# -- liveness over several streams -----------------------------------------------------------------------------------


def test_each_dead_run_is_reported_once_and_another_stream_is_started_in_the_same_tick(instance):
    """Two reports of one death would end a run twice; a death must not keep another stream down."""
    dead = new(instance, ORDERS, S.STARTED, tags={**GONE, TAG_SINK: "orders"})
    feed = create_run_for_test(instance, "feed", status=S.STARTED, tags=GONE).run_id
    failed = new(instance, CLICKS, S.FAILURE)
    recovered(instance, CLICKS, failed)
    (request,) = tick(instance, "exactly_once_liveness").run_requests
    assert (request.job_name, request.tags[TAG_RESTART_OF]) == (CLICKS.job, failed)
    assert [instance.get_run_by_id(r).status for r in (dead, feed)] == [S.FAILURE, S.FAILURE]
    reports = instance.get_records_for_run(dead, of_type=dg.DagsterEventType.PIPELINE_FAILURE).records
    assert len(reports) == 1


def test_two_streams_are_started_in_one_tick(instance):
    """After a broker's outage all of them come back, and none waits for the others."""
    for stream in BOTH:
        recovered(instance, stream, new(instance, stream, S.FAILURE))
    requests = tick(instance, "exactly_once_liveness").run_requests
    assert {r.job_name: r.tags[TAG_STREAM] for r in requests} == {ORDERS.job: "orders", CLICKS.job: "clicks"}


def test_a_run_that_materialize_started_is_recovered_and_started_again_as_the_stream_s_job(instance):
    """It is the same stream, with the same configuration, whatever button started it."""
    config = {"max_offsets_per_trigger": 7, "once": {"adopt": "", "accept_lost": "batch 3"}}
    failed = new(
        instance,
        ORDERS,
        S.FAILURE,
        "__ASSET_JOB",
        tags={TAG_SINK: "orders"},
        asset_selection=frozenset([dg.AssetKey(["shop", "orders"]), dg.AssetKey(["shop", "report"])]),
        run_config={"ops": {ORDERS.op: {"config": config}, "report": {"config": {"x": 1}}}, "resources": {}},
    )
    request, beside = tick(instance, "exactly_once_run_failure").run_requests
    assert request.tags[TAG_RESTART_OF] == failed
    recovered(instance, ORDERS, failed)
    (after,) = tick(instance, "exactly_once_liveness").run_requests
    for start in (beside, after):
        assert start.job_name == ORDERS.job and start.tags[TAG_STREAM] == "orders"
        assert start.run_config == {"ops": {ORDERS.op: {"config": {"max_offsets_per_trigger": 7}}}}


def test_a_run_that_materialize_is_just_starting_stops_a_restart(instance):
    """Two drivers of one sink fence each other."""
    recovered(instance, ORDERS, new(instance, ORDERS, S.FAILURE))
    selected = frozenset([dg.AssetKey(["shop", "orders"])])
    create_run_for_test(instance, "__ASSET_JOB", status=S.STARTING, asset_selection=selected)
    orders = next(line for line in said(tick(instance, "exactly_once_liveness")) if line.startswith("orders: "))
    assert "of __ASSET_JOB is STARTING" in orders


def test_a_materialize_run_over_more_assets_has_time_to_come_to_the_stream(instance, monkeypatch):
    """Its first steps may take hours, and only the stream's own step says which process it is."""
    monkeypatch.setattr("dagster_exactly_once.sensors.liveness.SIGN_IN_S", -1.0)
    mine, more = dg.AssetKey(["shop", "orders"]), dg.AssetKey(["shop", "report"])
    alone, among = (
        create_run_for_test(instance, "__ASSET_JOB", status=S.STARTED, asset_selection=frozenset(keys)).run_id
        for keys in ([mine], [mine, more])
    )
    assert "its process is gone" in "\n".join(said(tick(instance, "exactly_once_liveness")))
    assert [instance.get_run_by_id(r).status for r in (alone, among)] == [S.FAILURE, S.STARTED]


def test_a_sensor_that_may_not_start_a_stream_is_refused_when_the_location_loads():
    """Dagster would refuse its first request, at the failure of the stream."""
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="clicks_stream"):
        liveness_sensor(BOTH, [job_of(ORDERS)])


def test_dagster_accepts_the_requests_for_each_job(instance):
    """A sensor with several jobs must name the job of each request; else its tick fails, and nothing is started."""
    recovered(instance, ORDERS, new(instance, ORDERS, S.FAILURE))
    sensor = liveness_sensor(BOTH, [job_of(s) for s in BOTH])
    with dg.build_sensor_context(instance=instance, resources={"restart_policy": AT_ONCE}) as context:
        data = sensor.evaluate_tick(context)
    assert [r.job_name for r in data.run_requests] == [ORDERS.job]


def test_a_configuration_that_a_job_no_longer_takes_stops_no_other_stream(instance):
    """One run from before a deployment kept every stream of the code location down: Dagster failed each whole tick."""

    @dg.op(name=ORDERS.op, config_schema={"rows": int})
    def renamed():
        pass

    @dg.job(name=ORDERS.job)
    def changed():
        renamed()

    location = dg.Definitions(jobs=[changed, job_of(CLICKS)]).get_repository_def()
    before = {"ops": {ORDERS.op: {"config": {"max_rows": 5}}}}
    with dg.build_sensor_context(instance=instance, repository_def=location, sensor_name="any") as context:
        tick = Tick(context, BOTH)
        request = dg.RunRequest("1", before, job_name=ORDERS.job)
        tick.add(ORDERS, Judged("It failed.", requests=[request], memory={"asked": 1}))
        tick.add(CLICKS, Judged("It failed.", requests=[dg.RunRequest("2", job_name=CLICKS.job)], memory={"asked": 1}))
        result = tick.result()
    assert [r.job_name for r in result.run_requests] == [CLICKS.job]
    assert "max_rows" in tick.judged[ORDERS.sink_id].message and tick.judged[ORDERS.sink_id].attention
    assert read_cursor(result.cursor)["streams"] == {ORDERS.sink_id: {}, CLICKS.sink_id: {"asked": 1}}


# -- a tick that waits for a failure -----------------------------------------------------------------------------------


class Clock:
    """The module ``time`` of a sensor, in which only sleeping takes time; while it sleeps, ``then`` happens once."""

    def __init__(self, then=lambda: None):
        self.then, self.now, self.slept = then, 0.0, 0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now, self.slept = self.now + seconds, self.slept + 1
        then, self.then = self.then, lambda: None
        then()


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(run_failure, "time", made)
    monkeypatch.setattr(deadline, "time", made)
    return made


@pytest.fixture
def threads(instance, monkeypatch):
    """Set how many threads evaluate the sensors of the instance, which are of one code location; before that, one."""
    of_others = instance.get_settings
    monkeypatch.setattr(instance, "all_instigator_state", lambda instigator_type: [])

    def threads(number):
        sensors = {"use_threads": True, "num_workers": number}
        monkeypatch.setattr(instance, "get_settings", lambda of: sensors if of == "sensors" else of_others(of))

    return threads


@pytest.fixture
def failures(instance):
    """Tick ``exactly_once_run_failure`` over both streams, after a first tick with nothing to keep."""
    sensors = sensing(instance, BOTH, "127.0.0.1:1", AT_ONCE)

    def ticked():
        return sensors.look("exactly_once_run_failure")

    ticked()
    return ticked


def test_a_run_that_fails_while_a_tick_waits_is_recovered_by_that_tick(instance, clock, threads, failures):
    """Mishap: a stream stays down for up to five seconds more, until the daemon looks at its sensors again."""
    threads(4)
    run_id = new(instance, CLICKS, S.STARTED)
    new(instance, ORDERS, S.STARTED)
    clock.then = lambda: brought_to(instance, run_id, S.FAILURE)
    result = failures()
    assert clock.slept == 1
    recovery, following = result.run_requests
    assert recovery.tags[TAG_RESTART_OF] == following.tags[TAG_RESTART_OF] == run_id


@pytest.mark.parametrize("judged_s", [0.0, 2.5, 7.0])
def test_a_tick_in_which_nothing_fails_ends_before_the_daemon_looks_again(
    instance, clock, threads, failures, monkeypatch, judged_s
):
    """The daemon leaves out a sensor whose tick has not ended: its next look would be five seconds later."""
    threads(4)
    new(instance, CLICKS, S.STARTED)

    def slowly(*args, judge=run_failure.verdict):
        clock.now += judged_s / len(BOTH)
        return judge(*args)

    monkeypatch.setattr(run_failure, "verdict", slowly)
    assert not failures().run_requests
    assert max(3.5, judged_s) <= clock.now < max(5, judged_s + 0.1)


def test_a_tick_that_has_something_to_request_waits_for_nothing(instance, clock, threads, failures):
    """Mishap: the recovery of one stream waits for those that work."""
    threads(4)
    new(instance, ORDERS, S.STARTED)
    new(instance, CLICKS, S.FAILURE)
    assert failures().run_requests and not clock.slept


def test_a_tick_that_has_told_a_person_waits_for_nothing(instance, clock, threads, failures):
    """Mishap: the code server is deployed anew while the tick waits, and the person is told again."""
    threads(4)
    fails(instance, CLICKS, "EO-MODE")
    new(instance, ORDERS, S.STARTED)
    failures()
    assert not clock.slept
    failures()
    assert clock.slept, "the one that keeps what it knew waits again"


def test_a_tick_without_a_run_in_progress_waits_for_nothing(instance, clock, threads, failures):
    threads(4)
    new(instance, CLICKS, S.CANCELED)
    assert said(failures()) and not clock.slept


def test_a_tick_holds_no_thread_that_other_sensors_need(instance, clock, threads, failures):
    """Mishap: the sensors of a shared instance wait for the ticks of streams, of one code location after the other."""
    new(instance, CLICKS, S.STARTED)
    failures()
    assert not clock.slept, "one thread evaluates all sensors"
    threads(3)
    failures()
    assert not clock.slept, "of three threads, one is more than a quarter"
