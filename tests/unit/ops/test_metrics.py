"""What the observer counts, what it shows, and what it does not show any more."""

from __future__ import annotations

import logging

import pytest

from exactly_once.errors import BrokerUnreachable
from exactly_once.inspection.findings import Inspection, OpenTransaction, Owner, PendingDecision, RecentDecision
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.groups import Published
from exactly_once.protocol.log_state import fold
from exactly_once.protocol.records import (
    KEPT_DECISIONS,
    WRITE,
    Claim,
    Completed,
    Decision,
    Entry,
    PreparedTransaction,
    Tally,
)
from exactly_once.tools.metrics import instruments as i
from exactly_once.tools.metrics import observer
from exactly_once.tools.metrics.figures import History, gauges, output_topics
from exactly_once.tools.metrics.instruments import Kind
from exactly_once.tools.metrics.observer import Observer
from testkit.doubles import ask_the_double

NOWHERE = Connection("127.0.0.1:1")


def decision(batch, query="q", records=10):
    handle = PreparedTransaction(f"eo:s:1:0:0.{batch % 4}", 7, 1, 0, records)
    return Decision(query, batch, 1, (handle,), "d", 5, 0, topics=("out",))


def log_of(*records):
    return fold(Entry(record, n, 1_000 * n) for n, record in enumerate(records))


def totals(points):
    """The sums that a counter or histogram would take, by name and the labels beside the sink."""
    found = {}
    for p in points:
        key = (p.instrument.name.removeprefix("exactly_once."), *(v for k, v in p.attributes.items() if k != "sink"))
        found[key] = found.get(key, 0) + p.value
    return {key: value for key, value in found.items() if value}


def transaction(verdict, age_s, timeout_s=60.0, topic="out"):
    return OpenTransaction("x", 0, "0.0", "Ongoing", 1, 1, age_s, timeout_s, ((topic, 0),), verdict)


# -- what is counted ------------------------------------------------------------------------------------------------


def test_each_batch_is_counted_once_however_often_it_is_seen():
    """Mishap: a rate that depends on how often one looks."""
    history, first = History(from_the_beginning=True), decision(0)
    assert totals(history.news("s", log_of(first))) == {
        ("batch.decisions", "stream"): 1,
        ("batch.records", "stream"): 10,
    }
    assert totals(history.news("s", log_of(first))) == {}
    marked = log_of(first, Completed("q", 0, 1, 5, 2_000, 10, 30))
    assert totals(history.news("s", marked)) == {
        ("batch.prepare.duration",): 2.0,
        ("batch.decide.duration",): 0.01,
        ("batch.complete.duration",): 0.03,
    }
    assert totals(history.news("s", marked)) == {}


def test_what_was_decided_before_the_observer_came_is_not_counted_again():
    """Mishap: each restart of the observer would look like 64 batches."""
    history = History(from_the_beginning=False)
    old = [decision(n) for n in range(3)]
    assert totals(history.news("s", log_of(*old, Completed("q", 0, 1, 5, 1, 1, 1)))) == {}
    late_mark = Completed("q", 2, 1, 5, 1_000, -1, -1)
    assert totals(history.news("s", log_of(*old, decision(3), late_mark))) == {
        ("batch.decisions", "stream"): 1,
        ("batch.records", "stream"): 10,
        ("batch.prepare.duration",): 1.0,
    }


def test_the_counters_are_there_from_the_first_look_on():
    """Mishap: Prometheus sees no increase in a counter whose first value is not 0."""
    points = History(from_the_beginning=False).news("s", log_of())
    assert {p.instrument for p in points} == {i.DECISIONS, i.RECORDS, i.DEAD_LETTERS, i.MISSED} and not totals(points)


def test_a_duration_that_nobody_knows_is_not_observed():
    """Mishap: -1 for a batch that a recovery completed would pull the mean down."""
    points = History(from_the_beginning=True).news("s", log_of(decision(0), Completed("q", 0, 1, 5)))
    assert not [p for p in points if p.instrument.kind is Kind.HISTOGRAM]


def test_batches_that_left_the_log_unseen_are_counted_as_missed():
    """Mishap: figures that are short of batches, and nobody knows."""
    history = History(from_the_beginning=False)
    history.news("s", log_of(*(decision(n) for n in range(10))))
    seen = totals(history.news("s", log_of(*(decision(n) for n in range(100)))))
    assert seen[("batch.decisions", "stream")] == KEPT_DECISIONS
    assert seen[("observation.missed",)] == 90 - KEPT_DECISIONS


