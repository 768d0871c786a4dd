"""A batch of very many parts on one coordinator: what is sent for each of them goes through at the first try."""

from __future__ import annotations

from exactly_once.kafka.connection import Connection
from exactly_once.kafka.control import IDS_AT_ONCE, Control, End
from exactly_once.protocol.names import part_id
from exactly_once.protocol.outcomes import Outcome
from tests.support.broker import fresh_name

PARTS = IDS_AT_ONCE + 300


class Counting(Control):
    rounds = 0

    def _end_round(self, ends: list[End], commit: bool, version: int) -> dict[str, Outcome]:
        self.rounds += 1
        return super()._end_round(ends, commit, version)


def test_the_end_of_thousands_of_transactions_needs_one_round(connection: Connection) -> None:
    """Guards against a wedge: a connection takes a hundred requests at once and refuses the rest by itself. With a
    pause before each further hundred, the parts of a large batch outlast the budget, at every start again.
    """
    sink_id = fresh_name("sink")
    ids = [part_id(sink_id, 1, part, "0.0") for part in range(PARTS)]
    with Counting(connection, 60) as control:
        version = control.end_txn_version()
        assert {d.state for d in control.describe(ids).values()} == {""}
        # the coordinator knows none of them: as definite an answer as any, and no producer is needed
        outcomes = control.end_all([End(i, 1, 0) for i in ids], True, version)
    assert outcomes == dict.fromkeys(ids, Outcome.UNKNOWN)
    assert control.rounds == 1
