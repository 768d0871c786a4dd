"""What the checker says of a decided part, without a cluster."""

from __future__ import annotations

from exactly_once.ops.verify.anomalies import Anomaly
from exactly_once.ops.verify.judge import judge_decisions
from exactly_once.ops.verify.ledger import Ledger
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Decision, Place, PreparedTransaction


def test_a_part_that_is_not_in_the_log_is_named_with_the_place_of_its_first_record() -> None:
    """Guards against a loss by an unclean leader election that names no partition to look at: nothing is left there."""
    handle = PreparedTransaction("eo:s:1:0:0.0", 7, 0, 0, 4, place=Place("out", 2, 120))
    decision = Decision("q", 3, 1, (handle,), "digest", 4, 1_000, topics=("out",))
    verdict = judge_decisions([decision], LogState(decisions=(decision,)), Ledger(), {})
    [lost] = verdict.findings
    assert lost.anomaly is Anomaly.LOST and lost.batch == "batch 3" and lost.records == 4
    assert lost.places == ("out-2@120",)