def test_a_new_query_and_a_batch_write_miss_nothing():
    """Mishap: the first batch of another query is no gap; a write has one batch."""
    history = History(from_the_beginning=False)
    history.news("s", log_of(*(decision(n) for n in range(10))))
    write, other = decision(0, f"{WRITE}w", records=5), decision(40, "other")
    assert totals(history.news("s", log_of(decision(9), write, other))) == {
        ("batch.decisions", "stream"): 1,
        ("batch.records", "stream"): 10,
        ("batch.decisions", "write"): 1,
        ("batch.records", "write"): 5,
    }


# -- how a sink stands ----------------------------------------------------------------------------------------------


def test_a_sink_in_figures():
    log = log_of(Claim(4, "q", 0, "stream", "h", 1), decision(0), Tally(4, completed=1, aborted=2, drained=3))
    found = Inspection(
        "s",
        Owner(log.owner, True),
        (transaction("decided", 30), transaction("undecided", 12, 20), transaction("log", 29, 30)),
        (PendingDecision("q", 0, 4, 1_000, ("out",), ()),),
        (),
        (RecentDecision(log.decisions[0], 1_000, None), RecentDecision(log.decisions[0], 4_000, None)),
        checked_ms=11_000,
        log=log,
    )
    assert totals(gauges(found, {"in": 9}, {"out": 2})) == {
        ("transaction.open", "decided"): 1,
        ("transaction.open", "undecided"): 1,
        ("transaction.open", "log"): 1,
        ("transaction.oldest.age",): 30,
        ("transaction.timeout.utilization",): 0.6,  # the commit log's own has used more, and blocks nobody
        ("transaction.aborts",): 2,
        ("batch.unproven",): 1,
        ("batch.oldest_unproven.age",): 10,
        ("batch.last_decision.age",): 7,
        ("batch.replays", "completed"): 1,
        ("batch.replays", "drained"): 3,
        ("sink.claims",): 4,
        ("owner.alive",): 1,
        ("reader.lag", "in"): 9,
        ("last_stable_offset.lag", "out"): 2,
    }


@pytest.mark.parametrize(("alive", "shown"), [(True, [1]), (False, [0]), (None, [])])
def test_an_owner_on_another_host_is_neither_alive_nor_dead(alive, shown):
    """Mishap: an alert says that nobody works on a sink whose driver cannot be seen from here."""
    found = Inspection("s", Owner(Claim(1, "q", 0, "stream", "h", 1), alive))
    assert [p.value for p in gauges(found) if p.instrument is i.OWNER_ALIVE] == shown


def test_what_is_not_known_has_no_point():
    """Mishap: a lag of 0 that was never asked for; an age since a decision that never was."""
    absent = {p.instrument for p in gauges(Inspection("s"))}
    assert not absent & {i.READER_LAG, i.STABLE_LAG, i.LAST_DECISION, i.OWNER_ALIVE, i.CLAIMS}
    assert {i.OPEN, i.OLDEST, i.UNPROVEN} <= absent


def test_output_topics_are_those_decided_and_those_being_written():
    log = log_of(decision(0))
    open_now = (transaction("undecided", 1, topic="new"), transaction("log", 1, topic="eo.s.commit-log"))
    found = Inspection("s", open=open_now, recent=(RecentDecision(log.decisions[0], 0, None),))
    assert output_topics(found) == {"out", "new"}


# -- the observer ---------------------------------------------------------------------------------------------------


class Cluster:
    """Stands for the brokers: the sinks there are, and the error that they answer with."""

    def __init__(self, monkeypatch):
        self.names, self.error, self.down, self.dies_at = ["a", "b"], {}, None, None
        monkeypatch.setattr(observer, "Admin", lambda *_: self)
        ask_the_double(monkeypatch, observer, "published_offsets", "partition_ends")
        monkeypatch.setattr(observer, "sinks", lambda *_: list(self.names))
        monkeypatch.setattr(observer, "inspect_sink", self._inspect)
        self.looks = []

    def __enter__(self):
        if self.down:
            raise self.down
        return self

    def __exit__(self, *_):
        pass

    def _inspect(self, connection, name, budget_s):
        self.looks.append(name)
        if name == self.dies_at:
            self.down = self.error[name] = silence()
        if self.error.get(name):
            raise self.error[name]
        log = log_of(decision(0))
        return Inspection(name, recent=(RecentDecision(log.decisions[0], 0, None),), checked_ms=1, log=log)

    def renew(self, budget_s):
        return self

    def broker_count(self):
        if self.down:
            raise self.down

    def published_offsets(self, group):
        return Published({}, {})

    def partition_ends(self, topics):
        return {}


