"""Somebody else's open transaction on the commit log, which hides what is decided behind it."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from exactly_once.deadline import Deadline
from exactly_once.kafka.admin import Admin
from exactly_once.protocol.names import commit_log_id, commit_log_topic
from exactly_once.txn.coordinators import describe
from testkit import broker as brokers
from testkit.fixtures import Bench, StartDriver
from testkit.processes import until
from testkit.stream import PATIENCE_S


@pytest.mark.long
def test_a_batch_that_is_decided_behind_a_foreign_transaction_is_not_written_again(
    bench: Bench, driver: StartDriver
) -> None:
    """Guards against a whole batch twice: the start plans it from a log that ends before its decision, and decides it
    when the foreign transaction is gone.
    """
    first = driver()
    run = bench.begin(first)
    settings = {"transactional.id": brokers.fresh_name("foreign"), "transaction.timeout.ms": 600_000}
    foreign = Producer({**bench.connection.librdkafka(), **settings})
    foreign.init_transactions(30)
    first.arm("all-prepared", "sleep 3")  # a task that sees the foreign record would wait for its end, and fail
    first.arm("all-ended")
    bench.input.add()
    run.await_true("all-prepared", lambda: first.has_reached("all-prepared"))
    foreign.begin_transaction()
    foreign.produce(commit_log_topic(bench.sink_id), "stray", "stray", partition=0)
    foreign.flush(30)
    run.await_true("all-ended", lambda: first.has_reached("all-ended"))
    first.kill9()
    assert not run.is_committed(1)
    assert [d.batch_id for d in bench.log().decisions] == [0], "the other one is hidden"

    with Admin(bench.connection, 60) as admin:
        name = commit_log_id(bench.sink_id)
        epoch = describe(admin, [name])[name].producer_epoch
        second = driver()
        second.arm("all-prepared", "sleep 2")
        again = second.start(bench.job)

        def fenced() -> bool:
            return describe(admin.renew(10), [name])[name].producer_epoch > epoch

        until("the start has fenced the first", fenced, PATIENCE_S)
    for _ in Deadline(5).tries():  # it waits now, or goes on with what it sees
        if second.has_reached("all-prepared"):
            break
    foreign.abort_transaction(30)

    assert again.end().failure is None
    bench.assert_exactly_once()
