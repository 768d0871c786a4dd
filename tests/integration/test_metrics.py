"""The observer against real brokers: what is served over HTTP is what the brokers and the commit log say."""

from __future__ import annotations

import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from confluent_kafka import TopicPartition

from exactly_once.coordinator.recover import recover
from exactly_once.deadline import Deadline
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.names import offsets_group
from exactly_once.protocol.records import Completed
from exactly_once.tools.cli.metrics import observe
from exactly_once.tools.metrics import observer
from testkit import broker as brokers
from testkit.dead_sink import DEAD, DeadSink
from testkit.processes import until
from testkit.scrape import Scrape

#: A look takes some 50 ms; on a machine that runs other things it may be a second.
PATIENCE_S = 30


class Observed:
    """An observer in this process, every second."""

    def __init__(self, port):
        self.port = port

    def scrape(self):
        return Scrape(self.port)

    def when(self, what, condition):
        """The first scrape for which ``condition`` is true."""
        found = []

        def holds():
            found[:] = [self.scrape()]
            return condition(found[0])

        until(what, holds, PATIENCE_S, every_s=0.1)
        return found[0]

    def next_look(self, name):
        """The first scrape after one more look: its duration is another one."""
        took = "exactly_once_observation_duration_seconds"
        before = self.scrape().one(took, **name)
        return self.when("another look", lambda s: s.one(took, **name) != before)


@contextmanager
def observing(connection, *sinks):
    stop, ports = threading.Event(), []

    def work():
        for port in observe(connection, sinks, "localhost", 0, 1.0, stop):
            ports.append(port)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        until("the endpoint", lambda: ports, PATIENCE_S)
        yield Observed(ports[0])
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.long
def test_open_transactions_are_served_as_the_brokers_tell_them(connection, sink):
    """Mishap: an on-call person looks at figures of something else than what holds the readers back."""
    decided, began = sink.open_part(0, records=3), time.time()
    sink.open_part(1)
    sink.decide(decided, records=3)
    name = {"sink": sink.sink_id}
    with observing(connection, sink.sink_id) as observed:
        seen = observed.when("the first look", lambda s: s.one("exactly_once_up", **name) == 1)
        age = seen.one("exactly_once_transaction_oldest_age_seconds", **name)
        assert seen.all("exactly_once_transaction_open", **name) == {("decided",): 1, ("undecided",): 1, ("log",): 0}
        assert time.time() - began - 2 <= age <= time.time() - began + 10
        assert seen.one("exactly_once_transaction_timeout_utilization", **name) == pytest.approx(age / 60)
        assert seen.one("exactly_once_batch_unproven", **name) == 1
        assert seen.one("exactly_once_owner_alive", **name) == 0
        assert seen.one("exactly_once_sink_claims_total", **name) == sink.read().owner.token == 1
        with Admin(connection) as admin:
            marks = admin.watermarks(sink.topic).values()
        waiting = sum(m.high - m.last_stable for m in marks)
        assert waiting == 4  # 3 and 1 records
        assert seen.all("exactly_once_last_stable_offset_lag", **name) == {(sink.topic,): waiting}
        later = observed.when(
            "a later look", lambda s: s.one("exactly_once_transaction_oldest_age_seconds", **name) > age
        )
        assert later.one("exactly_once_batch_oldest_unproven_age_seconds", **name) > 0

        recover(connection, sink.sink_id)  # commits the one and aborts the other
        after = observed.when("the recovery", lambda s: s.one("exactly_once_sink_claims_total", **name) == 2)
        after = observed.when(
            "rest", lambda s: s.one("exactly_once_transaction_aborts_total", **name) and not blocked(s, name)
        )
        assert set(after.all("exactly_once_transaction_open", **name).values()) == {0}
        assert after.one("exactly_once_batch_unproven", **name) == 0
        assert after.all("exactly_once_batch_replays_total", **name) == {("completed",): 1, ("drained",): 0}
        assert after.one("exactly_once_transaction_aborts_total", **name) == sink.read().tally.aborted == 1


def blocked(scrape, name):
    return sum(scrape.all("exactly_once_last_stable_offset_lag", **name).values())


@pytest.mark.long
def test_each_completed_batch_is_in_the_histograms_once(connection, sink):
    """Mishap: durations that depend on how often one looks."""
    name = {"sink": sink.sink_id}
    with observing(connection, sink.sink_id) as observed:
        observed.when("the first look", lambda s: s.one("exactly_once_up", **name) == 1)
        sink.decide(sink.open_part(0), records=7)
        sink.log.append(Completed("q", 0, 1, 0, 1_500, 20, -1), Deadline(30))
        count = "exactly_once_batch_prepare_duration_seconds_count"
        seen = observed.when("the batch", lambda s: s.one(count, **name))
        for _ in range(2):
            seen = observed.next_look(name)
        assert seen.one(count, **name) == 1
        assert seen.one("exactly_once_batch_prepare_duration_seconds_sum", **name) == 1.5
        assert seen.one("exactly_once_batch_prepare_duration_seconds_bucket", le="1.0", **name) == 0
        assert seen.one("exactly_once_batch_prepare_duration_seconds_bucket", le="2.5", **name) == 1
        assert seen.one("exactly_once_batch_decide_duration_seconds_sum", **name) == 0.02
        assert seen.one("exactly_once_batch_complete_duration_seconds_count", **name) is None  # not known
        assert seen.one("exactly_once_batch_decisions_total", kind="stream", **name) == 1
        assert seen.one("exactly_once_batch_records_total", kind="stream", **name) == 7
        assert seen.one("exactly_once_batch_decisions_total", kind="write", **name) == 0
        assert seen.one("exactly_once_observation_missed_total", **name) == 0


