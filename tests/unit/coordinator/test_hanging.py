"""Which hanging transactions a claim aborts, which it commits, and which it leaves to a person."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exactly_once.coordinator.resolve import to_commit
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import (
    ACCEPTED,
    COMMITTED,
    KEPT_DECISIONS,
    Completed,
    Count,
    Decision,
    PreparedTransaction,
)
from exactly_once.txn.coordinators import Description
from exactly_once.txn.leaders import Hanging
from testkit.part_ids import part_id

NAME = part_id("s", 1, 0, "0.0")
HANGING = Hanging("out", 0, 7, 3, 0, 100, 1_000, NAME, 5)
MINE = PreparedTransaction(NAME, 7, 3, 0, 5)


def view(state: str = "Empty", epoch: int = 5) -> Description:
    return Description(NAME, state, 7, epoch, 60_000, -1, (), 1)


def log(*handles: PreparedTransaction, how: str = "", **more: object) -> LogState:
    """A log with one decision of these handles; completed, if it says how."""
    decision = replace(Decision("q", 0, 1, handles, "d", 5, 2_000, topics=("out",)), **more)  # type: ignore[arg-type]
    marks = {("q", 0): Completed("q", 0, 1, 3_000, how=how)} if how else {}
    return LogState(decisions=(decision,), marks=marks)


def full(*decisions: Decision) -> LogState:
    """A log that has dropped older decisions than these."""
    others = tuple(Decision("q", n, 1, (), "d", 5, 2_000) for n in range(1, KEPT_DECISIONS))
    return LogState(decisions=(*(decisions or (Decision("q", 0, 1, (), "d", 5, 2_000),)), *others))


def taken_over(*decisions: Decision) -> LogState:
    """A log whose sink a second query has taken: its batch 0 has the place of the first one's batches 0, 64, ..."""
    first = Decision("second", 0, 2, (replace(MINE, epoch=6),), "d", 5, 9_000, counted=Count({"out": 20}, {}))
    return LogState(decisions=(*decisions, first))


EARLIER = Decision("q", 0, 1, (replace(MINE, epoch=2),), "d", 5, 2_000)


@pytest.mark.parametrize(
    ("state", "commit"),
    [
        pytest.param(log(MINE, how=COMMITTED), True, id="decided and committed"),
        pytest.param(log(MINE, how=ACCEPTED), None, id="given up by a person, who may have written it again"),
        pytest.param(log(MINE), None, id="decided, and its outcome is not proven"),
        pytest.param(log(), False, id="not decided, and the log has dropped nothing"),
        pytest.param(full(), None, id="the log may have dropped its decision"),
        pytest.param(taken_over(EARLIER), None, id="the log keeps an earlier one, of a query from which it was taken"),
        pytest.param(taken_over(), None, id="all decisions of a query from which it was taken have made way"),
        pytest.param(full(EARLIER), False, id="the log keeps an earlier decision of it"),
        pytest.param(
            full(EARLIER, Decision("q", 64, 1, (), "d", 5, 3_000, totals={"kafka": [2000, 50, 0]})),
            None,
            id="a later decision has no handles any more",
        ),
    ],
)
def test_a_hanging_transaction_ends_as_the_commit_log_says(state: LogState, commit: bool | None) -> None:
    """Loss: decided rows that are aborted. Duplicate: rows that nobody decided, or that were written again, show up."""
    assert to_commit(HANGING, view(), 5, state) is commit


@pytest.mark.parametrize(
    ("state", "commit"),
    [
        pytest.param(full(), False, id="the log cannot tell, its coordinator can"),
        pytest.param(log(MINE, how=COMMITTED), True, id="the log says that it is committed"),
        pytest.param(log(MINE), None, id="decided and open"),
    ],
)
def test_a_transaction_that_its_coordinator_has_aborted_is_aborted_unless_a_decision_names_it(
    state: LogState, commit: bool | None
) -> None:
    """Readers wait behind the first batch of a claim, too, of whose ids the log knows nothing."""
    assert to_commit(HANGING, view("CompleteAbort", 4), 5, state) is commit
