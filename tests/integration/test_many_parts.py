"""A batch of very many parts on one coordinator: what is sent for each of them goes through at the first try."""

from __future__ import annotations

import pytest

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.asking import ENDS_A_CONNECTION, IDS_AT_ONCE, MOST_CONNECTIONS
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.outcomes import Outcome
from exactly_once.txn import coordinators as transactions
from exactly_once.txn.coordinators import End, describe, end_all, end_txn_version
from testkit.broker import fresh_name
from testkit.part_ids import part_id

PARTS = IDS_AT_ONCE + 300


def test_the_end_of_thousands_of_transactions_needs_one_round(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a wedge: a connection takes a hundred requests at once and refuses the rest by itself. With a
    pause before each further hundred, the parts of a large batch outlast the budget, at every start again. And a broker
    answers a connection's requests one after the other: over one, three brokers took 3.5 s for a thousand parts.
    """
    sink_id = fresh_name("sink")
    ids = [part_id(sink_id, 1, part, "0.0") for part in range(PARTS)]
    rounds: list[int] = []
    once = transactions._end_round
    monkeypatch.setattr(transactions, "_end_round", lambda *args: (rounds.append(len(args[1])), once(*args))[1])
    with Admin(connection, 60) as admin:
        version = end_txn_version(admin)
        assert {d.state for d in describe(admin, ids).values()} == {""}
        # the coordinator knows none of them: as definite an answer as any, and no producer is needed
        ends = [End(i, 1, 0) for i in ids]
        outcomes = end_all(admin, ends, True, version)
        assert len(admin.shares(PARTS)) == MOST_CONNECTIONS and admin.shares(ENDS_A_CONNECTION) == [admin]
    assert outcomes == dict.fromkeys(ids, Outcome.UNKNOWN)
    assert rounds == [PARTS]
