"""When a task is too late, as the commit log tells it: everything else in the log must let it go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exactly_once.protocol.log_state import LogState, fold
from exactly_once.protocol.planning import Batch, Plan
from exactly_once.protocol.records import Aborted, Claim, Completed, Decision, Entry, Record, Tally
from exactly_once.protocol.ticket import Ticket, too_late

TICKET = Ticket(Batch("q", 7, "digest"), Plan.WRITE, 4, "mine", 900_000)


def claim(token: int) -> Claim:
    return Claim(token, "q", 0, "recovery", "host", 123)


def decision(batch_id: int, token: int) -> Decision:
    return Decision("q", batch_id, token, (), "digest", 5, 0)


def aborted(execution: str, token: int = 4) -> Aborted:
    return Aborted("q", 7, "digest", token, execution, 0)


def log(*records: Record) -> LogState:
    return fold(Entry(record, offset) for offset, record in enumerate(records))


@pytest.mark.parametrize(
    ("records", "code", "words"),
    [
        ([claim(4), claim(5)], "EO-FENCED", "claim 5 (recovery on host, process 123) has taken the sink"),
        ([claim(4), aborted("mine")], "EO-PREPARE", "has aborted this execution"),
        ([claim(4), decision(7, 4)], "EO-PREPARE", "is decided with the results of other attempts"),
        ([claim(4), decision(7, 4), Completed("q", 7, 4, 0)], "EO-PREPARE", "is decided"),
    ],
)
def test_a_task_is_told_that_its_execution_is_over(records: list[Record], code: str, words: str) -> None:
    """Guards against a transaction that is opened after the last sweep: readers wait for it until its timeout."""
    error = too_late("job", TICKET, log(*records))
    assert error is not None and error.code == code
    assert words in str(error)


@pytest.mark.parametrize(
    "records",
    [
        [],
        [claim(4)],
        [claim(4), Tally(4, aborted=3)],
        [claim(4), decision(6, 4), Completed("q", 6, 4, 0)],
        [claim(4), aborted("of an earlier execution")],
        [decision(7, 3), claim(4)],  # a replay: its decision stands under an older claim
    ],
)
def test_a_task_in_time_goes_on_whatever_else_stands_in_the_log(records: list[Record]) -> None:
    """Guards against a healthy batch, or a replay, that its own commit log stops."""
    assert too_late("job", TICKET, log(*records)) is None


def test_a_task_that_is_too_late_is_told_who_operates_the_new_owner() -> None:
    """Guards against a search for the laptop that fenced production."""
    fencing = replace(claim(5), operator="dagster/staging/77")
    error = too_late("job", TICKET, log(claim(4), fencing))
    assert "claim 5 (recovery on host, process 123, operated by dagster/staging/77) has taken the sink" in str(error)
