"""``exactly_once_stale_transactions``: which of the transactions that hold readers back a person must know of."""

from __future__ import annotations

import pytest

from dagster_exactly_once.sensors.stale_transactions import trouble
from exactly_once.inspection.findings import Inspection, OpenTransaction, PendingDecision
from exactly_once.tools.diagnosis import SinkFacts, diagnose
from exactly_once.tools.diagnosis.facts import HangingName, StreamFacts, Worker

AT_WORK = StreamFacts(Worker("run r1"))
OURS, FOREIGN = (HangingName("out-0@17"),), (HangingName("out-0@17", "foreign"),)


def stale(verdict: str = "undecided") -> OpenTransaction:
    return OpenTransaction("eo:s:1:0:0.0", 0, "0.0", "Ongoing", 4_000, 2, 950.0, 900.0, (("out", 0),), verdict)


@pytest.mark.parametrize(
    ("transactions", "more", "code"),
    [
        ((), {}, None),
        ((stale(),), {}, "HEALTH-STALE-TRANSACTIONS"),
        ((stale(),), {"stream": AT_WORK}, None),  # a run is at it
        ((stale("decided"),), {}, None),  # in doubt: told by checkpoint_progress
        ((stale(),), {"hanging": OURS}, "HEALTH-HANGING"),
        ((), {"hanging": OURS, "stream": AT_WORK}, "HEALTH-HANGING"),
        ((), {"hanging": FOREIGN, "foreign": ("payments",)}, None),
    ],
)
def test_which_transactions_a_person_must_know_of(transactions, more, code) -> None:
    decided = tuple(PendingDecision("q", 7, 3, 0, ("out",), ()) for t in transactions if t.verdict == "decided")
    sink = Inspection("s", None, transactions, decided, checked_ms=1_000_000)
    found = trouble(diagnose(SinkFacts(sink, **more)))
    assert (found and found.code) == code
