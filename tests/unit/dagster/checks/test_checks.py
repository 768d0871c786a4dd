"""The judgements of the asset checks: each must fail for its mishap, and for nothing that a healthy stream does."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from dagster_exactly_once.checks import judgements
from dagster_exactly_once.checks.evaluate import evaluated
from dagster_exactly_once.declare.stream import Record
from exactly_once.checkpoint import Checkpoint
from exactly_once.error_headers import OFFSET, PARTITION, TOPIC
from exactly_once.errors import (
    BrokerRefused,
    BrokerUnreachable,
    CheckpointAway,
    CommitLogBlocked,
    CommitLogDamaged,
    InvalidOption,
)
from exactly_once.inspection.findings import BlockedPartition, Inspection, OpenTransaction, Owner, PendingDecision
from exactly_once.inspection.progress import compare
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Claim
from exactly_once.tools.diagnosis import Severity, SinkFacts, Thresholds
from exactly_once.tools.diagnosis.facts import Standing, StreamFacts, Worker
from exactly_once.tools.verify import Anomaly, Finding, Report
from exactly_once.tools.verify.by_origin.comparison import NOT_FAR, RETENTION
from exactly_once.tools.verify.by_origin.ledger import ComparisonResult
from exactly_once.tools.verify.by_origin.tally import FOREIGN
from exactly_once.tools.verify.expected import Window
from exactly_once.tools.verify.report import Balance, TopicBalance
from platform_assets.flights.origin import origin

NOW = 1_000_000_000_000


def ok(verdict):
    return verdict.severity is Severity.OK


# -- the comparison of the newest input


def output(partition, offset, at=0):
    value = json.dumps({"dest": 'a "src": b', "src": {"partition": partition, "offset": offset}}, separators=(",", ":"))
    return Record(0, at, b"k", value.encode())


def test_the_source_of_an_output_is_found_in_its_value_or_its_headers():
    assert origin("flight_delays", output(3, 17)) == (3, 17)
    assert origin("flight_delays", Record(0, 0, None, b'{"src": {"partition": 1, "offset": 2}, "x": 1}')) == (1, 2)
    headers = ((TOPIC, b"flights"), (PARTITION, b"3"), (OFFSET, b"17"))
    assert origin("flight_delays_rejected", Record(0, 0, None, None, headers)) == (3, 17)
    for broken in (None, b"", b"{}", b'{"src":5}', b'{"src":{"partition":"x","offset":1}}'):
        assert origin("flight_delays", Record(0, 0, None, broken)) is None
    assert origin("flight_delays_rejected", Record(0, 0, None, None)) is None


WINDOW = Window({("in", 0): 10}, {("in", 0): 10}, (1, 1), 4, 4)


def compared(*findings, unproven=None, window=WINDOW, foreign=0):
    sums = {"input": 2, "output": 3, "foreign": foreign, "earlier": 0, "under way": 0}
    return judgements.no_duplicates_and_no_loss(ComparisonResult(findings, sums, 3, unproven or {}, window))


def a(anomaly, records=1, what="x", places=("in-0@13",)):
    return Finding(anomaly, what, "batch 1", "", places, records)


def test_the_verdict_says_what_was_sampled_and_how_grave_it_is():
    right = compared()
    assert ok(right) and "2 input records in 4 offsets (batches 1 to 1) against 3 output records" in right.sentence
    lost = compared(a(Anomaly.LOST), a(Anomaly.TORN_BATCH))
    assert (lost.code, lost.severity) == ("CHECK-NOT-EXACTLY-ONCE", Severity.ERROR)
    assert (lost.evidence["lost"], lost.evidence["duplicated"]) == (1, 0)
    assert lost.evidence["examples"] == ["lost: in-0@13"]
    assert ok(judgements.no_duplicates_and_no_loss(None))


def test_a_record_that_names_no_input_and_one_of_input_that_there_is_not_are_two_faults():
    found = compared(a(Anomaly.PHANTOM, 2), a(Anomaly.PHANTOM, 3, f"{FOREIGN}: 3", ("out-0@5",)), foreign=3)
    assert found.severity is Severity.ERROR and (found.evidence["invented"], found.evidence["unplaced"]) == (2, 3)
    assert "2 invented, 3 unplaced" in found.sentence and "unplaced: out-0@5" in found.evidence["examples"]


def test_what_readers_do_not_get_yet_or_nobody_has_read_is_a_warning_and_no_loss():
    """Guards against an alarm for records that lie further back than was read, or behind an open transaction."""
    for found in (compared(a(Anomaly.UNSEEN)), compared(unproven={NOT_FAR: 1})):
        assert (found.code, found.severity) == ("CHECK-NOT-PROVEN", Severity.WARN)
        assert found.evidence["lost"] == 0 and len(found.evidence["unproven"]) == 1
    twice = compared(a(Anomaly.UNSEEN), a(Anomaly.DUPLICATE, places=("in-0@11", "out-0@9..9")))
    assert twice.severity is Severity.ERROR
    assert "1 duplicated, for example " in twice.sentence and " duplicated: in-0@11." in twice.sentence


def test_input_that_retention_took_makes_the_window_smaller_and_is_no_fault():
    found = compared(unproven={RETENTION: 3})
    assert ok(found) and "deleted by retention" in found.evidence["window_cut"]
    assert compared(window=replace(WINDOW, cut="short")).evidence["window_cut"] == "short"


# -- verify


def test_what_verify_proved_passes_and_says_what_it_could_not_prove():
    report = Report(
        "s", batches=2, parts=7, records=70, unproven={"why": 1}, first_batch="batch 3", last_batch="batch 5"
    )
    verdict = judgements.verified(report)
    assert ok(verdict) and verdict.evidence["parts_unproven"] == 1
    assert verdict.text == (
        "No anomaly: 2 batches (batch 3 to batch 5) are proven, 70 records in 7 parts as decided; 1 other part could "
        "not be proven."
    )
    assert ok(judgements.verified(Report("s"))), "before the first batch"
    others = Balance({"out": TopicBalance(80, right=70, not_judged=Counter({"other writers": 10}))})
    shared = judgements.verified(replace(report, unproven={}, balance=others))
    assert ok(shared) and (shared.evidence["records_right"], shared.evidence["records_not_judged"]) == (70, 10)
    compared = replace(report, unproven={}, by_origin={"input": 900, "output": 900, "under way": 3})
    verdict = judgements.verified(compared)
    assert "900 input records each" in verdict.sentence
    assert verdict.evidence["under_way_by_origin"] == 3


def test_an_anomaly_fails_with_its_name_and_its_sentence():
    finding = Finding(Anomaly.SPLIT_SINK, "batch 5 is visible in kafka, and archive shows nothing of it", "batch 5")
    verdict = judgements.verified(Report("s", (finding,), 2, 7, 70, last_batch="batch 5", counts={"split sink": 1}))
    assert (verdict.code, verdict.severity) == ("CHECK-NOT-EXACTLY-ONCE", Severity.ERROR)
    assert finding.what in verdict.sentence
    assert verdict.evidence["anomalies_split_sink"] == 1


def test_a_check_that_could_prove_nothing_does_not_pass():
    """Guards against a green check over an output that nobody can read."""
    report = Report("s", unproven={"why": 4}, first_batch="batch 1", last_batch="batch 1")
    for verdict in (judgements.verified(report), judgements.verified(replace(report, removed={"why": 100}))):
        assert (verdict.code, verdict.severity, verdict.evidence["parts_unproven"]) == (
            "CHECK-NOT-PROVEN",
            Severity.WARN,
            4,
        )
    assert verdict.evidence["records_removed"] == 100


# -- the symptoms of a sink

CLAIM = Claim(3, "q", 0, "stream", "h", 5, "/c")
OURS, GONE = Owner(CLAIM, True), Owner(CLAIM, False)
LIMITS = Thresholds(stale_after_s=300.0, stall_after_s=300.0)
RUN = Worker("run r1", age_s=900.0)


def facts(owner=OURS, *open_now, decided=(), stream=None, **more):
    sink = Inspection("s", owner, tuple(open_now), tuple(decided), checked_ms=NOW, log=LogState(owner=owner.claim))
    return SinkFacts(sink, stream=stream or StreamFacts(), **more)


def opened(age_s):
    return OpenTransaction("eo:s:0:0:0.0", 0, "0.0", "Ongoing", 1, 0, age_s, 900.0, (("out", 0),), "undecided")


@pytest.mark.parametrize(
    ("owner", "age_s", "passes"), [(OURS, 299, True), (OURS, 700, False), (GONE, 1, False), (GONE, None, True)]
)
def test_only_a_transaction_of_no_batch_at_work_fails(owner, age_s, passes):
    found = facts(owner, *([] if age_s is None else [opened(age_s)]))
    verdict = judgements.no_old_open_transaction([found, facts(GONE)], LIMITS)
    assert verdict.code == ("CHECK-PASSED" if passes else "HEALTH-STALE-TRANSACTIONS")
    assert verdict.evidence["open_transactions"] == len(found.sink.open)


@pytest.mark.parametrize(
    ("age_s", "code"), [(1, "CHECK-PASSED"), (301, "HEALTH-READERS-WAIT"), (None, "HEALTH-READERS-WAIT")]
)
def test_a_batch_in_flight_may_hold_readers_back_for_as_long_as_the_policy_says(age_s, code):
    since = None if age_s is None else NOW - age_s * 1000
    found = facts(standing=(Standing(BlockedPartition("out", 2, 10, 20, True), since),))
    verdict = judgements.last_stable_is_high_watermark(found, 8, LIMITS)
    assert (verdict.code, verdict.evidence["blocked_now"]) == (code, ["out-2: 10"])
    assert ok(judgements.last_stable_is_high_watermark(facts(), 8, LIMITS))


LAST = Checkpoint("/c", "q", 6, 6)


@pytest.mark.parametrize(
    ("checkpoint", "owner", "stream", "unfinished", "code", "severity"),
    [
        (Checkpoint("/c", "q"), OURS, StreamFacts(), False, "CHECK-PASSED", Severity.OK),
        (Checkpoint("/c", "q", 7), OURS, StreamFacts(RUN, lag=5), False, "CHECK-PASSED", Severity.OK),
        (
            Checkpoint("/c", "q", 7),
            OURS,
            StreamFacts(RUN, lag=5, waited_s=301.0),
            True,
            "HEALTH-STALLED",
            Severity.WARN,
        ),
        (Checkpoint("/c", "q", 7), GONE, StreamFacts(lag=5), True, "HEALTH-STOPPED", Severity.WARN),
        (Checkpoint("/c", "q", 7), GONE, StreamFacts(lag=5), False, "CHECK-PASSED", Severity.OK),  # terminated
        (LAST, OURS, StreamFacts(RUN), False, "CHECK-PASSED", Severity.OK),  # nobody read the log again
        (LAST, GONE, StreamFacts(), False, "HEALTH-CHECKPOINT-AHEAD", Severity.ERROR),
        (Checkpoint("/c"), OURS, StreamFacts(), False, "HEALTH-CHECKPOINT-LOST", Severity.ERROR),
        (replace(LAST, query_id="p"), OURS, StreamFacts(), False, "HEALTH-CHECKPOINT-FOREIGN", Severity.ERROR),
        (replace(LAST, torn={"offsets/7": "x"}), OURS, StreamFacts(), False, "HEALTH-CHECKPOINT-TORN", Severity.ERROR),
    ],
)
def test_checkpoint_and_commit_log_may_differ_by_a_young_batch_only(
    checkpoint, owner, stream, unfinished, code, severity
):
    """Two minutes after the run had died, the page said that its batch is being written, in green."""
    found = facts(owner, checkpoint=checkpoint, stream=stream)
    found = replace(found, after=found.sink.log if found.at_work is False else None)
    progress = compare(checkpoint, found.sink.log)
    verdict = judgements.checkpoint_equals_commit_log(found, progress, unfinished, LIMITS)
    assert (verdict.code, verdict.severity, verdict.evidence["progress"]) == (code, severity, progress.state)


def test_a_decision_that_is_not_proven_committed_fails():
    pending = PendingDecision("q", 7, 3, NOW - 60_000, ("out",), ())
    for owner, code in ((GONE, "HEALTH-IN-DOUBT"), (OURS, "CHECK-PASSED")):
        found = facts(owner, decided=(pending,), checkpoint=Checkpoint("/c", "q"))
        progress = compare(found.checkpoint, found.sink.log)
        assert judgements.checkpoint_equals_commit_log(found, progress, False, LIMITS).code == code


@pytest.mark.parametrize(
    ("error", "grave"),
    [
        (InvalidOption("w", "o"), False),
        (BrokerUnreachable("w", "o"), False),
        (BrokerRefused("w", "o"), False),
        (CheckpointAway("w", "o"), False),
        (CommitLogBlocked("w", "o"), False),
        (CommitLogDamaged("w", "o"), True),
    ],
)
def test_a_check_that_cannot_look_is_a_warning_and_no_failed_run(error, grave):
    """Brokers that are away turn every check of every stream red, and a fresh installation is red before its start."""

    def look(at):
        raise error

    found = evaluated(look, None)
    assert not found.passed and found.severity.name == ("ERROR" if grave else "WARN")
    assert found.description.startswith(f"Not evaluated: {error.code}") and found.metadata["way_out"].value
    assert found.metadata["code"].value == error.code


# -- freshness

AT = 50  # the sum of the committed offsets


def waiting(position, since_ms):
    return {"position": position, "waiting_since_ms": since_ms}


def fresh(waiting, last_commit_ms, earlier, limit_s=900, now=NOW):
    found = facts(GONE, stream=StreamFacts(lag=waiting))
    found = replace(found, sink=replace(found.sink, checked_ms=now))
    return judgements.freshness(found, AT, last_commit_ms, earlier, limit_s)


@pytest.mark.parametrize(
    ("waiting", "last_commit_s", "earlier", "passes"),
    [
        pytest.param(0, 99_999, {}, True, id="idle for a day is fresh"),
        pytest.param(5, 99_999, {}, True, id="seen waiting for the first time: it may have come just now"),
        pytest.param(5, 99_999, waiting(50, NOW - 901_000), False, id="the same input waits for too long"),
        pytest.param(5, 99_999, waiting(50, NOW - 600_000), True, id="it waits, and not for long"),
        pytest.param(5, 10, waiting(40, NOW - 901_000), True, id="the stream went on meanwhile"),
        pytest.param(5, 10, waiting(50, NOW - 901_000), True, id="a batch without input was committed just now"),
    ],
)
def test_input_that_waits_is_stale_and_an_idle_stream_is_not(waiting, last_commit_s, earlier, passes):
    assert ok(fresh(waiting, NOW - last_commit_s * 1000, earlier)) is passes


def test_the_clock_of_waiting_goes_on_over_evaluations():
    """Guards against a check that begins to count anew each time, and so never fails."""
    first = fresh(5, None, {})
    assert (first.evidence["position"], first.evidence["waiting_since_ms"]) == (50, NOW)
    second = fresh(9, None, first.evidence, now=NOW + 600_000)
    assert ok(second) and second.evidence["waiting_since_ms"] == NOW
    third = fresh(9, None, second.evidence, now=NOW + 1_200_000)
    assert (third.code, third.severity, third.evidence["waited_s"]) == ("HEALTH-STOPPED", Severity.WARN, 1200.0)


def test_input_that_waits_for_a_run_that_does_nothing_is_said_as_health_says_it():
    found = facts(OURS, stream=StreamFacts(Worker("run r1", age_s=9_000.0), lag=5))
    late = judgements.freshness(found, AT, None, waiting(50, NOW - 901_000), 900)
    assert (late.code, late.severity) == ("HEALTH-STALLED", Severity.WARN)


def test_nothing_is_remembered_of_an_idle_stream_and_nothing_is_stale_before_the_first_batch():
    assert "waiting_since_ms" not in fresh(0, None, {}).evidence
    assert fresh(5, None, fresh(0, None, {}).evidence).evidence["waiting_since_ms"] == NOW
    assert ok(judgements.freshness(facts(stream=StreamFacts(lag=5)), None, None, {}, 900))
