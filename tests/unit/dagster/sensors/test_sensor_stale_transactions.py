"""``exactly_once_stale_transactions``: what holds back readers for too long, and whose it is."""

from __future__ import annotations

import pytest

from dagster_exactly_once.sensors.settings import WatchPolicy
from dagster_exactly_once.sensors.stale_transactions import StaleFacts, verdict
from exactly_once.inspection.findings import OpenTransaction

POLICY = WatchPolicy(stale_after_s=300.0)


def stale(part: int, age_s: float, verdict: str = "undecided") -> OpenTransaction:
    name = f"eo:s:1:{part}:0.0"
    return OpenTransaction(name, part, "0.0", "Ongoing", 4_000 + part, 2, age_s, 900.0, (("out", part),), verdict)


@pytest.mark.parametrize(
    ("facts", "incident", "says"),
    [
        (StaleFacts(open=4), None, "No transaction has been open for longer than 300 s (newer ones: 4)"),
        (StaleFacts((stale(0, 400),), 1), "stale/eo:s:1:0:0.0/4000.2", "The brokers will abort the oldest in 500 s"),
        (StaleFacts((stale(0, 400, "decided"),), 1), "stale/eo:s:1:0:0.0/4000.2", "decided, 400 s"),
        (StaleFacts(tuple(stale(n, 400) for n in range(5)), 5), "stale/eo:s:1:0:0.0/4000.2", "and 2 more"),
        (StaleFacts(hanging_ours=("out-0@17",)), None, "exactly-once transactions abort"),
        (StaleFacts(hanging_foreign=("out-0@17",)), None, "kafka-transactions.sh abort"),
        (
            StaleFacts(unknown=("out-0@17",)),
            None,
            "unknown writers hold readers back: out-0@17. They hang, or",
        ),
        (StaleFacts(foreign=("payments-1",)), None, "topics: payments-1. This sensor does not end them"),
        (StaleFacts((stale(0, 400),), 1, foreign=("payments-1",)), "stale/eo:s:1:0:0.0/4000.2", "payments-1"),
    ],
)
def test_what_is_said_and_wanted(facts: StaleFacts, incident, says: str):
    """A recovery cannot end what hangs, and must never be asked to end what is somebody else's."""
    found = verdict(facts, POLICY)
    assert found.incident == incident and says in found.message, found


def test_another_transaction_under_the_same_id_is_another_incident():
    """Its run key must differ, or Dagster drops the request for the second one forever."""
    first, second = stale(0, 400), stale(0, 400)
    object.__setattr__(second, "producer_epoch", 3)
    assert verdict(StaleFacts((first,), 1), POLICY).incident != verdict(StaleFacts((second,), 1), POLICY).incident
