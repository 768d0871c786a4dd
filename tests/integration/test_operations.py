"""Each operation as Python runs it, on a real broker: what it says, what it does, what it returns and refuses."""

from __future__ import annotations

import os
import socket

import psutil
import pytest

import exactly_once
from exactly_once.errors import InvalidOption
from testkit.dead_sink import DeadSink


def test_a_script_inspects_and_recovers_a_sink(connection, sink):
    """Guards against a script that must parse what a command prints, or import what a later version moves."""
    decided, undecided = sink.open_part(0), sink.open_part(1)
    sink.decide(decided)
    found = exactly_once.inspect(connection.bootstrap_servers, sink.sink_id)
    assert [t.verdict for t in found.open] == ["decided", "undecided"] and not found.quiet
    report = exactly_once.recover(connection.bootstrap_servers, sink.sink_id, operator="a script")
    assert report.clean and [d.batch_id for d in report.completed] == [0]
    assert report.rolled_back == {"kafka": [undecided]} and report.claim.operator == "a script"
    assert sink.visible() == ["part 0"]
    assert exactly_once.inspect(connection, sink.sink_id).quiet
    again = exactly_once.recover({"kafka.bootstrap.servers": connection.bootstrap_servers}, sink.sink_id)
    assert again.clean and not again.completed and not again.rolled_back


@pytest.mark.long
def test_a_script_fences_a_driver_only_with_the_phrase(connection, topic):
    """Mishap: a cron job that stops a healthy stream."""
    mine = psutil.Process(os.getpid()).create_time()
    living = DeadSink(connection, topic, socket.gethostname(), os.getpid(), mine)
    living.open_part(0)
    with pytest.raises(exactly_once.ExactlyOnceError) as refused:
        exactly_once.recover(connection, living.sink_id)
    assert refused.value.code == "EO-REFUSED" and living.read().owner.token == 1
    assert exactly_once.recover(connection, living.sink_id, force=refused.value.phrase).clean
    assert exactly_once.inspect(connection, living.sink_id).quiet


def test_a_script_is_told_of_a_sink_that_there_is_not(connection):
    """A typo that passes: the real sink stays as it is."""
    assert exactly_once.inspect(connection, "no-such-sink").owner is None
    with pytest.raises(InvalidOption):
        exactly_once.recover(connection, "no-such-sink")
    with pytest.raises(InvalidOption):
        exactly_once.inspect(connection, "no:sink")


def test_a_script_verifies_a_sink(connection, sink):
    """Guards against a proof that only a shell can ask for."""
    sink.decide(sink.open_part(0))
    stuck = exactly_once.verify(connection.bootstrap_servers, sink.sink_id, settle_s=0)
    assert not stuck.clean and stuck.sink_id == sink.sink_id and sum(stuck.counts.values()) >= 1
    exactly_once.recover(connection, sink.sink_id)
    assert exactly_once.verify(connection, sink.sink_id, settle_s=10).clean
    with pytest.raises(InvalidOption):
        exactly_once.verify(connection, "no-such-sink", settle_s=0)