def test_the_lag_of_the_stream_is_against_what_it_may_read(connection, sink):
    """Mishap: a lag against the high watermark, which an open transaction on the input holds up forever."""
    source, group = brokers.create_topic(connection.bootstrap_servers, partitions=2), offsets_group(sink.sink_id)
    other = brokers.create_topic(connection.bootstrap_servers, partitions=1)
    writer = brokers.open_transaction(connection, source)
    for n in range(10):
        writer.produce(source, str(n), partition=0)
    writer.commit_transaction(30)  # ten records and a marker
    writer.begin_transaction()
    for n in range(5):
        writer.produce(source, str(n), partition=n % 2)
    writer.flush(30)
    positions = [TopicPartition(source, 0, 4), TopicPartition(source, 1, 0), TopicPartition(other, 0, 0)]
    brokers.commit_offsets(connection, group, positions)
    with Admin(connection) as admin:
        marks = admin.watermarks(source)
    assert (marks[0].last_stable, marks[0].high, marks[1].last_stable, marks[1].high) == (11, 14, 0, 2)
    with observing(connection, sink.sink_id) as observed:
        name = {"sink": sink.sink_id}
        seen = observed.when("the lag", lambda s: s.all("exactly_once_reader_lag", **name))
        assert seen.all("exactly_once_reader_lag", **name) == {(source,): 7, (other,): 0}
    writer.abort_transaction(30)


@pytest.mark.long
def test_every_sink_of_the_cluster_is_observed_when_none_is_named(own_broker):
    """Mishap: without --sink, the observer misses a sink, and no alert watches it.

    On a broker of its own: on the shared one "every sink" is the hundreds that other tests left, 50 ms each.
    """
    connection = Connection(own_broker().bootstrap_servers)
    topic = brokers.create_topic(connection.bootstrap_servers, partitions=4)
    sink = DeadSink(connection, topic, socket.gethostname(), DEAD)
    with observing(connection) as observed:
        observed.when("the sink", lambda s: s.one("exactly_once_up", sink=sink.sink_id) == 1)
        later = DeadSink(connection, sink.topic)
        later.decide(later.open_part(2))
        decisions = {"sink": later.sink_id, "kind": "stream"}
        seen = observed.when("the new sink", lambda s: s.one("exactly_once_batch_decisions_total", **decisions) == 1)
        assert seen.one("exactly_once_owner_alive", sink=later.sink_id) is None  # it is on another host
        assert seen.one("exactly_once_cluster_up") == 1


@pytest.mark.long
def test_an_observer_outlives_its_broker_and_forgets_what_it_cannot_see(own_broker, monkeypatch, caplog):
    """Mishap: figures from before the failure, shown as if they were of now; or no observer when it is over."""
    monkeypatch.setattr(observer, "READ_BUDGET_S", 3.0)
    broker = own_broker()
    connection = Connection(broker.bootstrap_servers)
    sink = DeadSink(connection, brokers.create_topic(broker.bootstrap_servers, partitions=4))
    name, gauge = {"sink": sink.sink_id}, "exactly_once_transaction_open"
    with observing(connection) as observed, caplog.at_level(logging.WARNING, "exactly_once.tools.metrics"):
        observed.when("the first look", lambda s: s.one("exactly_once_up", **name) == 1)
        broker.kill()
        down = observed.when("the failure", lambda s: s.one("exactly_once_cluster_up") == 0)
        assert down.one("exactly_once_up", **name) == 0
        kept = {n for n in down.names if n.startswith("exactly_once_")}
        assert gauge not in kept and "exactly_once_sink_claims_total" not in kept
        observed.next_look(name)
        broker.restart()
        up = observed.when("the broker again", lambda s: s.one("exactly_once_up", **name) == 1)
        assert up.one("exactly_once_cluster_up") == 1 and gauge in up.names
    of_cluster = [r.getMessage() for r in caplog.records if r.getMessage().startswith(broker.bootstrap_servers)]
    assert ["EO-UNREACHABLE" in line for line in of_cluster] == [True, False]


@pytest.mark.long
def test_the_command_serves_until_it_is_told_to_end(bootstrap_servers, sink):
    """Mishap: a process that a supervisor must kill hard, or that ends as if it had failed."""
    command = [sys.executable, "-m", "exactly_once.tools.cli", "--bootstrap-servers", bootstrap_servers, "metrics"]
    process = subprocess.Popen(
        [*command, "--sink", sink.sink_id, "--port", "0", "--interval", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stderr.readline()
        port = int(re.search(r"http://localhost:(\d+)/metrics", line)[1])
        Observed(port).when("a look", lambda s: s.one("exactly_once_up", sink=sink.sink_id) == 1)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=PATIENCE_S) == ("", "")
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