@pytest.fixture
def cluster(monkeypatch):
    return Cluster(monkeypatch)


def shown(observing, instrument):
    return {p.attributes.get("sink", ""): p.value for p in observing.points(instrument)}


def silence():
    return BrokerUnreachable("no broker", "look")


def test_figures_of_a_sink_that_cannot_be_seen_vanish_and_those_of_others_stay(cluster):
    """Mishap: the last figures of a broken sink look like those of a healthy one."""
    observing = Observer(NOWHERE, (), 15)
    observing.observe()
    assert shown(observing, i.UP) == {"a": 1, "b": 1} and set(shown(observing, i.OLDEST)) == {"a", "b"}
    cluster.error["a"] = silence()
    observing.observe()
    assert shown(observing, i.UP) == {"a": 0, "b": 1} and set(shown(observing, i.OLDEST)) == {"b"}
    assert shown(observing, i.CLUSTER_UP) == {"": 1}


def test_an_unreachable_cluster_ends_no_observer_and_leaves_no_figures(cluster):
    """Mishap: the observer dies with the broker, and is missed only when it is needed."""
    observing = Observer(NOWHERE, (), 15)
    cluster.down = silence()
    observing.observe()
    assert shown(observing, i.CLUSTER_UP) == {"": 0} and shown(observing, i.UP) == {}
    cluster.down = None
    observing.observe()
    cluster.down = silence()
    observing.observe()
    assert shown(observing, i.CLUSTER_UP) == {"": 0} and shown(observing, i.UP) == {"a": 0, "b": 0}
    assert shown(observing, i.OLDEST) == {} and shown(observing, i.CLAIMS) == {}


def test_a_cluster_that_dies_in_a_round_is_not_waited_for_at_each_sink(cluster):
    """Mishap: with fifty sinks it would take minutes to say that the brokers are away."""
    cluster.names = ["a", "b", "c"]
    observing = Observer(NOWHERE, (), 15)
    observing.observe()
    cluster.looks.clear()

    cluster.dies_at = "a"
    observing.observe()
    assert cluster.looks == ["a"] and shown(observing, i.UP) == {"a": 0, "b": 0, "c": 0}


def test_trouble_is_logged_once_for_each_change(cluster, caplog):
    """Mishap: a log full of one sentence every 15 seconds, or none at all."""
    observing = Observer(NOWHERE, (), 15)
    with caplog.at_level(logging.WARNING):
        for state in (None, silence(), silence(), silence(), None, None):
            cluster.down = state
            observing.observe()
        cluster.error["a"] = ValueError("a bug")
        observing.observe()
        observing.observe()
    said = [r.getMessage() for r in caplog.records]
    assert [line.partition(": ")[2].partition(":")[0] for line in said] == [
        "observation failed",
        "observation works again",
        "observation failed",
    ]
    assert said[0].startswith(NOWHERE.bootstrap_servers)
    assert said[2].startswith("sink a: ") and said[2].endswith(": a bug")


def test_a_sink_that_comes_later_is_counted_whole_and_one_that_goes_is_forgotten(cluster):
    """Mishap: a batch write that begins and ends between two rounds is never counted."""
    observing = Observer(NOWHERE, (), 15)
    assert totals(observing.observe()) == {}
    cluster.names = ["b", "c"]
    assert totals(observing.observe())[("batch.decisions", "stream")] == 1
    assert set(shown(observing, i.UP)) == {"b", "c"}


def test_figures_that_are_old_are_not_shown(cluster, monkeypatch):
    """Mishap: an observer that hangs goes on to say that all is well."""
    monkeypatch.setattr(observer, "READ_BUDGET_S", 0.0)
    observing = Observer(NOWHERE, ("a",), 1e-6)
    observing.observe()
    monkeypatch.setattr(observing, "_round_s", 0.0)
    assert shown(observing, i.UP) == {"a": 0}
    assert shown(observing, i.OLDEST) == shown(observing, i.OBSERVATION_DURATION) == {}


def test_a_lag_that_may_not_be_asked_for_is_absent_and_the_rest_is_there(cluster):
    """Mishap: without a right on a consumer group the observer would see nothing at all."""

    def refused(group):
        raise silence()

    cluster.published_offsets = refused
    observing = Observer(NOWHERE, ("a",), 15)
    observing.observe()
    assert shown(observing, i.UP) == {"a": 1} and shown(observing, i.READER_LAG) == {}
