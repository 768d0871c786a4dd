"""``delay_by_hour``: state that outlives runs and crashes, each closed hour once, with the numbers of the package."""

import json
from itertools import islice

import pytest

from dagster_exactly_once.resources.checkpoints import CheckpointReader
from exactly_once.commitlog.commit_log import read_log
from exactly_once_local.duel.departures import departures, events
from platform_assets.constants import DELAY_BY_HOUR, FLIGHTS
from platform_assets.flights.names import DELAY_BY_HOUR_JOB, DELAY_BY_HOUR_OP, DELAY_BY_HOUR_SINK_ID
from testkit import oracle
from testkit.flights import Feed, expected_hours
from testkit.processes import kill_session, until

#: In batches of a few hundred the input's partitions are some hours apart, not days as over a year.
DELAY_H = 12

#: Departures in a batch at most: some ten hours of three airports.
BATCH = 400

#: From the launch of a run to what a test waits for, on a busy machine of two cores.
PATIENCE_S = 180


def config(**more):
    """Run configuration: up to the end of the input, in small batches."""
    wanted = {"mode": "caught_up", "watermark_delay_h": DELAY_H, "max_offsets_per_trigger": BATCH, **more}
    return {"ops": {DELAY_BY_HOUR_OP: {"config": wanted}}}


def hours_out(site):
    """The output by window start and airport; each hour of an airport is there once."""
    found = {}
    for message in oracle.read(site.connection, [DELAY_BY_HOUR]):
        body = json.loads(message.value)
        place = (body["window_start"], body["origin"])
        assert message.key == body["origin"]
        assert place not in found, f"{place} is there twice: {found[place]} and {body}"
        found[place] = body
    return found


def assert_closed_hours(site, sent):
    """Exactly the hours that the watermark has closed after ``sent`` departures are out, each once and right."""
    oracle.assert_settled(site.connection, DELAY_BY_HOUR_SINK_ID, [DELAY_BY_HOUR])
    found, want = hours_out(site), expected_hours(sent, DELAY_H)
    assert found.keys() - want.keys() == set(), "hours came out that are still open"
    assert want.keys() - found.keys() == set(), "hours are lost"
    assert found == want
    return found


def checkpoint(site):
    return site.folder / "checkpoints" / site.kafka.cluster_id() / DELAY_BY_HOUR_SINK_ID


# the whole file takes three minutes; what needs no broker is tested beside the transformation
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def feed(site):
    with Feed(site.bootstrap_servers) as feed:
        yield feed


@pytest.fixture(scope="module")
def first(site, feed):
    """A run over the first departures and two malformed events; what it said, and what is out after it."""
    feed.send(1_500)
    site.send(FLIGHTS, "{broken", '{"carrier":"UA"}')
    said = site.run(DELAY_BY_HOUR_JOB, config(), timeout_s=PATIENCE_S)
    return said, assert_closed_hours(site, feed.sent)


def test_closed_hours_are_out_once_and_open_ones_are_not(site, feed, first):
    """An hour that is written before its end would be written again, or be wrong forever."""
    said, found = first
    everything = expected_hours(feed.sent)
    assert found and len(found) < len(everything)
    assert "watermark had passed" not in said
    assert "(2 rejected)" in said or "(1 rejected)" in said  # in one batch, or in two


def test_state_is_kept_as_changes_in_rocksdb_under_ids_of_their_own(site, first):
    """With state format 1, a task of a batch that was tried before could put its files in the place of the right ones;
    a setting that does not reach the query would go unnoticed.
    """
    _, settings, *_ = (checkpoint(site) / "offsets" / "0").read_text().splitlines()
    conf = json.loads(settings)["conf"]
    assert conf["spark.sql.streaming.stateStore.providerClass"].endswith(".RocksDBStateStoreProvider")
    assert conf["spark.sql.shuffle.partitions"] == "2"
    assert list((checkpoint(site) / "state" / "0" / "0").glob("*_*.changelog")), "no changelog with a unique id"
    assert "stateUniqueIds" in (checkpoint(site) / "commits" / "0").read_text()


def test_the_next_run_closes_the_open_hours_from_the_state_of_the_one_before(site, feed, first):
    """State that is lost between two runs loses the departures that came before, and says so nowhere."""
    before, began = first[1], feed.sent
    feed.send(1_500)
    site.run(DELAY_BY_HOUR_JOB, config(), timeout_s=PATIENCE_S)
    found = assert_closed_hours(site, feed.sent)
    assert before.items() <= found.items(), "what was out has changed"

    hours = departures()[["time_hour", "origin"]].iloc[:began]
    seen_before = set(zip(hours["time_hour"], hours["origin"], strict=True))
    assert len((found.keys() - before.keys()) & seen_before) >= 3, "no hour came out of restored state"


def test_a_departure_that_is_too_late_opens_no_closed_hour_again_and_is_told(site, feed, first):
    """A second end of the same hour would be a duplicate; a departure that is dropped without a word, a loss."""
    before = read_log(site.connection, DELAY_BY_HOUR_SINK_ID).decisions
    (late,) = islice(events(), 1)
    with site.kafka.producer("test-late") as producer, producer.transaction():
        producer.send(FLIGHTS, late.value, late.key)
    said = site.run(DELAY_BY_HOUR_JOB, config(), timeout_s=PATIENCE_S)
    assert "dropped 1 row that" in said and "watermark had passed" in said
    assert_closed_hours(site, feed.sent)
    after = read_log(site.connection, DELAY_BY_HOUR_SINK_ID).decisions
    assert sum(d.records for d in after) == sum(d.records for d in before)


def test_a_run_that_is_killed_in_the_middle_leaves_each_closed_hour_once_and_right(site, feed, first, tmp_path):
    """Undecided, the batch is run again, and must start from the state before it. Decided, its rows are drained, and
    the state must go on all the same: else its hours are lost, or come twice.
    """
    feed.send(6_000)
    for point in ("all-prepared", "decided"):
        batch = _killed_at(site, point, tmp_path)
        if point == "decided":
            (decision,) = read_log(site.connection, DELAY_BY_HOUR_SINK_ID).open_decisions
            assert decision.batch_id == batch and decision.records > 0
    site.run(DELAY_BY_HOUR_JOB, config(), timeout_s=PATIENCE_S)
    assert_closed_hours(site, feed.sent)


def _killed_at(site, point, failpoints):
    """Start a run, let it commit some batches, and kill -9 all of it when the next one is at ``point``; returns that
    batch.
    """
    reader, location = CheckpointReader(root=""), str(checkpoint(site))
    committed = reader.read(location).last_commit
    log = site.folder / f"{point}.log"
    process = site.start(DELAY_BY_HOUR_JOB, config(), log=log, EXACTLY_ONCE_FAILPOINTS=str(failpoints))

    def alive_and(condition):
        assert process.poll() is None, log.read_text()[-5_000:]
        return condition()

    try:
        until("batches", lambda: alive_and(lambda: reader.read(location).last_commit >= committed + 2), PATIENCE_S)
        draft = failpoints / ".draft"
        draft.write_text("hang")
        draft.rename(failpoints / point)
        reached = failpoints / f"{point}.reached"
        until(point, lambda: alive_and(reached.exists), PATIENCE_S)
        assert oracle.open_parts(site.connection, DELAY_BY_HOUR_SINK_ID) > 0
        return reader.read(location).in_flight
    finally:
        kill_session(process.pid)
        process.wait()
